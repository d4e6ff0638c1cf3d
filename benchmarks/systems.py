"""What the paper's systems of agents cost, on a backbone of the paper's shape.

What belongs here: hours an epoch, seconds of a step of forecasts and the peak of memory, by system,
as in the paper's table of efficiency. What does not: errors, which a random backbone says nothing
about (``compevo paper benchmark`` has both for a trained one).

All systems have the preset ``paper`` with three agents, answers by the head, which MAD-RL needs,
and the tests' encoder. A step is the forecast of one batch of windows by all agents, with its news.
"""

import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clock import name_gpu, read_peak, time_repeats
from benchmarks.gpu import LARGE, prepare_backbone
from benchmarks.rows import LIBRARIES, Benchmark, Row
from benchmarks.world import TRAIN_WINDOWS
from compevo_core.config.run import RunConfig
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.paper.changes import find_variant
from compevo_core.paper.report.paper_tables import SYSTEMS
from compevo_core.training.trainer import train
from tests.support.population import news_pool, windows

_ROUNDS = 5  # of which the first warms up, and the last is validated


def build_config(system: str, backbone: str) -> RunConfig:
    """Build the settings of a system that trains a few rounds; ``tiny`` has its own preset."""
    preset = RunConfig.preset("tiny" if backbone == "tiny" else "paper")
    settings: dict[str, Any] = {
        "population.agents": 3,
        "forecast.decoder": "head",
        "news.encoder": RunConfig.preset("tiny").news.encoder,
        "run.supervised_epochs": 0,
        "run.rounds": _ROUNDS,
        "evolution.every": 1,
    }
    if backbone != "tiny":
        settings["backbone.name_or_path"] = backbone
    return find_variant(system).configure(preset.with_overrides(settings))


def measure(system: str, backbone: str) -> Row:
    """Train a system for a few rounds, forecast a few batches, and return its row."""
    config = build_config(system, backbone)
    news = news_pool()
    days = math.ceil(_ROUNDS * config.run.batch_size / 2)  # two windows a day
    ends: list[float] = []

    with tempfile.TemporaryDirectory() as folder:
        train(
            config,
            windows("train", days),
            windows("val", 3, first_day=40),
            news,
            Path(folder),
            on_round=lambda _: ends.append(time.perf_counter()),
        )
        peak = read_peak()
        forecaster = CompEvoForecaster.load(Path(folder), news)

    views = windows("test", config.run.batch_size, first_day=50).views()[: config.run.batch_size]
    steps = time_repeats(partial(forecaster.predict, views), 3)

    rounds = [end - begin for begin, end in itertools.pairwise(ends[:-1])]
    round_seconds = statistics.median(rounds)
    return {
        "system": system,
        "backbone": Path(backbone).name,
        "dtype": config.backbone.dtype,
        "agents": config.population.agents,
        "round_seconds": round_seconds,
        "epoch_hours": round_seconds * TRAIN_WINDOWS / config.run.batch_size / 3600,
        "step_seconds": statistics.median(steps),
        "peak_memory_gb": peak,
        "rounds": len(rounds),
        **name_gpu(),
    }


def measure_on_gpu(case: str, folder: Path) -> Iterator[Row]:
    """Yield the row of a system on random weights."""
    yield measure(case, str(prepare_backbone(folder, LARGE)))


BENCHMARK = Benchmark(
    name="systems",
    cases=SYSTEMS,
    measure=measure_on_gpu,
    key=("system",),
    libraries=LIBRARIES,
)

if __name__ == "__main__":
    BENCHMARK.main()
