"""The benchmark scripts run end to end on the tiny backbone, and both ways of a round do the same work."""

import csv
import math
from pathlib import Path

import pytest
import torch

from benchmarks import engine
from benchmarks.cases import CASES, MARK, _parity
from benchmarks.straightforward import Straightforward
from benchmarks.table import MARKERS, speed_markdown, with_table
from benchmarks.world import World, configuration
from compevo_core.lm.population import KINDS

REPO = Path(__file__).resolve().parents[2]
STATED_COLUMNS = [
    "case",
    "agents",
    "backbone",
    "dtype",
    "ours_seconds",
    "reference_seconds",
    "ratio",
    "peak_memory_gb",
    "repeats",
    "threads",
    "machine",
    "torch",
    "transformers",
    "peft",
    "trl",
    "commit",
]


@pytest.fixture(scope="module")
def played():
    """One round of two agents both ways, and what is needed to play the other way again."""
    world = World(configuration(2, quick=True), 1)
    player = world.start_over()
    ours = world.play(player, world.state(player), 0)
    replay = World.replay(player)
    ours["gradients"] = {
        (name, kind, part): getattr(layer, part)[kind].grad.clone()
        for kind in KINDS
        for name, layer in world.learner.population.layers.items()
        for part in ("lora_a", "lora_b")
    }
    world.start_over()
    straight = Straightforward(world)
    straight.start_over()
    theirs = straight.play(world.tasks[0], replay)
    theirs["gradients"] = {
        name: parameter.grad.clone()
        for name, parameter in straight.model.named_parameters()
        if parameter.grad is not None
    }
    return world, replay, straight, ours, theirs


def test_both_ways_of_a_round_give_the_same_losses_rewards_and_gradient_norm(played):
    *_, ours, theirs = played
    difference = _parity([ours], [theirs])
    assert difference["loss_pred"] < 1e-5
    assert difference["loss_div"] < 1e-5
    assert difference["group_rewards"] < 1e-5
    assert (
        difference["loss_pg"] < 1e-4
    )  # advantages magnify the last digits of rewards that lie close together
    assert difference["grad_norm"] < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_of_a_round_give_every_adapter_the_same_gradient(played, kind):
    *_, ours, theirs = played
    for (name, other, part), gradient in ours["gradients"].items():
        for agent in range(2):
            if other == kind:
                letter = part[-1].upper()
                found = theirs["gradients"][
                    f"base_model.model.{name}.lora_{letter}.{kind}_{agent:02d}.weight"
                ]
                assert float(found.abs().max()) > 0
                assert torch.allclose(
                    gradient[agent], found, rtol=1e-3, atol=1e-3 * float(gradient.abs().max())
                )


def test_the_rewards_of_a_group_differ_so_that_the_policy_term_is_at_work(played):
    *_, ours, _ = played
    assert ours["equal_groups"] == 0
    assert all(len(set(group)) > 1 for group in ours["group_rewards"])


def test_a_changed_adapter_of_one_agent_shows_in_the_forecast_loss(played):
    world, replay, straight, ours, _ = played
    straight.start_over()
    with torch.no_grad():
        for name, parameter in straight.model.named_parameters():
            if ".forecast_01." in name:
                parameter.mul_(5.0)
    assert _parity([ours], [straight.play(world.tasks[0], replay)])["loss_pred"] > 1e-5


def test_both_ways_generate_the_stated_number_of_tokens(played):
    world, replay, straight, *_ = played
    config = world.config
    assert replay.ids_AGT.shape == (2, config.grpo.group_size, config.evolution.logic_tokens)
    assert [len(ids) for ids in straight.generate_candidates(replay)] == 2 * [
        config.evolution.logic_tokens
    ]
    assert [tuple(ids.shape) for ids in straight.generate_groups(replay, None)] == 2 * [
        (config.grpo.group_size, config.evolution.logic_tokens)
    ]


@pytest.mark.parametrize("case", ["inference", "policy"])
def test_a_case_times_both_ways(case):
    rows = CASES[case](2, 1, quick=True)
    assert [row["dtype"] for row in rows] == ["mixed", "float32"]
    for row, largest in zip(rows, (0.02, 1e-5), strict=True):
        assert row["ratio"] == pytest.approx(row["reference_seconds"] / row["ours_seconds"])
        assert row["peak_memory_gb"] > 0.05
        assert row.get("parity", {"forecast": 0.0})["forecast"] < largest
    assert case == "policy" or rows[0]["parity"]["forecast"] > 0


