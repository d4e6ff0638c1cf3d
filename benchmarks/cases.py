"""What is measured, one case at a time, in a process of its own: ``python -m benchmarks.cases round --agents 3``.

What belongs here: the timing of each case and the check that both ways computed the same. What does not: the table
of results (``engine``), the other way of doing a round (``straightforward``, ``trl_step``).
A case prints one line a result, ``RESULT`` and a JSON object. ``ratio`` is reference over ours (above 1: ours is
faster) unless the case says otherwise. Peak memory is the process's high-water mark when our part is done and the
reference has not begun. Cases that time both our types (``DTYPES``) hold them against one and the same reference, which
is float32; their peak is that of the types timed so far.
Legend: A agents, G samples of an agent, B windows, H horizon.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import linear

from benchmarks.straightforward import Straightforward, truth
from benchmarks.world import Replay, World, configuration
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.grpo import group_advantages
from compevo_core.agents.logic_writer import Observation, agent_generators
from compevo_core.agents.selection import aggregate, forecast_error
from compevo_core.lm.frozen_linear import product
from compevo_core.training.round import _PolicyStep

MARK = "RESULT "
#: The types of our products with frozen layers, and the largest relative difference between our forecast loss and the
#: reference's; more means that the two do not do the same work. The last is the one whose samples the reference scores.
DTYPES = {"mixed": 2e-2, "float32": 1e-3}
_PRODUCT, _PRODUCTS_A_REPEAT, _FORWARD_TOKENS = 2048, 5, 512
_QUICK_PRODUCT, _QUICK_TOKENS = 128, 64
_PRODUCT_ROWS = (3, 24, 768)

Result = dict[str, Any]


def round_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Seconds of a whole round, ours against one adapter at a time; the reference scores our float32 samples."""
    measured = []
    for dtype in DTYPES:
        world = World(configuration(agents, quick=quick, dtype=dtype), repeats)
        measured.append((dtype, *_rounds(world), _peak_gb()))
    replays, straight, reference, theirs = measured[-1][3], Straightforward(world), [], []
    for number, replay in enumerate(replays):
        world.start_over()
        straight.start_over()
        seconds, record = _timed(lambda n=number, r=replay: straight.step(world.tasks[n], r))
        reference.append(seconds)
        theirs.append(record)
    results = []
    for dtype, ours, records, _, peak in measured:
        parity = _parity(records, theirs)
        if parity["loss_pred"] > DTYPES[dtype]:
            raise ArithmeticError(
                f"{dtype} round with {agents} agents: the two ways' forecast losses differ by "
                f"{parity['loss_pred']:.2e} of their size, so they no longer do the same work; "
                "bring straightforward.py in line with compevo_core/training/round.py"
            )
        results.append(
            _result("round", world, ours, reference, peak) | {"dtype": dtype, "parity": parity}
        )
    return results


def policy_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Seconds of candidates, group, rewards and policy update of all agents against TRL's trainer agent by agent.

    TRL's step is measured for one agent and counted once per agent.
    """
    from benchmarks.trl_step import trl_step_seconds

    measured = []
    for dtype in DTYPES:
        world = World(configuration(agents, quick=quick, dtype=dtype), repeats)
        measured.append((dtype, [_policy(world, number) for number in range(repeats)], _peak_gb()))
    straight = Straightforward(world)
    straight.start_over()
    steps = trl_step_seconds(straight, _seen(world), _scored(world, 0), repeats)
    return [
        _result("policy", world, ours, [agents * seconds for seconds in steps], peak)
        | {"dtype": dtype}
        for dtype, ours, peak in measured
    ]


def inference_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Seconds of forecasting one day of windows: the population against independent agents averaged, one by one."""
    measured = []
    for dtype in DTYPES:
        world = World(configuration(agents, quick=quick, dtype=dtype), repeats)
        player = world.start_over()
        measured.append(
            (
                dtype,
                [
                    _timed(
                        lambda t=tasks, w=world, p=player: _forecast(
                            w, t, lambda part: p.executor.forecast(w.logics, part)[0]
                        )
                    )
                    for tasks in world.tasks
                ],
                _peak_gb(),
            )
        )
    straight = Straightforward(world)
    straight.start_over()
    # averaging costs nothing beside the forecasts; weighted as ours, the two can be compared
    other = [
        _timed(
            lambda t=tasks: _forecast(world, t, lambda part: straight.forecast(world.logics, part))
        )
        for tasks in world.tasks
    ]
    results = []
    for dtype, ours, peak in measured:
        gap = max(float((a - b).abs().max()) for (_, a), (_, b) in zip(ours, other, strict=True))
        results.append(
            _result("inference", world, [s for s, _ in ours], [s for s, _ in other], peak)
            | {"dtype": dtype, "parity": {"forecast": gap}}
        )
    return results


