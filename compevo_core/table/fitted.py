"""What is kept of a fit: the ensemble or the sealed run, rows, the news, how all is read.

What belongs here: newer rows, values known ahead and news that join it; its folder. What does not:
fitting and forecasting (``table.forecaster``), reading tables (``table.frames``).

A folder holds the run, rows and articles as Parquet, and ``table.json``.
"""

import dataclasses
import json
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import polars as pl
from pydantic import TypeAdapter

from compevo_core.agents.online_selection import Experience
from compevo_core.data.content import describe_changes, describe_new_faults
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.scaling import Scaler
from compevo_core.data.steps import DAY, count_steps, name_step, shift
from compevo_core.data.view import WindowView
from compevo_core.errors import ConfigError, DataError, list_some
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.runtime.files import write_json
from compevo_core.table.covariates import list_covariates
from compevo_core.table.frames import (
    SERIES,
    START,
    VALUE,
    Frame,
    TableForm,
    add_totals,
    find_current_ends,
    find_distance,
    join_rows,
    keep_values,
    put_on_series,
    read_table,
)
from compevo_core.training import ensemble
from compevo_core.training.run_folder import RunFolder

RUN = "run"
"""The folder of the sealed run in a folder of a fit."""
_FACTS = "table.json"
_ROWS, _ARTICLES = "rows.parquet", "articles.parquet"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """What is known of a table: its rows, how it was formed, and the news."""

    rows: pl.DataFrame
    form: TableForm
    articles: pl.DataFrame

    def list_frames(self, spec: DatasetSpec) -> dict[str, Any]:
        """Return what views and windows are built with, by argument."""
        series = put_on_series(self.rows, self.form.value)
        frames = {"series": series, **list_covariates(self.rows, self.form, spec)}
        return {**frames, "articles": self.articles} if self.articles.height else frames

    def add_news(self, articles: pl.DataFrame) -> Self:
        """Return the same with more articles."""
        known = pl.concat([self.articles, articles]).unique("article_id", maintain_order=True)
        return dataclasses.replace(self, articles=known)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted(Known):
    """A fit of a table: an ensemble in memory, or a sealed run of agents or one that was kept."""

    model: ensemble.Ensemble | None = None  # in memory, without agents
    folder: Path  # temporary, of the sealed run if there is one; goes with the forecaster
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)  # by their place there
    spec: DatasetSpec
    facts: Mapping[str, Any]  # the method, and the choice if there was one

    @property
    def run(self) -> Path:
        """The sealed run, written again where its temporary folder was cleaned."""
        if not all((self.folder / name).is_file() for name in self.files):
            write_files(self.files, self.folder)
        return self.folder / RUN

    @property
    def experience(self) -> Experience:
        """What was forecast of validation, scaled."""
        return ensemble.read_experience(self.run) if self.model is None else self.model.experience

    @property
    def scaler(self) -> Scaler:
        """The scale of each series that was fitted."""
        return ensemble.read_scaler(self.run) if self.model is None else self.model.scaler

    def seal(self, folder: Path | None = None) -> Self:
        """Return the fit as the files of a sealed run, for another folder if one is given."""
        folder = folder or self.folder
        if self.model is None:
            return dataclasses.replace(self, folder=folder)
        with tempfile.TemporaryDirectory(prefix="compevo-") as root:
            run = RunFolder(Path(root) / RUN)
            ensemble.write_model(run, self.model, self.facts)
            files = read_files(run.path, Path(root))
        return dataclasses.replace(self, model=None, folder=folder, files=files)

    @cached_property
    def ends(self) -> dict[str, datetime]:
        """The end of each series that continues."""
        return find_current_ends(self.rows, self.form, self.spec.horizon_steps)

    @property
    def end(self) -> datetime:
        """Where the first forecast begins."""
        return min(self.ends.values())

    @property
    def origins(self) -> dict[datetime, list[str]]:
        """The series that are forecast from each instant: the newest for which they are known."""
        first, apart = self.end, find_distance(self.spec)
        if self.spec.totals:  # what adds up is forecast at once
            return {first: list(self.ends)}
        origins: dict[datetime, list[str]] = {}
        for name, end in self.ends.items():
            later = count_steps(first, end, apart)
            origins.setdefault(shift(first, later, apart), []).append(name)
        return origins

    def load_population(self, views: Sequence[WindowView]) -> CompEvoForecaster:
        """Load what was trained, with the news of some views."""
        config = ensemble.read_config(self.run) if self.model is None else self.model.config
        news = gather_news(self.articles, views, config.encoder)
        if self.model is None:
            return CompEvoForecaster.load(self.run, news)
        return CompEvoForecaster(self.model, news=news)

    def add_rows(self, table: Frame, series: str) -> Self:
        """Return the fit with newer rows; DataError if they cannot follow the fitted ones."""
        form = dataclasses.replace(self.form, series=self.form.series or series)
        if form.ahead_apart:
            form = dataclasses.replace(form, ahead=(), known_at="")
        added, read = read_table(table, form, form.clock)
        known = set(self.rows[SERIES])
        if self.form.series and not read.series:
            raise DataError(f"the rows name no series: give them the column {self.form.series!r}")
        if (new := sorted(set(added[SERIES]) - known)) and not self.form.series:
            raise DataError(
                f"series {list_some(new)} were not fitted, but one without a name; fit again with "
                "them"
            )
        step = self.spec.step
        rows = join_rows(self.rows, added, step)
        if self.spec.totals:
            rows = add_totals(rows, self.spec.totals)
        extended = dataclasses.replace(self, rows=rows)
        said: list[str] = []
        newer = keep_values(rows).filter(pl.col(SERIES).is_in(added[SERIES].unique().to_list()))
        for (name,), part in newer.group_by(SERIES, maintain_order=True):
            said += describe_new_faults(f"series {name}", part.tail(2_000), step, self.end)
        # Most newer rows repeat none, or few, of a long history.
        repeated = self.rows.join(added, on=[SERIES, START], how="semi")
        before = repeated.partition_by(SERIES, as_dict=True)
        for key, part in added.group_by(SERIES, maintain_order=True):
            if key in before:
                said += describe_changes(f"series {key[0]}", before[key], part)
        ends = extended.end
        last = added.drop_nulls(VALUE)[START].max()
        if isinstance(last, datetime) and shift(last, 1, step) < self.end:
            say = self.form.clock.say
            said.insert(0, f"the rows end {say(last)}, yet the forecast begins at {say(ends)}")
        if said:
            warnings.warn(list_some(said, "; "), stacklevel=4)
        clock = timedelta(hours=ends.hour, minutes=ends.minute, seconds=ends.second)
        fitted, apart = -self.spec.market_offset, find_distance(self.spec)
        if self.spec.step < DAY and (clock - fitted) % apart:
            every = f" and every {name_step(apart)}" if apart < DAY else ""
            raise DataError(
                f"the rows end {clock} after midnight UTC, and forecasts that begin {fitted} after "
                f"it{every} were fitted: fit again, or leave the last rows out"
            )
        return extended

    def add_future(self, table: Frame, series: str) -> Self:
        """Return the fit with values that are known ahead."""
        if not self.form.ahead:
            raise ConfigError(
                "future was given, but no column is known ahead: fit with Forecaster(ahead=[...])"
            )
        added = read_ahead(table, self.rows, self.form, series)
        if self.form.ahead_apart:
            return dataclasses.replace(self, rows=join_rows(self.rows, added, self.spec.step))
        # What came is not changed by what was expected, up to the end of each series.
        ends = self.ends
        known = pl.DataFrame({SERIES: list(ends), "end": list(ends.values())})
        later = added.join(known, on=SERIES).filter(pl.col(START) >= pl.col("end"))
        return dataclasses.replace(
            self, rows=join_rows(self.rows, later.drop("end"), self.spec.step)
        )

    def write(self, folder: Path, params: Mapping[str, Any]) -> Path:
        """Write everything into a folder; DataError if it holds something else."""
        is_other = folder.is_file() or (folder.exists() and any(folder.iterdir()))
        if is_other and not (folder / _FACTS).is_file():
            raise DataError(f"{folder} is a file or holds other files; name a new folder")
        shutil.rmtree(folder / RUN, ignore_errors=True)
        write_files(self.seal().files, folder)
        self.rows.write_parquet(folder / _ROWS)
        self.articles.write_parquet(folder / _ARTICLES)
        form = TypeAdapter(TableForm).dump_python(self.form, mode="json")
        spec = TypeAdapter(DatasetSpec).dump_python(self.spec, mode="json")
        facts = {"params": params, "facts": self.facts, "form": form, "spec": spec}
        write_json(folder / _FACTS, facts)
        return folder

    @classmethod
    def read(cls, source: Path, folder: Path) -> tuple[Self, dict[str, Any]]:
        """Return what :meth:`write` wrote, and the parameters; ``folder`` is for its run.

        DataError if the source holds nothing of the kind, or was damaged since.
        """
        if not (source / _FACTS).is_file():
            raise DataError(f"{source} holds no forecaster; give a folder that save wrote")
        try:
            raw = json.loads((source / _FACTS).read_text(encoding="utf-8"))
            fit = cls(
                folder=folder,
                files=read_files(source / RUN, source),
                rows=pl.read_parquet(source / _ROWS),
                form=TypeAdapter(TableForm).validate_python(raw["form"]),
                spec=TypeAdapter(DatasetSpec).validate_python(raw["spec"]),
                facts=raw["facts"],
                articles=pl.read_parquet(source / _ARTICLES),
            )
            params = raw["params"].items()
        except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
            raise DataError(f"{source} is damaged ({error}); save the forecaster again") from error
        return fit, {name: tuple(v) if isinstance(v, list) else v for name, v in params}


