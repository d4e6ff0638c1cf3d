"""Measure one case in a process of its own: ``python -m benchmarks.cases round --agents 3``.

What belongs here: timing the cases of a population, and checking that both ways computed the same.
What does not: the table of results (``engine_rows``), other ways of doing a round (``peft_round``,
``trl_step``), single products (``hardware_cases``), memory (``memory_cases``), the preset alone
(``preset_cases``), sampling under a grammar (``sampling_cases``).

A case prints one line a result, ``RESULT`` and a JSON object. The ratio is reference over ours
(above 1: ours is faster) unless the case says otherwise. Peak memory is the high-water mark of the
process when our part is done and the reference has not begun. Cases that time both our types
(:data:`LARGEST_GAP`) compare them with one and the same reference, which is float32; their peak is
that of the types timed so far.

Shapes: A agents, G samples of an agent, B windows, H horizon.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
import typer
from torch import Tensor, nn

from benchmarks.hardware_cases import measure_ceiling, measure_products
from benchmarks.measuring import Result, build_result, time_call
from benchmarks.memory_cases import measure_gradients, measure_memory
from benchmarks.peft_round import PeftRound, stack_truths
from benchmarks.preset_cases import measure_pass, measure_preset_inference, measure_rounds
from benchmarks.sampling_cases import measure_sampling
from benchmarks.world import Replay, World, build_compared_config
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.grpo import group_advantages
from compevo_core.agents.logic_writer import seed_agent_generators
from compevo_core.agents.selection import aggregate_forecasts, forecast_error
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.runtime.process_memory import peak_memory_gigabytes
from compevo_core.training.update import PolicyStep

RESULT_MARK = "RESULT "

#: The types of our products with frozen layers, and the largest relative difference between our
#: forecast loss and the reference's: with more, the two do not do the same work. The samples of the
#: last type are those that the reference scores.
LARGEST_GAP = {"mixed": 2e-2, "float32": 1e-3}

#: What the reference of a row is, in words.
PEFT_BY_AGENT = "PEFT, an adapter set once an agent, padded batch"
PEFT_MIXED = "PEFT, mixed batch by adapter_names"
TRL_BY_AGENT = "TRL's trainer, agent by agent"


@dataclasses.dataclass
class _MeasuredRounds:
    """Our rounds in one type, without the world: the next type must not find it in memory."""

    seconds: list[float]
    records: list[Result]
    replays: list[Replay]
    peak_memory_gb: float


def measure_round(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure a whole round, against one adapter at a time."""
    measured: dict[str, _MeasuredRounds] = {}
    for dtype in LARGEST_GAP:
        world = World(build_compared_config(agents, quick=quick, dtype=dtype), repeats)
        measured[dtype] = ours = _run_rounds(world)

    reference = PeftRound(world)
    reference_seconds: list[float] = []
    reference_records: list[Result] = []
    for day, replay in enumerate(ours.replays):
        world.reset()
        reference.reset()
        began = time.perf_counter()
        reference_records.append(reference.step(world.days[day], replay))
        reference_seconds.append(time.perf_counter() - began)

    results = []
    for dtype, ours in measured.items():
        parity = compare_records(ours.records, reference_records)
        _check_parity(parity, dtype, agents)
        row = build_result(
            "round",
            world,
            ours.seconds,
            reference_seconds,
            ours.peak_memory_gb,
            other_way=PEFT_BY_AGENT,
        )
        results.append(row | {"dtype": dtype, "parity": parity})
    return results


