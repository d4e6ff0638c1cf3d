"""Systems of agents in the benchmark: one budget for all, published sizes, rows that say so."""

import json
import subprocess
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.backbone import load_backbone
from compevo_core.lora.backbone import LORA_TARGETS
from compevo_core.paper import agent_systems
from compevo_core.paper.agent_systems import (
    build_meta_model,
    build_parameter_report,
    configure_method,
    fit_method,
    known_architectures,
    list_trainable_parts,
    load_architecture,
)
from compevo_core.paper.changes import find_variant
from compevo_core.paper.declared import BUDGETS, STANDARD, find_budget
from compevo_core.paper.method_table import FitInputs, TrainingPlan, find_method
from compevo_core.paper.report.inputs import read_result_file
from compevo_core.training.run_folder import RunFolder
from tests.support.models import build_model
from tests.support.population import news_pool, tiny, windows
from tests.support.tiny_run import Killed, kill_after

# Of the paper's table "Multi-agent baseline configurations" (D.4), in millions.
PUBLISHED_MILLIONS = {"sa": 41.9, "mael": 419.4, "mae-gpt": 419.4, "mad-rl": 1258.4}
PUBLISHED_MILLIONS |= {"compevo": 922.8}
SYSTEMS = sorted(PUBLISHED_MILLIONS)

REPOSITORY = Path(__file__).parents[3]
STREAMS_SINCE = "7109aed0"  # the last commit that renamed a stream: no earlier seed can be repeated


def _inputs(budget=STANDARD, seed=0, **changes):
    days = {"train": windows("train", 4), "val": windows("val", 2, first_day=20)}
    return FitInputs(**days, seed=seed, budget=budget, **changes)


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=str)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_gets_the_updates_of_the_budget(system, budget):
    run = configure_method(system, _inputs(budget, 4)).run
    assert run.supervised_rounds + run.rounds == budget.rounds and run.rounds >= 1
    assert (run.batch_size, run.seed) == (budget.round_windows, 4)
    # Chance would leave the frozen model of MAE-GPT nothing to write.
    assert system != "mae-gpt" or configure_method(system, _inputs()).evolution.flat_share == 0.0


