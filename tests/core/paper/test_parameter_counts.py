"""The published parameter counts, by arithmetic and on the meta device."""

import json

import pytest
from typer.testing import CliRunner

from compevo_core.errors import ConfigError
from compevo_core.lm.architectures import Architecture, known_architectures, load_architecture
from compevo_core.paper.parameter_counts import (
    METHODS,
    build_parameter_report,
    count_on_meta,
    list_trainable_parts,
)
from compevo_pipeline.cli.main import app
from tests.support.models import build_model

PUBLISHED_MILLIONS = {
    "sa": 41.9,
    "mael": 419.4,
    "mae-gpt": 419.4,
    "mad-rl": 1258.4,
    "compevo": 922.8,
}
#: By hand: blocks x rank 16 x the summed widths (in + out) of the seven linear layers; and the
#: model's hidden size.
ONE_ADAPTER = {
    "mistral-7b-v0.1": (32 * 16 * (8192 + 2 * 5120 + 8192 + 3 * 18432), 4096),
    "gemma-2-9b": (42 * 16 * (2 * 7680 + 2 * 5632 + 3 * 17920), 3584),
    "llama-2-7b": (32 * 16 * (4 * 8192 + 3 * 15104), 4096),
    "llama-3.1-8b": (32 * 16 * (2 * 8192 + 2 * 5120 + 3 * 18432), 4096),
    "llama-3.1-70b": (80 * 16 * (2 * 16384 + 2 * 9216 + 3 * 36864), 8192),
    "qwen2.5-7b": (28 * 16 * (2 * 7168 + 2 * 4096 + 3 * 22528), 3584),
    "qwen2.5-32b": (64 * 16 * (2 * 10240 + 2 * 6144 + 3 * 32768), 5120),
}


def published_total(stem: str) -> int:
    from importlib import resources

    text = (
        resources.files("compevo_core.config") / "presets" / "architectures" / f"{stem}.json"
    ).read_text(encoding="utf-8")
    return int(json.loads(text)["parameters"])


def test_llama_3_1_8b_gives_the_five_published_counts_verified_on_the_meta_device() -> None:
    report = build_parameter_report("Llama-3.1-8B")
    assert {m: report["methods"][m]["millions"] for m in METHODS} == PUBLISHED_MILLIONS
    assert report["verified_on_meta_device"]
    assert report["frozen_backbone_parameters"] == 8_030_261_248
    json.dumps(report)


def test_compevo_parts_are_twenty_adapters_two_gates_one_projection_scores_and_gates() -> None:
    parts = {
        p.part: p.parameters
        for p in list_trainable_parts(load_architecture("llama-3.1-8b"), "compevo")
    }
    assert parts == {
        "forecast adapters": 419_430_400,
        "logic adapters": 419_430_400,
        "fusion gates": 67_117_056,
        "soft-prompt projection": 16_781_312,
        "interaction scores": 100,
        "selection gates": 10,
    }
    assert sum(parts.values()) == 922_759_278


def test_mad_rl_has_thirty_adapters_and_twenty_one_output_heads() -> None:
    parts = list_trainable_parts(load_architecture("llama-3.1-8b"), "mad-rl")
    assert sum(p.copies for p in parts if p.part.endswith("adapters")) == 30
    assert sum(p.parameters for p in parts) == 30 * 41_943_040 + 20 * 4_097


def test_the_tensors_of_one_adapter_add_up_to_the_adapter() -> None:
    adapter = build_parameter_report("gemma-2-9b", verify=False)["adapter"]
    each = [
        t["lora_A"][0] * t["lora_A"][1] + t["lora_B"][0] * t["lora_B"][1]
        for t in adapter["tensors_of_one_block"]
    ]
    assert each == [t["parameters"] for t in adapter["tensors_of_one_block"]]
    assert adapter["blocks"] * sum(each) == adapter["parameters"]


@pytest.mark.parametrize("stem", known_architectures())
def test_every_preset_matches_its_published_size_and_peft_on_the_meta_device(stem: str) -> None:
    architecture = load_architecture(stem)
    counted = count_on_meta(architecture, rank=16)
    assert counted["backbone"] == published_total(stem)
    assert counted["adapter"] == architecture.adapter_parameters(16)


