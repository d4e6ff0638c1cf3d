"""Runs of the benchmark on stored windows, and the files that they leave.

What belongs here: what command and assets share: reading windows and news, cutting the windows that
the paper published, running a method under a seed, replacing its older rows, forecasts and traces.
What does not: the methods (``compevo_core.paper.method_table``), options and partitions.

Rows of a data set are one file. Whoever writes holds a lock and replaces the rows of the same
method, seed and budget alone: runs side by side lose nothing of each other, and a run that broke is
run again alone. Forecasts are a file a run. A method of agents keeps its training as a run of the
deployment, which is resumed where it was stopped.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import polars as pl

from compevo_core.baselines import SharedFits
from compevo_core.config.run import RunConfig
from compevo_core.data.build import build_windows
from compevo_core.data.window import WindowSet
from compevo_core.errors import SourceAbsent
from compevo_core.evaluation.result_rows import replace_own_rows, write_config
from compevo_core.evaluation.scopes import Scope, select_test_scopes, write_forecasts
from compevo_core.lm.encoder import load_encoder
from compevo_core.paper.agent_systems import PRESET
from compevo_core.paper.declared import Budget
from compevo_core.paper.method import FitInputs, Method, TrainingPlan
from compevo_core.paper.method_table import prepare_inputs, score_seed
from compevo_core.paper.paper_windows import (
    PAPER_SETS,
    describe_set,
    label_windows,
    parse_table,
)
from compevo_core.paper.report.rows import read_result_file
from compevo_core.paper.run_traces import RunIdentity, write_traces
from compevo_pipeline.config.settings import Layout
from compevo_pipeline.launchers.worker import describe_round
from compevo_pipeline.sources.common.base import FrameKind
from compevo_pipeline.storage.code_versions import read_commit
from compevo_pipeline.storage.news_store import StoredArticles
from compevo_pipeline.storage.runs import make_run_name
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.embedded_news import read_news
from compevo_pipeline.work.ingest import ingest_dataset
from compevo_pipeline.work.source_coverage import NEWS
from compevo_pipeline.work.stored_windows import read_windows

if TYPE_CHECKING:
    from compevo_core.data.news_pool import NewsPool

log = logging.getLogger(__name__)

_RUN = ("experiment", "method", "dataset", "subset", "seed", "budget")
"""Rows that agree in these belong to the same run of a method."""

PAPER_FOLDER = "compevo_paper"  # of an archive, with the tables of the paper's sets


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkData:
    """What all methods of a data set are run on."""

    windows: WindowSet  # all windows
    scopes: list[Scope]  # the test windows, by subset
    layout: Layout  # folders of the deployment
    rows: Path  # the file of result rows
    fit: SharedFits  # fits the numeric priors of agents, once for all systems

    @classmethod
    def read(
        cls,
        deployment: Deployment,
        dataset: str,
        *,
        every: int = 1,
        scopes: int | None = None,
        results: Path | None = None,
    ) -> Self:
        """Read the windows of a data set, or cut the windows that the paper published.

        Every n-th origin of the first ``scopes`` test scopes is scored; None: of all.
        """
        layout = deployment.layout
        folder = results or layout.results
        if dataset in PAPER_SETS:
            windows = cut_paper_windows(deployment, dataset, folder)
        else:
            windows = read_windows(layout, deployment.registry[dataset].name)
        return cls(
            windows=windows,
            scopes=select_test_scopes(windows, every)[:scopes],
            layout=layout,
            rows=folder / f"benchmark-{dataset}.csv",
            fit=deployment.shared_fits(),
        )

    def can_run(self, method: Method) -> bool:
        """Return whether a method can forecast any of the scopes."""
        return any(method.is_applicable(scope.windows) for scope in self.scopes)

    def prepare(self, deployment: Deployment, method: Method, budget: Budget) -> FitInputs:
        """Return what every seed of a method is fitted with."""
        news: NewsPool | None = None
        if method.reads_news:
            # Not the deployment's preset: methods read the same in every deployment.
            encoder = RunConfig.preset(PRESET).news.encoder
            news = read_news(deployment, encoder, self.windows.views(), log=log)
        return prepare_inputs(
            method, self.windows.split("train"), self.windows.split("val"), budget, news=news
        )

    def run(
        self,
        method: Method,
        inputs: FitInputs,
        seed: int,
        *,
        on_fitted: Callable[[str, int, float], None] | None = None,
    ) -> pl.DataFrame:
        """Fit and score a method with one seed, store its forecasts; return its rows, in place."""
        inputs = replace(inputs, seed=seed)
        run = self.find_run(method, inputs)
        if run is not None:
            plan = TrainingPlan(
                folder=run,
                fit=self.fit,
                on_round=lambda record: log.info("%s: %s", method.name, describe_round(record)),
            )
            inputs = replace(inputs, training=plan)
        scores = score_seed(
            method, inputs, seed, self.scopes, commit=read_commit(), on_fitted=on_fitted
        )

        folder = self.layout.forecasts / self._label
        write_forecasts(
            folder / f"{_name_run(method, inputs)}.parquet",
            list(zip(self.scopes, scores.forecasts, strict=True)),
            # As rows of other test sets stay: some alone may have been scored this time.
            keeps_others=True,
        )
        if method.configure is not None:
            config = method.configure(inputs)
            # Rows name a configuration by its hash alone.
            write_config(self.rows.parent, config)
            if run is not None:
                trace_run(
                    self.rows.parent,
                    run,
                    config,
                    # The name of the set: two sets of the paper are cut from one data set.
                    dataset=self._label.removeprefix("benchmark-"),
                    method=method.name,
                    budget=inputs.budget.name,
                )
        replace_rows(self.rows, scores.rows)
        return scores.rows

    def find_run(self, method: Method, inputs: FitInputs) -> Path | None:
        """Return the run folder of a method's training; None for a method that leaves none."""
        if method.configure is None or not method.leaves_run:
            return None
        label = f"{self._label}-{_name_run(method, inputs)}"
        return self.layout.run(make_run_name(label, method.configure(inputs), self.windows))

    @property
    def _label(self) -> str:
        return self.rows.stem


