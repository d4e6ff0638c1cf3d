"""Which sign of pruning: the printed rule or the shifted one, simulated: ``python benchmarks/fitness_shift.py``.

What belongs here: forecasters of known quality in place of agents, and the selection of the core trained on them
as a round trains it. What does not: language models, logics, news. It says how the two rules of ``fitness_shift``
weight good and bad forecasters; it says nothing about how good a population's forecasts are.

Truths are synthetic daily curves in scaled units. Agent i answers truth + an error that all share + a curve of its own
that never changes + noise; the root mean squares of its own errors run from 0.2 to 1.0 over the agents. A round is
five windows. Weights come from the fitness before the round, gates learn by AdamW on L_pred + lambda_prune L_prune
with the paper's warm-up and cosine decay, then the fitness takes the round's rewards. Held-out windows are new draws.
At the paper's rate a gate moves at most 1e-4 a round; the rate 1e-2 shows what the rules do when gates can move.
Legend: A agents, B windows, H horizon.
"""

import argparse
import csv
import dataclasses
import math
from pathlib import Path

import torch
from torch import Tensor

from compevo_core.agents.objective import pruning_loss
from compevo_core.agents.selection import FitnessSelection, aggregate, forecast_error, reward
from compevo_core.config import RunConfig, SelectionConfig
from compevo_core.data.window import HORIZON
from compevo_core.training.round import rate_factor

OUT = Path(__file__).parent / "results" / "fitness_shift.csv"
RULES = ("none", "min", "uniform")
ROUNDS = (60, 2193)
RATES = (1e-4, 1e-2)
SEEDS = 5
HELD_OUT_WINDOWS = 2000
_SHARED_ERROR, _BEST_ERROR, _WORST_ERROR = 0.15, 0.2, 1.0
_PAPER = RunConfig()


@dataclasses.dataclass(frozen=True)
class Row:
    """One simulated training: errors are mean squares in scaled units over the held-out windows."""

    rule: str
    agents: int
    rounds: int
    forecast_lr: float
    seed: int
    heldout_error: float
    weight_best: float
    weight_worst: float
    gate_min: float
    gate_max: float


class Forecasters:
    """Agents of known quality, best first; the same seed draws the same agents and windows for every rule."""

    def __init__(self, agents: int, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        sizes_A = torch.linspace(_BEST_ERROR, _WORST_ERROR, agents)
        share_A = torch.rand(
            agents, generator=self._generator
        )  # of the squared error, what never changes
        curves_AH = self._curves(agents)
        self._bias_A1H = (sizes_A * share_A.sqrt())[:, None, None] * curves_AH[:, None]
        self._noise_A = sizes_A * (1.0 - share_A).sqrt()

    def windows(self, count: int) -> tuple[Tensor, Tensor]:
        """Forecasts (A, B, H) and truths (B, H) of new windows."""
        truth_BH = self._curves(count)
        shared_BH = _SHARED_ERROR * torch.randn(count, HORIZON, generator=self._generator)
        own_ABH = torch.randn(len(self._noise_A), count, HORIZON, generator=self._generator)
        return truth_BH + shared_BH + self._bias_A1H + self._noise_A[
            :, None, None
        ] * own_ABH, truth_BH

    def _curves(self, count: int) -> Tensor:
        """Two daily waves of random phase with mean square one, (count, H)."""
        phase = 2 * math.pi * torch.rand(count, 2, generator=self._generator)
        step_H = 2 * math.pi * torch.arange(HORIZON) / HORIZON
        return torch.sin(step_H + phase[:, :1]) + torch.sin(2 * step_H + phase[:, 1:])


def simulate(rule: str, agents: int, rounds: int, forecast_lr: float, seed: int) -> Row:
    """Trains the gates for ``rounds`` rounds under one rule and scores the aggregate on held-out windows."""
    settings = (
        SelectionConfig(uniform=True) if rule == "uniform" else SelectionConfig(fitness_shift=rule)
    )
    selection, world = FitnessSelection(agents, settings), Forecasters(agents, seed)
    optimizer = torch.optim.AdamW(
        selection.parameters(), lr=forecast_lr, weight_decay=_PAPER.optim.weight_decay
    )
    metric, batch = _PAPER.objective.metric, _PAPER.run.batch_windows
    for number in range(rounds):
        forecast_ABH, truth_BH = world.windows(batch)
        if rule != "uniform":
            optimizer.param_groups[0]["lr"] = forecast_lr * rate_factor(
                number, rounds, _PAPER.optim.warmup_ratio
            )
            optimizer.zero_grad()
            total_BH = aggregate(forecast_ABH, selection.weights())
            loss = forecast_error(total_BH, truth_BH, metric).mean()
            (loss + _PAPER.objective.lambda_prune * pruning_loss(selection.gates_A)).backward()
            torch.nn.utils.clip_grad_norm_(selection.parameters(), _PAPER.optim.gradient_clip)
            optimizer.step()
        selection.update(reward(forecast_ABH, truth_BH, metric))
    forecast_ABH, truth_BH = world.windows(HELD_OUT_WINDOWS)
    weights_A, gates_A = selection.weights().detach(), selection.gates_A.detach()
    error = forecast_error(aggregate(forecast_ABH, weights_A), truth_BH, metric).mean()
    return Row(
        rule,
        agents,
        rounds,
        forecast_lr,
        seed,
        float(error),
        float(weights_A[0]),
        float(weights_A[-1]),
        float(gates_A.min()),
        float(gates_A.max()),
    )


def run(out: Path, *, agents: int, rounds: tuple[int, ...], seeds: int) -> list[Row]:
    """Every rule, length, rate and seed; writes the table and returns its rows. Uniform weights need no rate."""
    rows = [
        simulate(rule, agents, length, rate, seed)
        for length in rounds
        for rate in RATES
        for rule in RULES
        for seed in range(seeds)
        if rule != "uniform" or rate == RATES[0]
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [f.name for f in dataclasses.fields(Row)])
        writer.writeheader()
        writer.writerows(
            {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in dataclasses.asdict(r).items()}
            for r in rows
        )
    return rows


def main() -> None:
    """Parses arguments and measures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--agents", type=int, default=_PAPER.population.agents)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    asked = parser.parse_args()
    run(asked.out, agents=asked.agents, rounds=ROUNDS, seeds=asked.seeds)


if __name__ == "__main__":
    main()
