"""What ``compevo evaluate`` scores: folders of runs, or the current run of a data set by its name.

What belongs here: finding them, and the small table of a data set's scores. What does not: scoring.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compevo_core.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

log = logging.getLogger(__name__)

ERRORS = (
    ("mae", "MAE"),
    ("rmse", "RMSE"),
    ("wape_pct", "WAPE %"),
    ("mape_pct", "MAPE %"),
    ("mase", "MASE"),
)
"""Columns of result rows in the small table, and their titles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRuns:
    """What to score, and where to write; ``dataset`` is empty where folders were given."""

    runs: list[Path]
    windows: Path
    news: Path
    results: Path
    experiment: str
    dataset: str


def find_evaluated_runs(
    runs: list[Path],
    windows: Path | None,
    news: Path | None,
    results: Path | None,
    experiment: str,
) -> EvaluatedRuns:
    """Return the folders of a data set's name, or those that were given.

    Raises:
        ConfigError: runs without their windows and news, or no such data set.
    """
    from compevo_core.data.window import WindowSet
    from compevo_pipeline.embedded_news import find_encoder, write_news
    from compevo_pipeline.resources import Workspace
    from compevo_pipeline.settings import Settings
    from compevo_pipeline.storage.runs import find_current_run

    if windows is not None and news is not None:
        return EvaluatedRuns(
            runs=runs,
            windows=windows,
            news=news,
            results=results or Path("results"),
            experiment=experiment or "main",
            dataset="",
        )
    if len(runs) > 1 or runs[0].is_dir() or windows is not None or news is not None:
        raise ConfigError(
            "folders of runs need --windows and --news; a data set's name alone needs neither"
        )

    workspace = Workspace(settings=Settings.from_environment())
    layout = workspace.layout
    dataset = workspace.registry()[str(runs[0])].name
    run = find_current_run(layout, dataset)
    window_set = WindowSet.read(layout.windows(dataset))
    return EvaluatedRuns(
        runs=[run],
        windows=layout.windows(dataset),
        # Windows may have been cut anew since the run was trained.
        news=write_news(workspace, find_encoder(run), window_set, log=log),
        results=results or layout.results,
        experiment=experiment or f"evaluate-{dataset}",
        dataset=dataset,
    )


def render_scores(rows: "pl.DataFrame") -> str:
    """Return pooled errors by method as a table, least first: the mean over seeds."""
    import polars as pl

    from compevo_core.evaluation.result_rows import POOLED

    pooled = rows.filter(pl.col("entity") == POOLED)
    means = pooled.group_by("method", "subset", maintain_order=True).agg(
        pl.col("n_windows").first(), *(pl.col(name).mean() for name, _ in ERRORS)
    )
    lines = [
        f"{pooled['dataset'][0]}, {pooled['split'][0]}, {means['n_windows'][0]:,} windows of 48 "
        f"steps; MAE and RMSE in {pooled['unit'][0]}",
        "",
        f"{'':28}" + "".join(f"{title:>12}" for _, title in ERRORS),
    ]
    for row in means.sort("mae").iter_rows(named=True):
        cells = ["none" if row[name] is None else f"{row[name]:.4g}" for name, _ in ERRORS]
        lines.append(f"{row['method']:28}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)