def memory_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Peak memory of one round of ours in a process that does nothing else; ``ours_seconds`` is that round's."""
    del repeats
    world = World(configuration(agents, quick=quick), 1)
    player = world.start_over()
    state = world.state(player)
    seconds, _ = _timed(lambda: world.step(player, state, 0))
    return [_result("memory", world, [seconds], None, _peak_gb())]


@torch.no_grad()
def ceiling_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """The processor's own ceiling and how near the backbone comes.

    ``matmul-2048``: seconds of one fp32 product of 2048 x 2048 matrices (``ratio`` is GFLOP/s).
    ``backbone-forward``: seconds of one prompt of 512 tokens, against the seconds its multiplications would take at
    that speed (``ratio`` is the share of the ceiling reached).
    """
    del agents
    world = World(configuration(1, quick=quick), 1)
    side = _QUICK_PRODUCT if quick else _PRODUCT
    a, b = torch.randn(2, side, side)
    torch.mm(a, b)
    products = [_timed(lambda: torch.mm(a, b))[0] for _ in range(_PRODUCTS_A_REPEAT * repeats)]
    speed = 2 * side**3 / statistics.median(products)
    backbone, tokens = world.learner.backbone, _QUICK_TOKENS if quick else _FORWARD_TOKENS
    ids = torch.randint(3, 200, (1, tokens), generator=torch.Generator().manual_seed(0))
    forwards = []
    for _ in range(repeats + 1):  # the first warms up
        forwards.append(_timed(lambda: backbone.decoder(input_ids=ids, use_cache=False))[0])
    layers = backbone.model.config.num_hidden_layers
    weights = sum(layer.base.weight.numel() for layer in world.learner.population.layers.values())
    # scores and their product with the values, causal: half of 2 x 2 T^2 D a layer
    flops = 2 * weights * tokens + 2 * tokens**2 * backbone.hidden_size * layers
    matmul = _result("matmul-2048", world, products, None, _peak_gb()) | {"ratio": speed / 1e9}
    forward = _result("backbone-forward", world, forwards[1:], [flops / speed], _peak_gb())
    return [row | {"repeats": repeats} for row in (matmul, forward)]


@torch.no_grad()
def product_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Seconds of products with all frozen layers for few rows (decoding) and many (reading), against torch's own."""
    del agents
    results = []
    for dtype in DTYPES:
        world = World(configuration(1, quick=quick, dtype=dtype), 1)
        weights = [layer.base.weight for layer in world.learner.population.layers.values()]
        plain = [weight.float() for weight in weights]
        for rows in _PRODUCT_ROWS:
            inputs = {
                width: torch.randn(rows, width) for width in {weight.shape[1] for weight in weights}
            }
            count = _PRODUCTS_A_REPEAT * repeats + 1  # the first warms up
            ours, other = [], []
            for _ in range(count):
                ours.append(
                    _timed(
                        lambda i=inputs, w=weights: [product(i[each.shape[1]], each) for each in w]
                    )[0]
                )
                other.append(
                    _timed(
                        lambda i=inputs, w=plain: [linear(i[each.shape[1]], each) for each in w]
                    )[0]
                )
            row = _result(f"products-{rows}-rows", world, ours[1:], other[1:], _peak_gb())
            results.append(row | {"repeats": repeats})
    return results


CASES: dict[str, Callable[..., list[Result]]] = {
    "ceiling": ceiling_case,
    "inference": inference_case,
    "memory": memory_case,
    "policy": policy_case,
    "product": product_case,
    "round": round_case,
}


