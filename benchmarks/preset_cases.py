"""Seconds and tokens of the preset as it stands: rounds, inference, a pass over the train windows.

What belongs here: cases without another way of doing the same. What does not: comparisons
(``cases``), memory (``memory_cases``).

Tokens are those that pass through the backbone's first layer, read or written.
"""

from collections.abc import Callable

import torch

from benchmarks.measuring import Result, TokenCounter, build_result, time_call
from benchmarks.world import World, build_config
from compevo_core.runtime.process_memory import peak_memory_gigabytes

_PASS_WINDOWS = 1975  # train windows of the archive
_INFERENCE_WINDOWS = 100
_QUICK_WINDOWS = 6


def measure_rounds(*, rewrites: bool) -> Callable[..., list[Result]]:
    """Return the case ``preset-round`` or ``preset-rewriting``."""

    def measure(agents: int, repeats: int, *, quick: bool) -> list[Result]:
        world = World(build_config(agents, quick=quick), repeats + 1)
        counter = TokenCounter(world.model.backbone)
        trainer = world.build_trainer(rewrites=rewrites)
        state = world.start_state(trainer)

        seconds, tokens = [], []
        for day in range(repeats + 1):
            counter.take()
            seconds.append(time_call(lambda day=day: world.step(trainer, state, day))[0])
            tokens.append(counter.take())

        case = "preset-rewriting" if rewrites else "preset-round"
        peak = peak_memory_gigabytes()
        # The first round warms up.
        read = round(sum(tokens[1:]) / repeats)
        return [build_result(case, world, seconds[1:], None, peak, tokens=read)]

    return measure


def measure_pass(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure one pass over the train windows without rewriting, validation left out."""
    del repeats
    windows = _QUICK_WINDOWS if quick else _PASS_WINDOWS
    config = build_config(agents, quick=quick)
    rounds = -(-windows // config.run.batch_size)
    world = World(config, rounds)
    counter = TokenCounter(world.model.backbone)
    trainer = world.build_trainer(rewrites=False)
    state = world.start_state(trainer)
    # The last round has the windows that are left.
    world.days[-1] = world.days[-1][: windows - (rounds - 1) * config.run.batch_size]

    def train() -> None:
        for day in range(rounds):
            world.step(trainer, state, day)

    counter.take()
    seconds, _ = time_call(train)
    case = f"preset-pass-{windows}"
    peak = peak_memory_gigabytes()
    return [build_result(case, world, [seconds], None, peak, tokens=counter.take())]


@torch.no_grad()
def measure_preset_inference(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure forecasts of 100 windows by all agents, retrieval included."""
    windows = _QUICK_WINDOWS if quick else _INFERENCE_WINDOWS
    config = build_config(agents, quick=quick)
    world = World(config, -(-windows // config.run.batch_size))
    counter = TokenCounter(world.model.backbone)
    executor = world.model.executor(world.news_retriever)
    examples = world.examples[:windows]
    size = config.run.micro_batch_size

    def forecast() -> None:
        for start in range(0, windows, size):
            executor.forecast(world.logics, examples[start : start + size])

    executor.forecast(world.logics, examples[:size])  # warms up
    counter.take()
    seconds = [time_call(forecast)[0] for _ in range(repeats)]
    tokens = counter.take() // repeats
    case = f"preset-inference-{windows}"
    return [build_result(case, world, seconds, None, peak_memory_gigabytes(), tokens=tokens)]
