"""The rounds and final logics of a finished run as rows (paper 5.4, 5.6).

What belongs here: losses, rewards, news and distances of logics by round; the last logic of every
agent and whether its reward still changed; the two files of a data set. What does not: judges of
updates (``paper.lud``), smoothing, wording and plots (``report``).

A round has one row for the population, whose ``agent`` is empty, and one for each agent.

The paper reads a plateau of the reward as a Nash equilibrium. The test here can contradict a
plateau: an interval without 0 says that the reward was still moving. It cannot show an equilibrium:
a reward may stop changing because the learning rates have fallen, or because no agent can learn any
more; a wide interval only shows that the batches were noisy.

Shapes: T rounds, H rounds of the last half, P pairs of those; N logics, D width of an embedding,
C = 3 components.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.agents.logics import find_topics
from compevo_core.data.arrays import FloatArray
from compevo_core.evaluation.result_rows import replace_own_rows
from compevo_core.lm.encoder import Encoder
from compevo_core.paper.declared import read_columns
from compevo_core.paper.lud import embed_texts, measure_change, update_magnitude
from compevo_core.training.diagnostics import as_finite_array
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder

# Rows that agree in these belong to the same run of a method.
RUN = ("dataset", "method", "budget", "seed")
TRACE_SCHEMA = read_columns("run") | read_columns("traces")
DIGITS = 6  # significant digits of measurements: more would be rounding noise
TOPIC_SEPARATOR = "; "
LOGIC_SCHEMA = read_columns("run") | read_columns("logics")
_COMPONENTS = ("x", "y", "z")
_PLACE_DECIMALS = 4  # machines agree on these
MIN_ROUNDS = 32  # in a shorter run, the last half is too short for an interval
_TAIL = (1 - 0.95) / 2  # of the slopes, beyond either end of an interval
_BOOTSTRAP_STREAM = 4  # keeps these draws apart from those of training with the same seed


def write_traces(
    results: Path, run: Path, identity: Mapping[str, Any], encoder: Encoder
) -> tuple[Path, Path]:
    """Write a run's rows into ``traces-<dataset>.csv`` and ``logics-<dataset>.csv``.

    They replace rows of the same run, and the places of all logics are computed again.
    """
    records = RunFolder(run).read_rounds()
    traces_file = results / f"traces-{identity['dataset']}.csv"
    logics_file = results / f"logics-{identity['dataset']}.csv"

    replace_own_rows(
        traces_file,
        trace_rounds(records, identity, encoder),
        RUN,
        arrange=lambda rows: rows.sort("method", "budget", "seed", "round", "agent"),
    )

    replace_own_rows(
        logics_file,
        list_final_logics(records, identity),
        RUN,
        arrange=lambda rows: place_logics(rows.sort("method", "budget", "seed", "agent"), encoder),
    )
    return traces_file, logics_file


def trace_rounds(
    records: Sequence[RoundRecord], identity: Mapping[str, Any], encoder: Encoder
) -> pl.DataFrame:
    """Return the rows of a run, of ``TRACE_SCHEMA``."""
    # What a round wrote is used from the next round on.
    updates = [
        (following.round, agent, before, after)
        for record, following in itertools.pairwise(records)
        if record.evolved
        for agent, (before, after) in enumerate(zip(record.logics, following.logics, strict=True))
    ]
    vectors = embed_texts((text for *_, old, new in updates for text in (old, new)), encoder)
    shifts = {
        (number, agent): round(measure_change(old, new, vectors), DIGITS)
        for number, agent, old, new in updates
    }

    rows: list[dict[str, Any]] = []
    for record in records:
        facts = {**identity, "round": record.round, "epoch": record.epoch}
        rows.append(facts | {"loss": record.loss_pred, "val_error": record.val_mae_scaled})
        by_agent = enumerate(zip(record.rewards, record.unique_news, strict=True))
        for agent, (reward, unique_news) in by_agent:
            shift = shifts.get((record.round, agent))
            own = {"agent": agent, "reward": reward, "unique_news": unique_news}
            rows.append(facts | own | {"logic_shift": shift})
    frame = pl.DataFrame(rows, schema=TRACE_SCHEMA, orient="row")
    return frame.with_columns(pl.col(pl.Float64).round_sig_figs(DIGITS))


def list_final_logics(records: Sequence[RoundRecord], identity: Mapping[str, Any]) -> pl.DataFrame:
    """Return one row per agent, of ``LOGIC_SCHEMA``, without its place."""
    rows: list[dict[str, Any]] = []
    for agent, logic in enumerate(records[-1].logics):
        row = {
            **identity,
            "agent": agent,
            "logic": logic,
            "topics": TOPIC_SEPARATOR.join(find_topics(logic)),
        }
        plateau = measure_plateau([record.rewards[agent] for record in records], identity["seed"])
        if plateau is not None:
            row |= {
                "reward_change": plateau.change,
                "reward_slope": plateau.slope,
                "slope_low": plateau.low,
                "slope_high": plateau.high,
            }
        rows.append(row)

    frame = pl.DataFrame(rows, schema=LOGIC_SCHEMA, orient="row")
    return frame.with_columns(pl.col(pl.Float64).round_sig_figs(DIGITS))


def place_logics(logics: pl.DataFrame, encoder: Encoder) -> pl.DataFrame:
    """Return the rows with their places, computed from all of them together."""
    vectors_ND = np.asarray(encoder.encode(logics["logic"].to_list()), dtype=np.float64)
    place_NC, shown = find_components(vectors_ND)
    distances = _measure_distances(logics, vectors_ND)

    columns = [
        pl.Series(name, place_NC[:, number].round(_PLACE_DECIMALS) + 0.0)
        for number, name in enumerate(_COMPONENTS)
    ]
    return logics.with_columns(
        *columns,
        pl.lit(encoder.name).alias("encoder"),
        pl.lit(round(shown, _PLACE_DECIMALS)).alias("shown_variance"),
        distances.alias("distance_to_others").round(_PLACE_DECIMALS),
    ).select(list(LOGIC_SCHEMA))


def find_components(vectors_ND: FloatArray) -> tuple[FloatArray, float]:
    """Return the first three principal components (N, C) and the share of variance they hold.

    Those that do not exist are zero. The largest loading of each is positive.
    """
    centred_ND = vectors_ND - vectors_ND.mean(axis=0)
    left_NR, size_R, right_RD = np.linalg.svd(centred_ND, full_matrices=False)

    largest_R = np.abs(right_RD).argmax(axis=1)
    sign_R = np.where(right_RD[np.arange(len(right_RD)), largest_R] < 0, -1.0, 1.0)
    scores_NR = left_NR * size_R * sign_R

    place_NC = np.zeros((len(vectors_ND), len(_COMPONENTS)))
    count = min(len(_COMPONENTS), scores_NR.shape[1])
    place_NC[:, :count] = scores_NR[:, :count]

    # Logics that are all alike do not vary, so nothing is left out.
    total = float((size_R**2).sum())
    return place_NC, float((size_R[:count] ** 2).sum()) / total if total > 0 else 1.0


def _measure_distances(logics: pl.DataFrame, vectors_ND: FloatArray) -> pl.Series:
    """Return each logic's mean Delta to the other agents' of its run; null for a single agent."""
    rows = logics.select(RUN).with_row_index()
    pairs = rows.join(rows, on=RUN).filter(pl.col("index") != pl.col("index_right"))
    first_P, second_P = pairs["index"].to_numpy(), pairs["index_right"].to_numpy()

    delta = pl.Series(update_magnitude(vectors_ND[first_P], vectors_ND[second_P]), dtype=pl.Float64)
    means = pairs.with_columns(delta=delta).group_by("index").agg(pl.col("delta").mean())
    return rows.join(means, on="index", how="left", maintain_order="left")["delta"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plateau:
    """How a reward moved."""

    change: float  # mean of the last quarter of the rounds minus the mean of the first
    slope: float  # Theil-Sen slope of the last half, in reward per round
    low: float  # lower end of the slope's interval
    high: float  # upper end
    n_rounds: int  # rounds of the last half

    @property
    def is_flat(self) -> bool:
        """Whether the interval holds 0."""
        return self.low <= 0.0 <= self.high


def measure_plateau(reward: npt.ArrayLike, seed: int) -> Plateau | None:
    """Return how a reward (T,) moved; None for a run of fewer than ``MIN_ROUNDS`` rounds.

    The interval comes from a moving-block bootstrap of the residuals of the line: rounds near each
    other are not independent, as they share the state of the population. For made-up rewards
    without a slope, 95 % intervals held 0 in 93 to 95 % of cases, and in 75 to 88 % where
    neighbours correlated by 0.6; rewards of recorded runs correlate by about 0.1.
    """
    reward_T = as_finite_array("reward", reward, 1)
    if len(reward_T) < MIN_ROUNDS:
        return None

    quarter = len(reward_T) // 4
    change = reward_T[-quarter:].mean() - reward_T[:quarter].mean()

    last_H = reward_T[len(reward_T) // 2 :]
    slope = theil_sen_slope(last_H)
    generator = np.random.default_rng([seed, _BOOTSTRAP_STREAM])
    slopes = _resample_slopes(last_H, slope, generator)
    low, high = np.quantile(slopes, [_TAIL, 1 - _TAIL])
    return Plateau(
        change=float(change), slope=slope, low=float(low), high=float(high), n_rounds=len(last_H)
    )


def theil_sen_slope(values_H: FloatArray) -> float:
    """Return the median slope over all pairs of rounds, which single outliers do not move."""
    first_P, second_P = np.triu_indices(len(values_H), k=1)
    return float(np.median((values_H[second_P] - values_H[first_P]) / (second_P - first_P)))


def _resample_slopes(
    last_H: FloatArray, slope: float, generator: np.random.Generator
) -> list[float]:
    """Return the slopes of the line with its residuals resampled in blocks."""
    line_H = slope * np.arange(len(last_H))
    departure_H = last_H - line_H
    departure_H = departure_H - departure_H.mean()

    # H^(1/3) rounds, the usual rate for a block length; blocks overlap, so that each start is as
    # likely as any other.
    length = math.ceil(len(last_H) ** (1 / 3))
    count = math.ceil(len(last_H) / length)

    slopes = []
    for _ in range(400):
        starts = generator.integers(0, len(last_H) - length + 1, size=count)
        drawn = (starts[:, None] + np.arange(length)).ravel()[: len(last_H)]
        slopes.append(theil_sen_slope(line_H + departure_H[drawn]))
    return slopes