def measure_policy(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure candidates, group, rewards and policy update, against TRL's trainer.

    TRL's step is measured for one agent and counted once per agent.
    """
    from benchmarks.trl_step import time_trl_steps  # loads TRL: only where it is measured

    measured = {}
    for dtype in LARGEST_GAP:
        world = World(build_compared_config(agents, quick=quick, dtype=dtype), repeats)
        seconds = [_time_policy_step(world, day) for day in range(repeats)]
        measured[dtype] = (seconds, peak_memory_gigabytes())

    reference = PeftRound(world)
    reference.reset()
    steps = time_trl_steps(reference, world.observe(), _select_reward_examples(world, 0), repeats)
    reference_seconds = [agents * step for step in steps]
    return [
        build_result("policy", world, seconds, reference_seconds, peak, other_way=TRL_BY_AGENT)
        | {"dtype": dtype}
        for dtype, (seconds, peak) in measured.items()
    ]


def measure_inference(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure the forecasts of one batch of windows, against PEFT in both of its ways."""
    measured = {}
    for dtype in LARGEST_GAP:
        world = World(build_compared_config(agents, quick=quick, dtype=dtype), repeats)
        world.reset()
        timed = _time_days(world, world.model.executor(world.news_retriever))
        measured[dtype] = (timed, peak_memory_gigabytes())

    # Averaging costs nothing beside the forecasts; weighted as ours, the ways can be compared.
    population = PeftRound(world).population
    population.reset()
    results = []
    for case, other_way in (("inference", PEFT_BY_AGENT), ("inference-mixed", PEFT_MIXED)):
        population.forecasts.is_mixed = other_way == PEFT_MIXED
        reference = _time_days(world, population.executor)
        reference_seconds = [seconds for seconds, _ in reference]

        for dtype, (timed, peak) in measured.items():
            gap = max(
                float((ours_BH - theirs_BH).abs().max())
                for (_, ours_BH), (_, theirs_BH) in zip(timed, reference, strict=True)
            )
            seconds = [each for each, _ in timed]
            row = build_result(case, world, seconds, reference_seconds, peak, other_way=other_way)
            results.append(row | {"dtype": dtype, "parity": {"forecast": gap}})
    return results


CASES: dict[str, Callable[..., list[Result]]] = {
    "ceiling": measure_ceiling,
    "gradient": measure_gradients,
    "inference": measure_inference,
    "memory-by-agent": measure_memory("by-agent"),
    "memory-joint": measure_memory("joint"),
    "policy": measure_policy,
    "preset-inference": measure_preset_inference,
    "preset-pass": measure_pass,
    "preset-rewriting": measure_rounds(rewrites=True),
    "preset-round": measure_rounds(rewrites=False),
    "product": measure_products,
    "round": measure_round,
    "sampling": measure_sampling,
}


def compare_records(ours: list[Result], theirs: list[Result]) -> dict[str, float]:
    """Return the largest difference of each number over the repeats, relative to its size.

    The policy loss is a mean of advantages that sum to zero, so its size says nothing: its
    difference is absolute.
    """
    differences = {}
    for name in ("loss_pred", "loss_own", "loss_div", "loss_pg", "grad_norm", "group_rewards"):
        pairs = [
            (np.asarray(our[name]), np.asarray(their[name]))
            for our, their in zip(ours, theirs, strict=True)
        ]

        differences[name] = max(
            float(np.abs(our - their).max() / _size(name, their)) for our, their in pairs
        )
    return differences


def _size(name: str, values: npt.NDArray[np.float64]) -> float:
    # A term that is off is zero both ways.
    return 1.0 if name == "loss_pg" else float(np.abs(values).max()) or 1.0


def _check_parity(parity: dict[str, float], dtype: str, agents: int) -> None:
    if parity["loss_pred"] > LARGEST_GAP[dtype]:
        raise ArithmeticError(
            f"{dtype} round with {agents} agents: the forecast losses of the two ways differ by "
            f"{parity['loss_pred']:.2e} of their size, so they no longer do the same work; bring "
            "benchmarks/peft_round.py in line with compevo_core/training/round.py"
        )


def _run_rounds(world: World) -> _MeasuredRounds:
    """Do one round on each day of the world."""
    seconds: list[float] = []
    records: list[Result] = []
    replays: list[Replay] = []
    for day in range(len(world.days)):
        trainer = world.build_replay_trainer()
        state = world.start_state(trainer)

        began = time.perf_counter()
        records.append(world.step(trainer, state, day))
        seconds.append(time.perf_counter() - began)
        replays.append(World.get_replay(trainer))
    return _MeasuredRounds(seconds, records, replays, peak_memory_gigabytes())


def _select_reward_examples(world: World, day: int) -> list[ForecastExample]:
    count = world.config.grpo.reward_windows or len(world.days[day])
    return world.days[day][:count]


def _time_policy_step(world: World, day: int) -> float:
    """Return the seconds of one policy step of all agents."""
    config = world.config
    trainer = world.build_replay_trainer()
    examples = _select_reward_examples(world, day)
    previous_AD = trainer.writer.encode_logics(world.logics)
    generators = seed_agent_generators(
        day, world.model.shards.local_agents, world.model.backbone.device
    )

    def step() -> None:
        proposal = trainer.writer.propose(world.observe(), previous_AD, generators)

        forecasts = trainer.executor.forecast_groups(proposal.group_logics, examples)
        error_AGB = forecast_error(
            forecasts.values_AGBH, stack_truths(examples), config.objective.metric
        )
        advantage_AG, _ = group_advantages(-error_AGB.mean(-1), proposal.is_empty_AG)

        PolicyStep(trainer.writer, proposal, advantage_AG, config).backward(0)
        nn.utils.clip_grad_norm_(trainer.model.policy_parameters(), config.optim.max_grad_norm)
        trainer.optimizer.step()

    return time_call(step)[0]


@torch.no_grad()
def _time_days(world: World, executor: StrategyExecutor) -> list[tuple[float, Tensor]]:
    """Time the weighted forecast (B, H) of each day, a few windows at a time as in training."""
    size = world.config.run.micro_batch_size
    _forecast_weighted(world, executor, world.days[0][:size])  # warms up
    timed = []
    for examples in world.days:
        began = time.perf_counter()
        parts = [examples[start : start + size] for start in range(0, len(examples), size)]
        forecast_BH = torch.cat([_forecast_weighted(world, executor, part) for part in parts])
        timed.append((time.perf_counter() - began, forecast_BH))
    return timed


def _forecast_weighted(
    world: World, executor: StrategyExecutor, part: Sequence[ForecastExample]
) -> Tensor:
    values_ABH = executor.forecast(world.logics, part).values_ABH
    weights_BA = world.model.selection.weights([example.view.entity for example in part])
    return aggregate_forecasts(values_ABH, weights_BA)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    case: Annotated[str, typer.Argument(help=f"One of {', '.join(CASES)}.")],
    agents: Annotated[int, typer.Option(help="Number of agents.")] = 1,
    repeats: Annotated[int, typer.Option(help="Runs of the case.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="The tiny random backbone.")] = False,
) -> None:
    """Measure one case and print its results; benchmarks.engine runs them all."""
    if case not in CASES:
        raise typer.BadParameter(f"no case {case!r}; known: {', '.join(CASES)}")

    for result in CASES[case](agents, repeats, quick=quick):
        sys.stdout.write(RESULT_MARK + json.dumps(result) + "\n")


if __name__ == "__main__":
    app()
