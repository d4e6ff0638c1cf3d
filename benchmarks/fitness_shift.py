"""Simulate which sign of pruning weighs forecasters better: ``python benchmarks/fitness_shift.py``.

What belongs here: forecasters of known quality in place of agents, and the core's selection
trained on them as a round trains it. What does not: language models, logics, news. The simulation
shows how the two rules of ``fitness_shift`` weigh good and bad forecasters; it says nothing about
how good the forecasts of a population are.

Truths are synthetic daily curves in scaled units. Agent i answers the truth, plus an error that all
share, plus a curve of its own that never changes, plus noise; the root mean squares of its own
errors run from 0.2 to 1.0 over the agents. A round is five windows. Weights come from the fitness
before the round, gates learn by AdamW on L_pred + lambda_prune L_prune with the paper's warm-up and
cosine decay, then the fitness takes the round's rewards. Held-out windows are new draws. At the
paper's rate a gate moves at most 1e-4 a round; the rate 1e-2 shows what the rules do when gates can
move.

Shapes: A agents, B windows, H horizon.
"""

import csv
import dataclasses
import math
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from compevo_core.agents.objective import pruning_loss
from compevo_core.agents.selection import (
    FitnessSelection,
    aggregate_forecasts,
    forecast_error,
)
from compevo_core.config import RunConfig
from compevo_core.config_sections import SelectionConfig
from compevo_core.data.files import write_atomically
from compevo_core.data.view import HORIZON
from compevo_core.training.schedule import learning_rate_factor

RESULTS = Path(__file__).parent / "results" / "fitness_shift.csv"
RULES = ("none", "min", "uniform")
ROUNDS = (60, 2193)  # a short run, and the paper's
RATES = (1e-4, 1e-2)  # the paper's, and one at which gates move
SEEDS = 5
HELD_OUT_WINDOWS = 2000

# Root mean squares in scaled units.
_SHARED_ERROR = 0.15
_BEST_ERROR = 0.2
_WORST_ERROR = 1.0
_PAPER = RunConfig()