def in_process(case, agents, repeats, quick, threads):
    """Real measurements of the cheap cases; a made-up one for a round, whose parts are tested above."""
    if case in ("ceiling", "memory", "product"):
        return CASES[case](agents, repeats, quick=quick)
    return [
        {
            "case": case,
            "agents": agents,
            "backbone": "tiny-random",
            "dtype": "float32",
            "ours_seconds": 2.0 * agents,
            "reference_seconds": 9.0 * agents,
            "ratio": 4.5,
            "peak_memory_gb": 1.0,
            "repeats": repeats,
            "threads": 1,
        }
    ]


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_script_writes_the_stated_columns_and_its_derived_rows(tmp_path):
    out = tmp_path / "engine.csv"
    engine.run(engine.PLAN, (1, 3), 1, out, quick=True, runner=in_process)
    rows = table(out)
    assert list(rows[0]) == STATED_COLUMNS
    found = {(row["case"], int(row["agents"])): row for row in rows}
    assert {case for case, _ in found} == {
        *engine.PLAN,
        "matmul-2048",
        "backbone-forward",
        "products-3-rows",
        "products-24-rows",
        "products-768-rows",
        "round-exponent",
    } - {"ceiling", "product"}
    assert float(found["round-exponent", 3]["ratio"]) == pytest.approx(1.0)
    assert float(found["matmul-2048", 1]["ratio"]) > 0
    assert all(row["machine"] and row["torch"] and row["commit"] for row in rows)


def test_a_second_run_replaces_its_own_rows_and_keeps_the_others(tmp_path):
    out = tmp_path / "engine.csv"
    engine.run(["round", "inference"], (1, 3), 1, out, runner=in_process)
    engine.run(["round"], (3,), 2, out, runner=in_process)
    repeats = {(row["case"], row["agents"]): row["repeats"] for row in table(out)}
    assert repeats == {
        ("inference", "1"): "1",
        ("inference", "3"): "1",
        ("round", "1"): "1",
        ("round", "3"): "2",
        ("round-exponent", "3"): "2",
    }


def test_the_exponent_is_the_slope_of_log_seconds_over_log_agents():
    rows = [{"agents": n, "ours_seconds": 3.0 * n**1.2} for n in (1, 3, 10)]
    assert math.isclose(engine._exponent(rows), 1.2)


def test_a_table_with_other_columns_is_refused(tmp_path):
    (tmp_path / "engine.csv").write_text("case,seconds\n")
    with pytest.raises(ValueError, match="delete it and measure again"):
        engine.read(tmp_path / "engine.csv")


def test_a_quick_run_never_overwrites_the_committed_table():
    with pytest.raises(SystemExit):
        engine.main(["--quick"])


def test_a_case_in_its_own_process_hands_back_its_results():
    rows = engine.measure_apart("ceiling", 1, 1, True, 1)
    assert [row["case"] for row in rows] == ["matmul-2048", "backbone-forward"]
    assert rows[0]["threads"] == 1
    assert engine._MARK == MARK


def test_a_case_that_fails_says_how_to_run_it_alone(monkeypatch):
    monkeypatch.setattr(engine.sys, "executable", "false")
    with pytest.raises(RuntimeError, match=r"benchmarks\.cases round --agents 1"):
        engine.measure_apart("round", 1, 1, True, 1)


def test_the_readmes_table_of_speed_is_that_of_the_committed_rows():
    rows = engine.read(engine.RESULTS)
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    assert with_table(readme, speed_markdown(rows), MARKERS) == readme, (
        "README.md is out of date: run `make readme`"
    )
    assert {
        (case, agents) for case in ("round", "policy", "inference") for agents in ("1", "3", "10")
    } <= {(row["case"], row["agents"]) for row in rows}


def test_what_the_readme_says_of_the_targets_are_numbers_of_the_committed_rows():
    found = {(row["case"], row["agents"], row["dtype"]): row for row in engine.read(engine.RESULTS)}
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    text = " ".join(
        readme[
            readme.index("Against the targets set") : readme.index("## Several processes")
        ].split()
    )

    def of(case, agents, dtype, column="ratio"):
        return float(found[case, str(agents), dtype][column])

    ours = {dtype: of("round", 10, dtype, "ours_seconds") for dtype in ("mixed", "float32")}
    trl = of("policy", 10, "float32", "reference_seconds")
    rest = [
        1 - of("policy", 10, dtype, "ours_seconds") / seconds for dtype, seconds in ours.items()
    ]
    assert all(0.3 < share < 0.37 for share in rest)  # "a third of it"
    assert (
        f"{of('round', 10, 'mixed'):.2f} with mixed types, and missed with {of('round', 10, 'float32'):.2f}"
        in text
    )
    assert (
        f"{of('policy', 10, 'mixed'):.2f} with mixed types, and missed with "
        f"{of('policy', 10, 'float32'):.2f}"
    ) in text
    assert f"({ours['mixed']:.1f} s mixed, {ours['float32']:.1f} s float32)" in text
    assert (
        f"take {trl:.1f} s: {trl / ours['mixed']:.1f} and {trl / ours['float32']:.1f} times as long"
        in text
    )
    assert (
        f"{1 / of('inference', 3, 'float32'):.2f} times in float32, "
        f"{1 / of('inference', 3, 'mixed'):.2f} mixed"
    ) in text
    peaks = [of("memory", agents, "float32", "peak_memory_gb") for agents in (10, 1)]
    assert (
        f"missed, {of('memory-ratio', 10, 'float32'):.2f} times ({peaks[0]:.1f} GB against {peaks[1]:.1f} GB"
        in text
    )
    assert (
        f"{of('round-exponent', 10, 'float32'):.2f} in float32 and "
        f"{of('round-exponent', 10, 'mixed'):.2f} mixed"
    ) in text
    assert f"ratios of {of('round', 1, 'float32'):.2f} and {of('round', 1, 'mixed'):.2f}" in text