def test_the_eight_architectures_of_the_paper_and_the_packaged_one_are_there() -> None:
    assert known_architectures() == [
        "gemma-2-9b",
        "llama-2-7b",
        "llama-3.1-70b",
        "llama-3.1-8b",
        "mistral-7b-v0.1",
        "qwen2.5-32b",
        "qwen2.5-7b",
        "smollm2-135m",
    ]


@pytest.mark.parametrize("backbone", ONE_ADAPTER)
def test_the_command_prints_counts_by_part_and_method_and_the_tensors_for_each_backbone(
    backbone: str,
) -> None:
    result = CliRunner().invoke(app, ["params", "--backbone", backbone])
    report = json.loads(result.output)
    adapter, d = ONE_ADAPTER[backbone]
    assert report["adapter"]["parameters"] == adapter
    totals = {
        "sa": adapter,
        "mael": 10 * adapter,
        "mae-gpt": 10 * adapter,
        "mad-rl": 30 * adapter + 20 * (d + 1),
        "compevo": 20 * adapter + 2 * (2 * d * d + d) + (d * d + d) + 10 * 10 + 10,
    }
    assert {m: report["methods"][m]["trainable_parameters"] for m in METHODS} == totals
    for method in METHODS:
        parts = report["methods"][method]["parts"]
        assert sum(p["parameters"] for p in parts) == totals[method]
        assert all(p["copies"] * p["each"] == p["parameters"] and p["tensors"] for p in parts)
    block = report["adapter"]["tensors_of_one_block"]
    assert [t["module"] for t in block] == [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    listed = sum(a * b for t in block for a, b in (t["lora_A"], t["lora_B"]))
    assert report["adapter"]["blocks"] * listed == adapter
    assert report["frozen_backbone_parameters"] == published_total(backbone)


def test_the_counts_are_those_of_the_population_that_trains() -> None:
    from compevo_core.config.run import RunConfig
    from compevo_core.lm.backbone import load_backbone

    config = RunConfig.preset("tiny").with_overrides({"forecast.decoder": "text"})
    learner = build_model(config)
    plain = load_backbone(config.backbone, device="cpu").model.config.to_dict()
    parts = list_trainable_parts(
        Architecture.from_mapping(plain, name="tiny"), "compevo", agents=3, rank=4
    )
    trained = [*learner.forecast_parameters(), *learner.policy_parameters()]
    assert sum(p.numel() for p in trained) == sum(part.parameters for part in parts)


def test_a_model_folder_is_read_and_missing_head_dim_and_key_value_heads_follow_the_usual_rule(
    tmp_path,
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 100,
                "rope_theta": 1e4,
            }
        )
    )
    architecture = load_architecture(str(tmp_path))
    assert (architecture.head_dim, architecture.num_key_value_heads) == (8, 4)
    assert architecture.adapter_parameters(2) == 2 * 2 * (4 * 64 + 3 * 96)
    assert count_on_meta(architecture, rank=2)["adapter"] == architecture.adapter_parameters(2)


@pytest.mark.parametrize(
    ("backbone", "says"), [("llama-9", "known: gemma-2-9b"), ("nowhere/config.json", "known")]
)
def test_an_unknown_backbone_is_refused_with_the_known_names(backbone: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load_architecture(backbone)


def test_broken_json_and_missing_sizes_are_refused_by_name(tmp_path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load_architecture(str(broken))
    with pytest.raises(ConfigError, match="hidden_size"):
        Architecture.from_mapping({"model_type": "llama", "hidden_size": 0}, name="x")


def test_an_unknown_method_or_empty_population_is_refused() -> None:
    architecture = load_architecture("smollm2-135m")
    with pytest.raises(ConfigError, match="not one of"):
        list_trainable_parts(architecture, "gpt")
    with pytest.raises(ConfigError, match="at least 1"):
        list_trainable_parts(architecture, "compevo", agents=0)