@dataclasses.dataclass(frozen=True)
class Row:
    """One simulated training; errors are mean squares in scaled units over held-out windows."""

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
    """Agents of known quality, best first.

    The same seed draws the same agents and windows for every rule.
    """

    def __init__(self, agents: int, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        size_A = torch.linspace(_BEST_ERROR, _WORST_ERROR, agents)

        # Part of the squared error never changes: a bias that no averaging over windows removes.
        bias_share_A = torch.rand(agents, generator=self._generator)
        curves_AH = self._draw_curves(agents)
        self._bias_A1H = (size_A * bias_share_A.sqrt())[:, None, None] * curves_AH[:, None]
        self._noise_A = size_A * (1.0 - bias_share_A).sqrt()

    def draw_windows(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw forecasts (A, B, H) and truths (B, H) of new windows."""
        truth_BH = self._draw_curves(count)
        shared_BH = _SHARED_ERROR * torch.randn(count, HORIZON, generator=self._generator)
        noise_ABH = torch.randn(len(self._noise_A), count, HORIZON, generator=self._generator)

        forecast_ABH = truth_BH + shared_BH + self._bias_A1H
        return forecast_ABH + self._noise_A[:, None, None] * noise_ABH, truth_BH

    def _draw_curves(self, count: int) -> Tensor:
        """Draw sums of two daily waves of random phase with mean square one, (count, H)."""
        phase = 2 * math.pi * torch.rand(count, 2, generator=self._generator)
        step_H = 2 * math.pi * torch.arange(HORIZON) / HORIZON
        return torch.sin(step_H + phase[:, :1]) + torch.sin(2 * step_H + phase[:, 1:])


def simulate(rule: str, agents: int, rounds: int, forecast_lr: float, seed: int) -> Row:
    """Train the gates under one rule and score the aggregate on held-out windows."""
    is_uniform = rule == "uniform"
    selection = FitnessSelection(
        agents,
        SelectionConfig(uniform=True) if is_uniform else SelectionConfig(fitness_shift=rule),
    )
    optimizer = torch.optim.AdamW(
        selection.parameters(), lr=forecast_lr, weight_decay=_PAPER.optim.weight_decay
    )
    forecasters = Forecasters(agents, seed)
    metric = _PAPER.objective.metric

    for number in range(rounds):
        forecast_ABH, truth_BH = forecasters.draw_windows(_PAPER.run.batch_size)
        if not is_uniform:
            factor = learning_rate_factor(number, rounds, _PAPER.optim.warmup_ratio)
            optimizer.param_groups[0]["lr"] = forecast_lr * factor
            _train_gates(selection, optimizer, forecast_ABH, truth_BH)
        # After the update, as in a round: no agent is weighted by a truth it is scored on.
        selection.update_fitness(
            -forecast_error(forecast_ABH, truth_BH, metric), ["simulated"] * len(truth_BH)
        )

    forecast_ABH, truth_BH = forecasters.draw_windows(HELD_OUT_WINDOWS)
    weights_A = selection.population_weights().detach()
    gates_A = selection.gates_A.detach()
    weights_BA = weights_A.expand(len(truth_BH), -1)
    error = forecast_error(aggregate_forecasts(forecast_ABH, weights_BA), truth_BH, metric).mean()
    return Row(
        rule=rule,
        agents=agents,
        rounds=rounds,
        forecast_lr=forecast_lr,
        seed=seed,
        heldout_error=float(error),
        weight_best=float(weights_A[0]),
        weight_worst=float(weights_A[-1]),
        gate_min=float(gates_A.min()),
        gate_max=float(gates_A.max()),
    )


def run(out: Path, *, agents: int, rounds: tuple[int, ...], seeds: int) -> list[Row]:
    """Simulate every rule, length, rate and seed; write the table and return its rows."""
    rows = [
        simulate(rule, agents, length, rate, seed)
        for length in rounds
        for rate in RATES
        for rule in RULES
        for seed in range(seeds)
        # Uniform weights learn nothing, so that one rate is enough.
        if rule != "uniform" or rate == RATES[0]
    ]
    _write_rows(rows, out)
    return rows


def _train_gates(
    selection: FitnessSelection,
    optimizer: torch.optim.Optimizer,
    forecast_ABH: Tensor,
    truth_BH: Tensor,
) -> None:
    """Take one step on L_pred + lambda_prune L_prune."""
    optimizer.zero_grad()
    weights_BA = selection.population_weights().expand(len(truth_BH), -1)
    forecast_BH = aggregate_forecasts(forecast_ABH, weights_BA)
    loss = forecast_error(forecast_BH, truth_BH, _PAPER.objective.metric).mean()
    (loss + _PAPER.objective.lambda_prune * pruning_loss(selection.gates_A)).backward()  # type: ignore[no-untyped-call]

    torch.nn.utils.clip_grad_norm_(selection.parameters(), _PAPER.optim.max_grad_norm)
    optimizer.step()


def _write_rows(rows: list[Row], out: Path) -> None:
    """Write the table, numbers with six significant digits."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, [field.name for field in dataclasses.fields(Row)])
            writer.writeheader()
            writer.writerows(
                {
                    name: f"{value:.6g}" if isinstance(value, float) else value
                    for name, value in dataclasses.asdict(row).items()
                }
                for row in rows
            )

    write_atomically(out, write)


app = typer.Typer(add_completion=False)


@app.command()
def main(
    out: Annotated[Path, typer.Option(help="The table.")] = RESULTS,
    agents: Annotated[int, typer.Option(help="Forecasters.")] = _PAPER.population.agents,
    seeds: Annotated[int, typer.Option(help="Seeds of each setting.")] = SEEDS,
) -> None:
    """Simulate both rules of fitness_shift and uniform weights."""
    run(out, agents=agents, rounds=ROUNDS, seeds=seeds)


if __name__ == "__main__":
    app()