def test_committed_rows_of_agents_are_of_today():
    wrong, commits = [], set()
    for path in (REPOSITORY / "results").glob("benchmark-*.csv"):
        for row in read_result_file(path).filter(entity="pooled").to_dicts():
            configure = find_method(row["method"].removesuffix("-recalibrated")).configure
            # Of the other data sets, rows without a round are older, and every table says so.
            is_new = row["chosen_round"] is not None
            if configure is None or not (is_new or path.stem.startswith("benchmark-paper-")):
                continue
            inputs = _inputs(find_budget(row["budget"]), row["seed"])
            if row["config_hash"] != configure(inputs).hash:
                wrong.append((path.stem, row["method"], row["seed"]))
            if is_new:
                commits.add(row["commit"].removesuffix("+"))

    assert wrong == [] and commits
    git = ("git", "-C", str(REPOSITORY))
    shallow = [*git, "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, capture_output=True, check=False).stdout.strip() == b"false":
        for commit in commits:
            subprocess.run([*git, "merge-base", "--is-ancestor", STREAMS_SINCE, commit], check=True)


def test_the_full_budget_rewrites_like_the_preset():
    preset = RunConfig.preset("default")
    assert configure_method("compevo", _inputs()).run.rounds == preset.run.rounds


def test_a_system_is_trained_sealed_and_described(monkeypatch):
    def configure(system, inputs):
        return find_variant(system).configure(tiny(run__rounds=1, run__seed=inputs.seed))

    monkeypatch.setattr(agent_systems, "configure_method", configure)
    inputs = _inputs(seed=2, news=news_pool())
    fitted = fit_method("mael", inputs)

    views = windows("test", 2, first_day=40).views()
    assert fitted.predict(views).shape == (len(views), 48)
    assert np.isfinite(fitted.predict(views)).all()
    assert fitted.count_answers() == (0, 2 * 3 * len(views))

    facts = fitted.facts
    assert (fitted.name, facts.backbone, facts.news_top_k) == ("mael", "tiny-random", 2)
    assert facts.config_hash == configure("mael", inputs).hash
    assert facts.seedless_hash == configure("mael", replace(inputs, seed=0)).hash
    assert len(facts.artifact_hash) == 64
    # Three agents, each with an adapter and a head: a third of them is one agent's.
    assert facts.trainable_parameters and facts.trainable_parameters % 3 == 0


@pytest.mark.slow
def test_stopped_trainings_continue_and_finished_ones_stay(tmp_path, monkeypatch):
    config = tiny(run__rounds=3, run__checkpoint_every=1, evolution__every=3)
    monkeypatch.setattr(
        agent_systems, "configure_method", lambda system, *_: find_variant(system).configure(config)
    )
    rounds = []
    training = TrainingPlan(folder=tmp_path / "run", on_round=lambda it: rounds.append(it.round))
    inputs = _inputs(news=news_pool(), training=training)
    stopped = replace(training, on_round=kill_after(1))
    with pytest.raises(Killed):
        fit_method("compevo", replace(inputs, training=stopped))
    fitted = fit_method("compevo", inputs)
    assert rounds == [2]

    # The clock of a second fit would say nothing of a training that was finished before it.
    summary = RunFolder(tmp_path / "run").read_metrics()
    for found in (fitted, fit_method("compevo", inputs)):
        assert found.facts.train_seconds == summary["seconds"] > 0
        assert found.facts.peak_memory_gb == summary["peak_memory_gb"] > 0
        assert found.facts.chosen_round == summary["chosen_round"]
        assert found.facts.blend == pytest.approx(np.mean(summary["calibration"]["blend"]))
    assert rounds == [2]


@pytest.mark.slow
def test_built_systems_have_the_published_parameters():
    # Each count is of a system that was built, and equal to the sum of its parts.
    report = build_parameter_report("Llama-3.1-8B")
    systems = report["methods"]

    assert {name: systems[name]["millions"] for name in systems} == PUBLISHED_MILLIONS
    assert report["frozen_backbone_parameters"] == 8_030_261_248
    for system in systems.values():
        total = sum(part["parameters"] for part in system["parts"])
        assert total == system["trainable_parameters"]
    json.dumps(report)


@pytest.mark.slow
@pytest.mark.parametrize("stem", known_architectures())
def test_every_preset_has_its_published_size(stem):
    model = build_meta_model(load_architecture(stem))
    presets = resources.files("compevo_core.config") / "presets" / "architectures"
    published = json.loads((presets / f"{stem}.json").read_text(encoding="utf-8"))
    assert sum(weight.numel() for weight in model.parameters()) == int(published["parameters"])

    counted = list_trainable_parts(load_architecture(stem), "sa")[0]["parameters"]
    lora = LoraConfig(r=16, target_modules=list(LORA_TARGETS), task_type="CAUSAL_LM")
    with torch.device("meta"):
        adapted = get_peft_model(model, lora)
    trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert trained == counted


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_counted_system_is_the_trained_one(system):
    config = find_variant(system).configure(tiny())
    architecture = load_backbone(config.backbone, device="cpu").model.config
    parts = list_trainable_parts(architecture, system, agents=3, rank=4)
    counted = sum(part["parameters"] for part in parts)
    model = build_model(config)

    decoder = sum(p.numel() for p in model.decoder.module.parameters())
    assert model.trainable_parameters == counted + decoder


def test_an_unknown_empty_or_unlike_system_is_refused(monkeypatch):
    architecture = load_architecture("smollm2-135m")
    with pytest.raises(ConfigError, match="gpt"):
        list_trainable_parts(architecture, "gpt")
    with pytest.raises(ConfigError, match="agents"):
        list_trainable_parts(architecture, "compevo", agents=0)
    monkeypatch.setattr(agent_systems, "_PARTS", agent_systems._PARTS[:-1])
    with pytest.raises(ConfigError, match=r"compevo trains selection\.gates_A"):
        build_parameter_report("smollm2-135m")


def test_a_model_folder_completes_missing_sizes(tmp_path):
    sizes = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "vocab_size": 100}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(sizes))
    architecture = load_architecture(str(tmp_path))

    assert (architecture.head_dim, architecture.num_key_value_heads) == (8, 4)
    (adapter,) = list_trainable_parts(architecture, "sa", rank=2)
    assert adapter["parameters"] == 2 * 2 * (4 * 64 + 3 * 96)

    with pytest.raises(ConfigError, match="known: gemma-2-9b"):
        load_architecture("llama-9")
    file.write_text(json.dumps(sizes | {"hidden_size": 0}))
    with pytest.raises(ConfigError, match="hidden_size"):
        load_architecture(str(file))
    file.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_architecture(str(file))