def cut_paper_windows(deployment: Deployment, name: str, results: Path) -> WindowSet:
    """Read the archive, cut the windows of a set of the paper and store them under its name.

    Its counts and shares of overlap become its row of ``paper-windows.csv``. SourceAbsent without
    an archive that has the table of the set; DataError if nothing of the data set is stored.
    """
    paper, archive = PAPER_SETS[name], deployment.settings.archive
    path = (archive or Path()) / PAPER_FOLDER / paper.file
    if archive is None or not path.is_file():
        raise SourceAbsent(f"{path} does not exist: name the folder above it in COMPEVO_ARCHIVE")
    published = parse_table(path.read_bytes(), path.name)

    dataset = paper.spec.name
    ingest_dataset(deployment, dataset, log=log)
    try:
        ingest_dataset(deployment, NEWS, log=log)
    except SourceAbsent as error:
        log.warning("windows name no article: %s", error)
    tables, news = deployment.frame_store(), deployment.news_store()
    cut = build_windows(
        paper.spec,
        deployment.series_store().read(dataset),
        covariates=tables.read(dataset, FrameKind.COVARIATES) if paper.has_weather else None,
        articles=StoredArticles(news, "") if news.path.exists() else None,
        published=tables.read(dataset, FrameKind.PUBLISHED),
        step_covariates=tables.read(dataset, FrameKind.STEP_COVARIATES),
    )
    windows = label_windows(paper, cut, published)
    windows.write(deployment.layout.windows(name))

    row = pl.DataFrame([describe_set(name, windows, published)])
    replace_own_rows(
        results / "paper-windows.csv", row, ("set",), arrange=lambda every: every.sort("set")
    )
    return windows


def _name_run(method: Method, inputs: FitInputs) -> str:
    budget = f"-{inputs.budget.name}" if method.has_budget else ""
    return f"{method.name}{budget}-seed{inputs.seed}"


def replace_rows(path: Path, rows: pl.DataFrame) -> None:
    """Replace the rows of the same method, seed, subset and budget.

    The order in the file does not depend on who wrote first.
    """
    replace_own_rows(
        path,
        rows,
        _RUN,
        read=read_result_file,
        arrange=lambda every: every.sort("method", "budget", "seed", "subset", maintain_order=True),
    )


def trace_run(
    results: Path, run: Path, config: RunConfig, *, dataset: str, method: str, budget: str
) -> tuple[Path, Path]:
    """Write the traces of a run folder into the results; return the two files.

    Logics are embedded by the encoder of ``config``; ``budget`` is empty for a run of its own.
    DataError if there is no round, or a file of the results holds something else.
    """
    identity = RunIdentity(
        dataset=dataset,
        method=method,
        budget=budget,
        seed=config.run.seed,
        commit=read_commit(),
        config_hash=config.hash,
    )
    return write_traces(results, run, identity, load_encoder(config.news.encoder))
