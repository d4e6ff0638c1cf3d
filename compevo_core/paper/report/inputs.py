"""Everything the page of experiments shows, read from disk once.

What belongs here: result rows, run folders, check tables and forecast panels, as plain objects.
What does not: plotting and wording; writing any of those files (``training.run_folder``,
``evaluation``); issued forecasts (``report.tomorrow``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import TypeAdapter

from compevo_core.config.run import RunConfig
from compevo_core.errors import DataError
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA
from compevo_core.evaluation.result_rows import CONFIGS_FOLDER, read_typed
from compevo_core.evaluation.scopes import ForecastPanel
from compevo_core.paper.declared import read_columns
from compevo_core.paper.report.rows import (
    collect_scores,
    drop_sweeps,
    is_result_file,
    is_synthetic,
    read_header,
    read_rows,
    share_budget,
)
from compevo_core.paper.run_traces import LOGIC_SCHEMA, TRACE_SCHEMA
from compevo_core.report.tables import Row
from compevo_core.runtime.files import read_json
from compevo_core.training.round_record import REWRITING_KEYS, RoundRecord
from compevo_core.training.run_folder import RunFolder

CHECK_COLUMNS = ("check", "passed", "detail")
# The columns that identify each kind of file, a field of ``ReportInputs``; it may have more.
KINDS = {
    "checks": CHECK_COLUMNS,
    "paired": tuple(PAIRED_TEST_SCHEMA),
    "lud": ("table", "subject", "judge", "kappa", "windows"),
    "audit": ("source", "news", "group_kind", "group"),
    "specialists": ("agents", *read_columns("control")),
    **{
        kind: tuple(read_columns(kind)) for kind in ("control", "control_rounds", "text", "context")
    },
    "paper_sets": ("set", "published_test", "targets_in_train_inputs"),
}
# A detail or a single seed may look like a number, so the types of these are not inferred.
_TYPES = {"passed": pl.Boolean(), **dict.fromkeys(("check", "detail", "seeds"), pl.String())}

TRAIN_AGAIN = "restore the file or train again"

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training run."""

    name: str  # name of its folder
    config: Settings  # its settings, by section
    summary: Mapping[str, Any]  # summary of the finished run; empty while it trains
    rounds: Sequence[RoundRecord]  # record of every finished round
    panels: Sequence[ForecastPanel] = ()  # forecast windows to draw; empty before evaluation
    # Contents of ``lud.json`` and ``lud.csv``; empty where LUD was not measured
    lud: Mapping[str, Any] = field(default_factory=dict)
    lud_rows: Sequence[Mapping[str, Any]] = ()

    @property
    def agents(self) -> int:
        """Number of agents, from the first round."""
        return len(self.rounds[0].rewards) if self.rounds else 0

    @property
    def first_evolving_round(self) -> int | None:
        """Number of the first round after a supervised stage; None if there was none."""
        if not self.rounds or self.rounds[0].stage == "evolution":
            return None
        return next((record.round for record in self.rounds if record.stage == "evolution"), None)

    @property
    def rewriting_rounds(self) -> list[RoundRecord]:
        """Records of the rounds that rewrote the logics."""
        return [record for record in self.rounds if record.evolved]

    def values_of(self, key: str) -> list[Any]:
        """Return the values of one key of the rounds; None for a round without a value."""
        # The zero of a round that sampled nothing is not a measurement.
        return [
            None if (key in REWRITING_KEYS and not record.evolved) or value == [] else value
            for record in self.rounds
            for value in [getattr(record, key)]
        ]

    def has_values(self, key: str) -> bool:
        """Whether any round has a value of the key."""
        return any(value is not None for value in self.values_of(key))

    def setting(self, section: str, name: str) -> str:
        """Return one setting as text; empty where the configuration has none."""
        return str(self.config.get(section, {}).get(name, ""))


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """What the page of experiments shows; all but rows, mode and moment may be empty."""

    mode: str  # kind of data: sample, archive or live
    generated_at: datetime  # moment that the page shows as its own, with zone
    rows: pl.DataFrame  # result rows, one for each identity
    runs: Sequence[TrainingRun] = ()  # training runs to show
    checks: Sequence[Mapping[str, Any]] = ()  # leakage checks, with the columns ``CHECK_COLUMNS``
    # Paired tests, and tests of two methods with the same budget, by the budget's name
    paired: Sequence[Mapping[str, Any]] = ()
    paired_at_budget: Sequence[Mapping[str, Any]] = ()
    unread: Sequence[str] = ()  # CSV files of no known kind in the results folder
    # Settings that rows were made with, by the rows' ``config_hash``
    configs: Mapping[str, Settings] = field(default_factory=dict)
    lud: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.lud.LUD_RESULT_SCHEMA``
    audit: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.news_audit.AUDIT_SCHEMA``
    control: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.control.CONTROL_SCHEMA``
    control_rounds: Sequence[Mapping[str, Any]] = ()  # rows of its ``ROUNDS_SCHEMA``
    specialists: Sequence[Mapping[str, Any]] = ()  # rows of its ``SPECIALISTS_SCHEMA``
    text: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.worded_data.TEXT_SCHEMA``
    context: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.context_is_key.CONTEXT_SCHEMA``
    paper_sets: Sequence[Mapping[str, Any]] = ()  # rows of ``paper.paper_windows.describe_set``
    traces: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TRACE_SCHEMA))
    logics: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LOGIC_SCHEMA))

    # Scores computed so far, by scope: most are shown in several tables
    _scores: dict[tuple[object, ...], tuple[dict[str, Row], str]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def find_scores(
        self, dataset: str, subset: str, *, experiment: str = "", sharing: Sequence[str] = ()
    ) -> tuple[Mapping[str, Row], str]:
        """Return the scores of one scope, computed once, and the name of the shared budget.

        Rows come from an experiment, or from everything except sweeps. Methods in ``sharing`` share
        the largest budget that all of them had; its name is empty if there was none.
        """
        key = (dataset, subset, experiment, *sharing)
        if key not in self._scores:
            rows = self.rows.filter(experiment=experiment) if experiment else drop_sweeps(self.rows)
            rows, budget = share_budget(rows, dataset, subset, sharing)
            self._scores[key] = collect_scores(rows, dataset, subset), budget
        return self._scores[key]

    @property
    def panels(self) -> list[ForecastPanel]:
        """Forecast windows of all runs."""
        return [panel for run in self.runs for panel in run.panels]

    @property
    def is_synthetic(self) -> bool:
        """Whether any row or panel comes from made-up data."""
        return any(panel.synthetic for panel in self.panels) or is_synthetic(self.rows)

    def find_tests(
        self,
        dataset: str,
        subset: str,
        reference: str,
        *,
        side: str = "a",
        budget: str | None = None,
    ) -> dict[str, Mapping[str, Any]]:
        """Return the paired tests of one scope with a reference, by the other method.

        The reference is on ``side`` a or b of a test. Both sides had the ``budget``; without it the
        full trainings are compared.
        """
        paired = [test for test in self.paired_at_budget if test["budget"] == budget]
        scope, other = (dataset, subset, reference), {"a": "method_b", "b": "method_a"}[side]
        return {
            test[other]: test
            for test in (paired if budget else self.paired)
            if (test["dataset"], test["subset"], test[f"method_{side}"]) == scope
        }

    def prior_of(self, config_hash: str | None) -> str:
        """Return the prior of a configuration; empty if the configuration is not known."""
        config = self.configs.get(config_hash or "", {})
        return str(config.get("forecast", {}).get("prior", ""))


def read_inputs(
    results: Path,
    run_folders: Sequence[Path],
    *,
    mode: str,
    generated_at: datetime,
) -> ReportInputs:
    """Read a folder of CSV files, as ``KINDS`` and result rows know them, and run folders.

    DataError if a file is torn or of another version.
    """
    tables: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    traces = [pl.DataFrame(schema=TRACE_SCHEMA)]
    logics = [pl.DataFrame(schema=LOGIC_SCHEMA)]
    unread = []
    for path in sorted(results.glob("*.csv")):
        header = read_header(path)
        if is_result_file(header):
            continue  # read_rows reads all of them together
        kind = next((kind for kind, known in KINDS.items() if set(known) <= set(header)), None)
        if kind:
            tables[kind] += _read_table(path)
        elif list(TRACE_SCHEMA) == header:
            traces.append(read_typed(path, TRACE_SCHEMA))
        elif list(LOGIC_SCHEMA) == header:
            logics.append(read_typed(path, LOGIC_SCHEMA))
        else:
            unread.append(path.name)
    paired = tables.pop("paired")

    # Runs are shown in the order in which they were named.
    runs = [read_run(folder) for folder in run_folders]
    # A run that was not evaluated yet has its configuration only in its own folder.
    configs = read_configs(results)
    configs |= {str(run.summary["config_hash"]): run.config for run in runs if run.summary}
    return ReportInputs(
        mode=mode,
        generated_at=generated_at,
        rows=read_rows(results),
        runs=runs,
        paired=[test for test in paired if not test["budget"]],
        paired_at_budget=[test for test in paired if test["budget"]],
        unread=unread,
        configs=configs,
        traces=pl.concat(traces),
        logics=pl.concat(logics),
        **tables,
    )


def read_run(path: Path) -> TrainingRun:
    """Read one run folder, which may lack a summary, panels and LUD.

    DataError if there are no rounds or no configuration, or a file is torn.
    """
    folder = RunFolder(path)
    rounds = folder.read_rounds()
    # The summary is written after the rows: if it exists, so do they.
    has_lud = folder.lud_summary_file.exists()

    return TrainingRun(
        name=folder.name,
        config=read_json(folder.model_config_file, TRAIN_AGAIN),
        summary=read_json(folder.metrics_file, TRAIN_AGAIN) if folder.metrics_file.exists() else {},
        rounds=rounds,
        panels=read_panels(folder.panels_file) if folder.panels_file.exists() else (),
        lud=read_json(folder.lud_summary_file, TRAIN_AGAIN) if has_lud else {},
        lud_rows=_read_table(folder.lud_rows_file) if has_lud else (),
    )


def _read_table(path: Path) -> list[dict[str, Any]]:
    # A column may begin with many empty cells, so types are inferred from all rows.
    rows = pl.read_csv(path, schema_overrides=_TYPES, infer_schema_length=None)
    return rows.to_dicts()


def read_configs(results: Path) -> dict[str, Mapping[str, Any]]:
    """Return the configurations of a results folder by the hash that rows carry.

    DataError if a file is not a JSON object, ConfigError if it holds an unknown setting.
    """
    return {
        path.stem: RunConfig.from_mapping(
            read_json(path, "restore the file or evaluate the run again")
        ).to_dict()
        for path in sorted((results / CONFIGS_FOLDER).glob("*.json"))
    }


def read_panels(path: Path) -> tuple[ForecastPanel, ...]:
    """Return the panels of a file; DataError names a line that is not a panel."""
    panels = []
    # Not splitlines(): a headline may hold a Unicode line separator, which is not an end of a line.
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                panels.append(TypeAdapter(ForecastPanel).validate_json(line))
            except ValueError as error:
                raise DataError(
                    f"{path}, line {number}: not a forecast panel ({error}); evaluate the run again"
                ) from error
    return tuple(panels)
