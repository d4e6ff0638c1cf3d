"""Cases of memory and of the preset as it stands: what they count, and that they refuse."""

import pytest

from benchmarks import cases, systems
from benchmarks.cases import sample_every_token
from benchmarks.world import Case, World

# The preset ``default`` scores its logics by what ridges read.
READS = {
    "news.linear": True,
    "news.fit": "joint",
    "evolution.credit": "contribution",
    "grpo.carry": "record",
    "grpo.reward_windows": 0,
    "run.fixed_logics": 0,
}


def measure(name, agents, settings=()):
    case = Case(name=name, agents=agents, repeats=1, preset="tiny", settings=dict(settings))
    return cases.measure_case(case)


@pytest.mark.parametrize("settings", [{}, READS])
def test_both_gradients_of_the_forecast_phase_are_equal(settings):
    found = {(row["case"], row["dtype"]): row for row in measure("gradient", 2, settings)}
    assert found["gradient-difference", "float32"]["ratio"] < 1e-5
    row = found["gradient", "float32"]
    assert row["ratio"] == pytest.approx(row["reference_seconds"] / row["ours_seconds"])


def test_gradients_that_differ_are_an_error(monkeypatch):
    monkeypatch.setitem(cases.LARGEST_DIFFERENCE, "mixed", -1.0)
    with pytest.raises(ArithmeticError, match="by agent, differ"):
        measure("gradient", 2)


def test_training_state_is_counted_apart_from_the_peak():
    one, three = (measure("memory-by-agent", agents)[0] for agents in (1, 3))
    world = World(Case(name="", preset="tiny").configure(), 1)
    model = world.model
    forecasting = model.adapter_parameters(), model.head_parameters(), model.gate_parameters()
    trained = sum(each.numel() for part in forecasting for each in part)
    policy = sum(each.numel() for each in model.policy_parameters())
    # Float32: value, gradient and two averages of what is trained, and the value of the others.
    assert one["state_gb"] == pytest.approx(4 * (4 * trained + policy) / 1e9, rel=0.01)
    assert one["state_gb"] < three["state_gb"] < three["peak_memory_gb"]


@pytest.mark.parametrize("settings", [{}, READS])
@pytest.mark.parametrize(
    "case", ["preset-round", pytest.param("preset-rewriting", marks=pytest.mark.slow)]
)
def test_a_case_of_the_preset_counts_its_tokens(case, settings):
    (row,) = measure(case, 3, settings)
    assert row["case"] == case
    assert row["reference_seconds"] is None
    assert row["tokens"] > 0


@pytest.mark.slow
def test_both_samplers_must_write_the_same_tokens(monkeypatch):
    (row,) = measure("sampling", 2)
    assert row["case"] == "sampling" and row["tokens"] > 0

    def write_something_else(population, cache, grammar, settings):
        ids, mask = sample_every_token(population, cache, grammar, settings)
        return ids + 1, mask

    monkeypatch.setattr(cases, "sample_every_token", write_something_else)
    with pytest.raises(ArithmeticError, match="write other tokens"):
        measure("sampling", 2)


@pytest.mark.slow
def test_forecasts_must_have_the_loss_of_peft(monkeypatch):
    assert {row["dtype"] for row in measure("backward", 2)} == {"mixed", "float32"}

    monkeypatch.setitem(cases.LARGEST_GAP, "float32", -1.0)
    with pytest.raises(ArithmeticError, match=r"float32 .* 2 agents"):
        measure("backward", 2)


@pytest.mark.slow
@pytest.mark.parametrize("system", systems.SYSTEMS)
def test_a_system_is_what_its_row_says(system):
    config = systems.build_config(system, "tiny")
    assert (config.population.system, config.population.agents) == (system, 3)
    row = systems.measure(system, "tiny")
    assert row["rounds"] == 3
    # 395 batches of five windows are an epoch of the paper's preset.
    epoch = row["round_seconds"] * 1975 / config.run.batch_size
    assert row["epoch_hours"] == pytest.approx(epoch / 3600)