def _rounds(world: World) -> tuple[list[float], list[Result], list[Replay]]:
    """One round on each day of the world: its seconds, its record, and what was sampled."""
    seconds, records, replays = [], [], []
    for number in range(len(world.tasks)):
        player = world.start_over()
        state = world.state(player)
        taken, record = _timed(lambda p=player, s=state, n=number: world.step(p, s, n))
        seconds.append(taken)
        records.append(record)
        replays.append(World.replay(player))
    return seconds, records, replays


def _seen(world: World) -> Observation:
    agents = world.config.population.agents
    count = min(world.config.population.exposed_peers, agents - 1)
    return Observation(
        world.logics,
        [-0.5 - 0.01 * i for i in range(agents)],
        [[(i + step) % agents for step in range(1, count + 1)] for i in range(agents)],
    )


def _scored(world: World, number: int) -> list[ForecastExample]:
    return world.tasks[number][: world.config.grpo.reward_windows or len(world.tasks[number])]


def _policy(world: World, number: int) -> float:
    """Seconds of one policy step of all agents."""
    player, config, tasks = world.start_over(), world.config, _scored(world, number)
    previous_AD = player.writer.encode_texts(world.logics)
    sampling = agent_generators(
        number, world.learner.shards.local_agents, world.learner.backbone.device
    )

    def step() -> None:
        proposal = player.writer.propose(_seen(world), previous_AD, sampling)
        group_AGBH, _ = player.executor.forecast_groups(proposal.texts, tasks)
        group_AG = -forecast_error(group_AGBH, truth(tasks), config.objective.metric).mean(-1)
        _PolicyStep(player.writer, proposal, group_advantages(group_AG)[0], config).backward(0)
        nn.utils.clip_grad_norm_(player.learner.policy_parameters(), config.optim.gradient_clip)
        player.optimizer.step()

    return _timed(step)[0]


@torch.no_grad()
def _forecast(
    world: World, tasks: list[ForecastExample], way: Callable[[list[ForecastExample]], torch.Tensor]
) -> torch.Tensor:
    """The weighted forecast (B, H) of a day, a few windows at a time as in training."""
    size, weights = world.config.run.micro_windows, world.learner.selection.weights()
    return torch.cat(
        [aggregate(way(tasks[i : i + size]), weights) for i in range(0, len(tasks), size)]
    )


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    out = work()
    return time.perf_counter() - began, out


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _parity(ours: list[Result], theirs: list[Result]) -> dict[str, float]:
    """Largest difference of each number over the repeats, relative to its size.

    The policy loss is a mean of advantages that sum to zero, so its size says nothing: its difference is absolute.
    """
    out = {}
    for name in ("loss_pred", "loss_div", "loss_pg", "grad_norm", "group_rewards"):
        pairs = [
            (np.asarray(a[name]), np.asarray(b[name])) for a, b in zip(ours, theirs, strict=True)
        ]
        out[name] = max(
            float(np.abs(a - b).max() / (1.0 if name == "loss_pg" else np.abs(b).max()))
            for a, b in pairs
        )
    return out


def _result(
    case: str, world: World, ours: list[float], reference: list[float] | None, peak_gb: float
) -> Result:
    mine = statistics.median(ours)
    other = None if reference is None else statistics.median(reference)
    return {
        "case": case,
        "agents": world.config.population.agents,
        "backbone": world.config.backbone.spec,
        "dtype": world.config.backbone.dtype,
        "ours_seconds": mine,
        "reference_seconds": other,
        "ratio": None if other is None else other / mine,
        "peak_memory_gb": peak_gb,
        "repeats": len(ours),
        "threads": torch.get_num_threads(),
        "ours_all": ours,
        "reference_all": reference,
    }


def main(arguments: list[str] | None = None) -> None:
    """Measures one case and prints its results."""
    parser = argparse.ArgumentParser(
        description="Measures one case; benchmarks.engine runs them all."
    )
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the tiny random backbone")
    options = parser.parse_args(arguments)
    for result in CASES[options.case](options.agents, options.repeats, quick=options.quick):
        sys.stdout.write(MARK + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