def read_held_out(lived: Experience, scaler: Scaler, step: timedelta) -> pl.DataFrame:
    """Return how an ensemble forecast validation, by what train taught, and what came.

    A row for each step of each window: series, start, ``cutoff`` (the window's first start), value,
    ``mean``; no value where it is missing.
    """
    windows = []
    for row, at in enumerate(lived.origin_N.tolist()):
        entity, cutoff = lived.entities[lived.entity_N[row]], datetime.fromtimestamp(60 * at, UTC)
        values = {
            SERIES: entity,
            START: [shift(cutoff, i, step) for i in range(lived.truth_NH.shape[1])],
            "cutoff": cutoff,
            VALUE: scaler.unscale(lived.truth_NH[row], entity),
            "mean": scaler.unscale(lived.mixture_NH[row], entity),
        }
        windows.append(pl.DataFrame(values))
    return pl.concat(windows).with_columns(pl.col(VALUE).fill_nan(None))


def read_files(folder: Path, root: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by its path from ``root``."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def write_files(files: Mapping[str, bytes], root: Path) -> None:
    """Write what :func:`read_files` gave."""
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def make_folder(owner: object) -> Path:
    """Return a new folder that goes when the object does."""
    folder = Path(tempfile.mkdtemp(prefix="compevo-"))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


def read_ahead(table: Frame, rows: pl.DataFrame, form: TableForm, series: str) -> pl.DataFrame:
    """Return the columns known ahead of a table, for all series of ``rows`` where it names none."""
    wide = dataclasses.replace(form, series=form.series or series, value="", past=(), static=())
    added, read = read_table(table, wide, form.clock)
    names = rows.select(pl.col(SERIES).unique(maintain_order=True))
    return added if read.series else names.join(added.drop(SERIES), how="cross")


def gather_news(
    articles: pl.DataFrame, views: Sequence[WindowView], encoder_name: str
) -> NewsPool | None:
    """Return the articles that views name, as an encoder reads them; None without one."""
    if not encoder_name:
        return None
    from compevo_core.lm.encoder import load_encoder

    named = {name for view in views for name in view.candidate_ids}
    read = articles.filter(pl.col("article_id").is_in(list(named)))
    encoder = load_encoder(encoder_name)
    titles = read["title"].unique(maintain_order=True).to_list()
    row_of = {title: row for row, title in enumerate(titles)}
    return NewsPool(read, encoder.encode(titles)[[row_of[t] for t in read["title"]]], encoder.name)
