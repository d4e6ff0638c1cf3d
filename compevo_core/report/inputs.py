"""Everything a report is made of, read from disk once.

What belongs here: result rows, run folders, check tables, forecast panels, and what was found but is not shown.
What does not: drawing and wording.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from compevo_core.errors import DataError
from compevo_core.evaluation.configs import read_configs
from compevo_core.evaluation.panels import ForecastPanel, read_panels
from compevo_core.lud.measure import ROWS_FILE, SUMMARY_FILE
from compevo_core.report.rows import header_of, is_result_file, is_synthetic, read_rows

CHECK_COLUMNS = ("check", "passed", "detail")
PAIRED_COLUMNS = ("dataset", "subset", "method_a", "method_b", "n", "p_value")
Round = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One training run: its name, configuration, summary, one object a round, and LUD if it was measured.

    ``lud`` is the summary of ``lud.json``, ``lud_rows`` the rows of ``lud.csv``; both empty where LUD was not measured.
    """

    name: str
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    rounds: Sequence[Round]
    panels: Sequence[ForecastPanel] = ()
    lud: Mapping[str, Any] = field(default_factory=dict)
    lud_rows: Sequence[Mapping[str, Any]] = ()

    @property
    def agents(self) -> int:
        """Number of agents, from the first round."""
        return len(self.rounds[0]["rewards"]) if self.rounds else 0

    def series(self, key: str) -> list[Any]:
        """The values of ``key`` by round; None where a round has none."""
        return [entry.get(key) for entry in self.rounds]

    def setting(self, section: str, name: str) -> str:
        """One resolved setting as text; empty where the configuration has none."""
        value = self.config.get(section, {})
        return str(value.get(name, "")) if isinstance(value, Mapping) else ""


@dataclass(frozen=True, kw_only=True)
class ReportInputs:
    """What one report shows. ``checks`` and ``paired`` may be empty; ``unread`` names CSV files not understood.

    ``configs`` are the resolved configurations that rows were made with, by the rows' ``config_hash``.
    """

    mode: str
    generated_at: datetime
    rows: pl.DataFrame
    runs: Sequence[RunRecord] = ()
    checks: Sequence[tuple[str, bool, str]] = ()
    paired: Sequence[Mapping[str, Any]] = ()
    unread: Sequence[str] = ()
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def prior_of(self, config_hash: str | None) -> str:
        """The prior of the configuration with this hash; empty where the configuration is not known."""
        forecast = self.configs.get(config_hash or "", {}).get("forecast", {})
        return str(forecast.get("prior", ""))

    @property
    def synthetic(self) -> bool:
        """Whether any row or panel comes from made-up data."""
        shown = any(panel.synthetic for run in self.runs for panel in run.panels)
        return shown or is_synthetic(self.rows)


def read_inputs(
    results: Path, run_folders: Sequence[Path], *, mode: str, generated_at: datetime
) -> ReportInputs:
    """Read ``results/*.csv`` and run folders; ``DataError`` says which file is torn."""
    checks: list[tuple[str, bool, str]] = []
    paired: list[dict[str, Any]] = []
    unread: list[str] = []
    runs = [read_run(folder) for folder in run_folders]
    for path in sorted(results.glob("*.csv")):
        header = header_of(path)
        if is_result_file(header):
            continue
        if set(CHECK_COLUMNS) <= set(header):
            checks += _read_checks(path)
        elif set(PAIRED_COLUMNS) <= set(header):
            paired += pl.read_csv(path).select(PAIRED_COLUMNS).to_dicts()
        else:
            unread.append(path.name)
    return ReportInputs(
        mode=mode,
        generated_at=generated_at,
        rows=read_rows(results),
        checks=checks,
        paired=paired,
        unread=unread,
        runs=runs,
        configs=read_configs(results)
        | {str(run.summary["config_hash"]): run.config for run in runs if run.summary},
    )


def _read_checks(path: Path) -> list[tuple[str, bool, str]]:
    frame = pl.read_csv(
        path, schema_overrides={"check": pl.String(), "passed": pl.Boolean(), "detail": pl.String()}
    )
    return [
        (str(name), bool(passed), detail or "")
        for name, passed, detail in frame.select(CHECK_COLUMNS).iter_rows()
    ]


def read_run(folder: Path) -> RunRecord:
    """One run folder: ``model/config.json`` and ``rounds.jsonl`` must be there; summary, panels and LUD may be."""
    rounds_file = folder / "rounds.jsonl"
    if not rounds_file.exists():
        raise DataError(
            f"{folder}: no rounds.jsonl; this is not a run folder, or training has not finished a round"
        )
    panels, measured = folder / "panels.jsonl", (folder / SUMMARY_FILE).exists()
    return RunRecord(
        name=folder.name,
        config=_read_json(folder / "model" / "config.json"),
        summary=_read_json(folder / "metrics.json") if (folder / "metrics.json").exists() else {},
        rounds=tuple(_read_lines(rounds_file)),
        panels=read_panels(panels) if panels.exists() else (),
        lud=_read_json(folder / SUMMARY_FILE) if measured else {},
        lud_rows=pl.read_csv(folder / ROWS_FILE, infer_schema_length=None).to_dicts()
        if measured
        else (),
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise DataError(
            f"{path}: cannot be read as JSON ({error}); restore the file or train again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{path}: holds a {type(value).__name__}, not an object; restore the file or train again"
        )
    return value


def _read_lines(path: Path) -> list[Round]:
    rounds: list[Round] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            rounds.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise DataError(
                f"{path}, line {number}: not JSON ({error}); resume the run, or remove the line"
            ) from error
    return rounds
