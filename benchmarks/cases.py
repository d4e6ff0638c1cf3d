"""What is measured, one case at a time, in a process of its own: ``python -m benchmarks.cases round --agents 3``.

What belongs here: the timing of each case and the check that both ways computed the same. What does not: the table
of results (``engine``), the other way of doing a round (``straightforward``, ``trl_step``).
A case prints one line a result, ``RESULT`` and a JSON object. ``ratio`` is reference over ours (above 1: ours is
faster) unless the case says otherwise. Peak memory is the process's high-water mark when our part is done and the
reference has not begun.
Legend: A agents, G samples of an agent, B windows, H horizon.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.straightforward import Straightforward, truth
from benchmarks.world import World, configuration
from compevo_core.answers import Task
from compevo_core.grpo import group_advantages
from compevo_core.logics import Observation, agent_generators
from compevo_core.rounds import RoundPlayer, _PolicyStep
from compevo_core.selection import aggregate, forecast_error

MARK = "RESULT "
#: Largest relative difference between the two ways' forecast losses; more means that they do not do the same work.
LARGEST_LOSS_DIFFERENCE = 1e-3
_PRODUCT, _PRODUCTS_A_REPEAT, _FORWARD_TOKENS = 2048, 5, 512
_QUICK_PRODUCT, _QUICK_TOKENS = 128, 64

Result = dict[str, Any]


def round_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Seconds of a whole round, ours against one adapter at a time; the reference scores our samples."""
    world = World(configuration(agents, quick=quick), repeats)
    ours, replays, records = [], [], []
    for number in range(repeats):
        player = world.start_over()
        state = world.state(player)
        seconds, record = _timed(lambda p=player, s=state, n=number: world.play(p, s, n))
        ours.append(seconds)
        records.append(record)
        replays.append(World.replay(player))
    peak, reference, theirs = _peak_gb(), [], []
    straight = Straightforward(world)
    for number, replay in enumerate(replays):
        world.start_over()
        straight.start_over()
        seconds, record = _timed(lambda n=number, r=replay: straight.play(world.tasks[n], r))
        reference.append(seconds)
        theirs.append(record)
    parity = _parity(records, theirs)
    if parity["loss_pred"] > LARGEST_LOSS_DIFFERENCE:
        raise ArithmeticError(f"round with {agents} agents: the two ways' forecast losses differ by "
                              f"{parity['loss_pred']:.2e} of their size, so they no longer do the same work; "
                              "bring straightforward.py in line with compevo_core/rounds.py")
    return [_result("round", world, ours, reference, peak) | {"parity": parity}]


def policy_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Seconds of candidates, group, rewards and policy update of all agents against TRL's trainer agent by agent.

    TRL's step is measured for one agent and counted once per agent.
    """
    from benchmarks.trl_step import trl_step_seconds

    world = World(configuration(agents, quick=quick), repeats)
    count = min(world.config.population.exposed_peers, agents - 1)
    seen = Observation(world.logics, [-0.5 - 0.01 * i for i in range(agents)],
                       [[(i + step) % agents for step in range(1, count + 1)] for i in range(agents)])
    scored = [tasks[: world.config.grpo.reward_windows or len(tasks)] for tasks in world.tasks]
    ours = []
    for number in range(repeats):
        player = world.start_over()
        previous_AD = player.writer.encode_texts(world.logics)
        sampling = agent_generators(number, range(agents), world.learner.backbone.device)
        ours.append(_timed(lambda p=player, n=number, b=previous_AD, s=sampling: _policy(p, seen, b, scored[n], s))[0])
    peak = _peak_gb()
    straight = Straightforward(world)
    straight.start_over()
    steps = trl_step_seconds(straight, seen, scored[0], repeats)
    return [_result("policy", world, ours, [agents * seconds for seconds in steps], peak)]


def inference_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Seconds of forecasting one day of windows: the population against independent agents averaged, one by one."""
    world = World(configuration(agents, quick=quick), repeats)
    player, size = world.start_over(), world.config.run.micro_windows
    weights = world.learner.selection.weights().detach()

    def ours(tasks: list[Task]) -> torch.Tensor:
        parts = [tasks[i:i + size] for i in range(0, len(tasks), size)]
        return torch.cat([aggregate(player.executor.forecast(world.logics, part)[0], weights) for part in parts])

    measured = [_timed(lambda t=tasks: ours(t)) for tasks in world.tasks]
    peak = _peak_gb()
    straight = Straightforward(world)
    straight.start_over()

    @torch.no_grad()
    def independent(tasks: list[Task]) -> torch.Tensor:
        parts = [tasks[i:i + size] for i in range(0, len(tasks), size)]
        values_ABH = torch.cat([straight.forecast(world.logics, part) for part in parts], dim=1)
        values_ABH.mean(0)  # the average of independent agents; what is compared below is our weighting of them
        return aggregate(values_ABH, weights)

    other = [_timed(lambda t=tasks: independent(t)) for tasks in world.tasks]
    gap = max(float((a - b).abs().max()) for (_, a), (_, b) in zip(measured, other, strict=True))
    return [_result("inference", world, [s for s, _ in measured], [s for s, _ in other], peak)
            | {"parity": {"forecast": gap}}]


def memory_case(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Peak memory of one round of ours in a process that does nothing else; ``ours_seconds`` is that round's."""
    del repeats
    world = World(configuration(agents, quick=quick), 1)
    player = world.start_over()
    state = world.state(player)
    seconds, _ = _timed(lambda: world.play(player, state, 0))
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


CASES: dict[str, Callable[..., list[Result]]] = {
    "ceiling": ceiling_case, "inference": inference_case, "memory": memory_case, "policy": policy_case,
    "round": round_case,
}


def _policy(player: RoundPlayer, seen: Observation, previous_AD: torch.Tensor, tasks: list[Task],
            sampling: Sequence[torch.Generator]) -> None:
    config = player.config
    proposal = player.writer.propose(seen, previous_AD, sampling)
    group_AGBH, _ = player.executor.forecast_groups(proposal.texts, tasks)
    group_AG = -forecast_error(group_AGBH, truth(tasks), config.objective.metric).mean(-1)
    _PolicyStep(player.writer, proposal, group_advantages(group_AG)[0], config).backward(0)
    nn.utils.clip_grad_norm_(player.learner.policy_parameters(), config.optim.gradient_clip)
    player.optimizer.step()


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
        pairs = [(np.asarray(a[name]), np.asarray(b[name])) for a, b in zip(ours, theirs, strict=True)]
        out[name] = max(float(np.abs(a - b).max() / (1.0 if name == "loss_pg" else np.abs(b).max())) for a, b in pairs)
    return out


def _result(case: str, world: World, ours: list[float], reference: list[float] | None, peak_gb: float) -> Result:
    mine = statistics.median(ours)
    other = None if reference is None else statistics.median(reference)
    return {"case": case, "agents": world.config.population.agents, "backbone": world.config.backbone.spec,
            "ours_seconds": mine, "reference_seconds": other, "ratio": None if other is None else other / mine,
            "peak_memory_gb": peak_gb, "repeats": len(ours), "threads": torch.get_num_threads(),
            "ours_all": ours, "reference_all": reference}


def main(arguments: list[str] | None = None) -> None:
    """Measures one case and prints its results."""
    parser = argparse.ArgumentParser(description="Measures one case; benchmarks.engine runs them all.")
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--agents", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="the tiny random backbone")
    options = parser.parse_args(arguments)
    for result in CASES[options.case](options.agents, options.repeats, quick=options.quick):
        sys.stdout.write(MARK + json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
