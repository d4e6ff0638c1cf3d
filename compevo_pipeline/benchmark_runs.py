"""Runs of the benchmark on stored windows, and the files that they leave.

What belongs here: what command and assets share: reading windows and news, running a method under a
seed, putting its rows and forecasts in the place of older ones. What does not: the methods
(``compevo_core.benchmark``), options and partitions.

Rows of a data set are one file. Whoever writes holds a lock and replaces the rows of the same
method, seed and budget alone: runs side by side lose nothing of each other, and a run that broke is
run again alone. Forecasts are a file a run. A method of agents keeps its training as a run of the
deployment: stopped, it goes on there.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import polars as pl

from compevo_core.baselines import fit_baseline
from compevo_core.baselines.shared_fits import FitBaseline
from compevo_core.benchmark.agents import PRESET
from compevo_core.benchmark.budgets import Budget
from compevo_core.benchmark.methods import FitInputs, Method, TrainingPlan
from compevo_core.benchmark.running import prepare_inputs, score_seed
from compevo_core.config import RunConfig
from compevo_core.data.row_files import replace_own_rows
from compevo_core.data.window import WindowSet
from compevo_core.evaluation.configs import write_config
from compevo_core.evaluation.result_rows import write_rows
from compevo_core.evaluation.scopes import Scope, select_test_scopes, write_forecasts
from compevo_core.report.rows import read_result_file
from compevo_pipeline.embedded_news import read_news
from compevo_pipeline.launchers.progress import describe_round
from compevo_pipeline.provenance import read_commit
from compevo_pipeline.resources import Workspace
from compevo_pipeline.settings import Layout
from compevo_pipeline.storage.runs import make_run_name
from compevo_pipeline.traced_runs import trace_run

if TYPE_CHECKING:
    from compevo_core.data.news_pool import NewsPool

log = logging.getLogger(__name__)

_RUN = ("experiment", "method", "dataset", "subset", "seed", "budget")
"""Rows that agree in these are of the same run of a method."""

_ORDER = ("method", "budget", "seed", "subset")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkData:
    """What all methods of a data set are run on.

    Attributes:
        windows: all windows.
        scopes: the test windows, by subset.
        layout: folders of the deployment.
        rows: the file of result rows.
        fit: fits the numeric priors of agents.
    """

    windows: WindowSet
    scopes: list[Scope]
    layout: Layout
    rows: Path
    fit: FitBaseline = fit_baseline

    @classmethod
    def read(
        cls,
        workspace: Workspace,
        dataset: str,
        *,
        every: int = 1,
        scopes: int | None = None,
        results: Path | None = None,
        fit: FitBaseline = fit_baseline,
    ) -> Self:
        """Read the windows of a data set.

        Args:
            workspace: the deployment.
            dataset: its name in the registry.
            every: score every n-th origin.
            scopes: how many of the data set's test scopes to score, in order; None: all.
            results: folder of the rows; None: that of the deployment.
            fit: fits the numeric priors of agents; ``SharedFits`` fits those of all systems once.

        Raises:
            ConfigError: there is no such data set.
            DataError: its windows are not built.
        """
        layout = workspace.layout
        name = workspace.registry()[dataset].name
        windows = WindowSet.read(layout.windows(name))
        return cls(
            windows=windows,
            scopes=select_test_scopes(windows, every)[:scopes],
            layout=layout,
            rows=(results or layout.results) / f"benchmark-{name}.csv",
            fit=fit,
        )

    def can_run(self, method: Method) -> bool:
        """Return whether a method can forecast any of the scopes."""
        return any(method.is_applicable(scope.windows) for scope in self.scopes)

    def prepare(self, workspace: Workspace, method: Method, budget: Budget) -> FitInputs:
        """Return what every seed of a method is fitted with."""
        return prepare_inputs(
            method,
            self.windows.split("train"),
            self.windows.split("val"),
            budget,
            news=self._read_news(workspace) if method.reads_news else None,
        )

    def run(
        self,
        method: Method,
        inputs: FitInputs,
        seed: int,
        *,
        on_fitted: Callable[[str, int, float], None] | None = None,
    ) -> pl.DataFrame:
        """Fit and score a method with one seed, store its forecasts and put its rows in place.

        Returns:
            Its rows.
        """
        inputs = replace(inputs, seed=seed)
        run = self.find_run(method, inputs)
        if run is not None:
            inputs = replace(inputs, training=self._plan_training(method, run))
        scores = score_seed(
            method, inputs, seed, self.scopes, commit=read_commit(), on_fitted=on_fitted
        )

        folder = self.layout.forecasts / self._label
        write_forecasts(
            folder / f"{_name_run(method, inputs.budget, seed)}.parquet",
            list(zip(self.scopes, scores.forecasts, strict=True)),
            # As rows of other test sets stay: some alone may have been scored this time.
            keeps_others=True,
        )
        if method.configure is not None:
            self._keep_records(method, method.configure(inputs), inputs.budget, run)
        replace_rows(self.rows, scores.rows)
        return scores.rows

    def find_run(self, method: Method, inputs: FitInputs) -> Path | None:
        """Return the run folder of a method's training; None for a method that leaves none."""
        if method.configure is None or not method.leaves_run:
            return None
        label = f"{self._label}-{_name_run(method, inputs.budget, inputs.seed)}"
        config = method.configure(inputs)
        return self.layout.run(make_run_name(label, config, self.windows))

    @property
    def _label(self) -> str:
        return f"benchmark-{self.windows.dataset}"

    def _plan_training(self, method: Method, run: Path) -> TrainingPlan:
        return TrainingPlan(
            folder=run,
            fit=self.fit,
            on_round=lambda record: log.info("%s: %s", method.name, describe_round(record)),
        )

    def _keep_records(
        self, method: Method, config: RunConfig, budget: Budget, run: Path | None
    ) -> None:
        """Put what rows do not say beside them: settings, and how a training went."""
        # Rows name a configuration by its hash alone.
        write_config(self.rows.parent, config)
        if run is None:
            return
        trace_run(
            self.rows.parent,
            run,
            config,
            dataset=self.windows.dataset,
            method=method.name,
            budget=budget.name,
        )

    def _read_news(self, workspace: Workspace) -> "NewsPool":
        # Not the deployment's preset: methods are the same in each, and so is what they read.
        encoder = RunConfig.preset(PRESET).news.encoder
        return read_news(workspace, encoder, self.windows.views(), log=log)


def _name_run(method: Method, budget: Budget, seed: int) -> str:
    return f"{method.name}{f'-{budget.name}' if method.has_budget else ''}-seed{seed}"


def replace_rows(path: Path, rows: pl.DataFrame) -> None:
    """Put rows in the place of those of the same method, seed, subset and budget.

    The order in the file does not depend on who wrote first.
    """
    replace_own_rows(
        path,
        rows,
        _RUN,
        read=read_result_file,
        write=lambda every: write_rows(path, every.sort(_ORDER, maintain_order=True)),
    )
