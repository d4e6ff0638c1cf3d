"""What a deployment shows of its forecasts: the scores of issued days, the page, a public site.

What belongs here: reading what is on disk, and writing one table for each data set, the page of
forecasts, and a site of what was issued.
What does not: scores (``compevo_core.evaluation.issued_scores``), skill and alarms
(``compevo_core.evaluation``), the page's content (``compevo_core.report``), experiments.
"""

from dataclasses import replace
from pathlib import Path

import polars as pl

from compevo_core.data.build import grid_chosen
from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.evaluation.issued_scores import (
    SCORED_SCHEMA,
    ScoredRows,
    score_by_step,
    score_issued,
)
from compevo_core.forecast.issued import (
    CHAIN_FILE,
    FACTS_FILE,
    VALUES_FILE,
    Chain,
    read_chain,
    verify_issued,
)
from compevo_core.report.tomorrow import read_days
from compevo_core.runtime.files import write_atomically, write_bytes, write_text
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import find_daily_spec


def update_scored(deployment: Deployment, dataset: str) -> ScoredRows:
    """Score the issued forecasts of a data set whose truth is stored by now.

    The table is written as Parquet and CSV, and only if something changed.
    """
    spec = find_daily_spec(deployment, dataset)
    layout = deployment.layout
    path = layout.scored(dataset)

    before = read_scored(layout, dataset)
    truth = grid_chosen(spec, deployment.series_store().read(dataset))
    scores = score_issued(layout.issued(dataset), truth, before, scored_at=deployment.clock())

    if not path.exists() or not scores.rows.equals(before):
        write_atomically(path.with_suffix(".csv"), scores.rows.write_csv)
        write_atomically(path, scores.rows.write_parquet)
    return scores


def read_scored(layout: Layout, dataset: str) -> pl.DataFrame:
    """Return the scores of a data set's issued forecasts; empty if nothing was scored."""
    path = layout.scored(dataset)
    return pl.read_parquet(path) if path.exists() else pl.DataFrame(schema=SCORED_SCHEMA)


def write_forecasts(deployment: Deployment, *, dataset: str = "", page: Path | None = None) -> Path:
    """Write the page of forecasts, of one data set or of all that are no block; return it."""
    # Drawing takes a second to import.
    from compevo_core.report.forecast_page import FORECAST_PAGE, render_forecasts

    layout = deployment.layout
    registry, names = deployment.registry, {dataset}
    if not dataset:
        issued = {path.name for path in layout.all_issued.glob("*")}
        names = issued - (registry.datasets.keys() - registry.whole.keys())
    days = read_days(layout.all_issued, layout.root / "windows", layout.all_scored, names)
    text = render_forecasts(days, mode=deployment.data_mode.value, generated_at=deployment.clock())
    return write_text(page or layout.report / FORECAST_PAGE, text)


def publish_site(deployment: Deployment, folder: Path) -> dict[str, Chain]:
    """Write the sealed forecasts of a mode, their chains and scores and a page as a static site.

    A site that was published before is continued: its chains must be the beginnings of today's. A
    data set whose declaration was removed has no new scores by step. The chains are returned, by
    data set. DataError if no forecast was issued, or the series of one are not stored;
    CheckpointMismatch if a record was altered, or the site holds other ones.
    """
    from compevo_core.report.forecast_page import render_forecasts

    layout = deployment.layout
    issued, scores = layout.all_issued, folder / "scores"
    chains, by_step = {}, {}
    for root in sorted(path.parent for path in issued.glob(f"*/{CHAIN_FILE}")):
        dataset = root.name
        # The records that the site lacks are copied, and their chain last.
        site = folder / "issued" / dataset
        chain, published = verify_issued(root), read_chain(site)
        if list(published.lines) != list(chain.lines[: len(published.lines)]):
            raise CheckpointMismatch(
                f"{site} holds forecasts that are not the beginning of the chain in {root}: what "
                "was published is never replaced; name another folder, or restore the records"
            )
        for record in chain.records:
            for file in (VALUES_FILE, FACTS_FILE):
                if not (site / record / file).exists():
                    write_bytes(site / record / file, (root / record / file).read_bytes())
        write_text(site / CHAIN_FILE, (root / CHAIN_FILE).read_text(encoding="utf-8"))
        chains[dataset] = verify_issued(site)
        if dataset in deployment.registry.datasets:
            spec = find_daily_spec(deployment, dataset)
            truth = grid_chosen(spec, deployment.series_store().read(dataset))
            by_step[dataset] = score_by_step(root, truth)
            write_atomically(scores / f"{dataset}-by-step.csv", by_step[dataset].write_csv)
        write_atomically(scores / f"{dataset}.csv", read_scored(layout, dataset).write_csv)
    if not chains:
        raise DataError(f"no forecast was issued in {issued}: issue one with `compevo forecast`")

    days = read_days(issued, layout.root / "windows", layout.all_scored)
    known = [by_step.get(day.issued.facts["dataset"], day.by_step) for day in days]
    page = render_forecasts(
        [replace(day, by_step=steps) for day, steps in zip(days, known, strict=True)],
        mode=deployment.data_mode.value,
        generated_at=deployment.clock(),
        is_published=True,
    )
    write_text(folder / "index.html", page)
    write_text(folder / ".nojekyll", "")
    return chains
