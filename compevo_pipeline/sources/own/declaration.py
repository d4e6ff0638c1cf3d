"""The TOML file that declares a user's own data set, and the ``DatasetSpec`` that it means.

What belongs here: the keys, their bounds, checks of one key against another, reading a file, and
which grid, clock, splits and news follow. What does not: tables (``frames``), drafts (``draft``).
"""

import math
import re
from collections.abc import Mapping
from datetime import date, time, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from compevo_core.config.run import describe_error
from compevo_core.data.calendar import Place
from compevo_core.data.datasets import ALL_SERIES, DatasetSpec, Span, ZonedSpec
from compevo_core.data.news import OWN_PUBLISHER
from compevo_core.data.splits import divide_days
from compevo_core.data.steps import (
    DAY,
    FEWEST_INPUTS,
    choose_horizon,
    choose_lookback,
    choose_stride,
    read_step,
)
from compevo_core.errors import ConfigError
from compevo_core.runtime.files import read_toml
from compevo_core.table import text_stamps
from compevo_pipeline.sources.common.decode import TomlSection


def _check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name; use small letters, digits and single hyphens: my-demand"
        )
    return name


def _check_clock(zone: str) -> str:
    text_stamps.read_zone(zone)
    return zone


def _check_place(zone: str) -> str:
    if zone not in text_stamps.list_zones():
        raise ValueError(f"{zone!r} is not a time zone; write it as Europe/Paris")
    return zone


Name = Annotated[str, AfterValidator(_check_name)]
ClockZone = Annotated[str, AfterValidator(_check_clock)]
PlaceZone = Annotated[str, AfterValidator(_check_place)]
OptionalZone = Annotated[str, AfterValidator(lambda zone: zone and _check_place(zone))]
TimeOfDay = Annotated[time, BeforeValidator(lambda text: time.fromisoformat(str(text)))]
SERIES_PREFIX = "OWN"
_NO_LABEL = re.compile(r"[^\w.+]+")  # letters and digits of all scripts stay
_PATTERN = r"^OWN/(.+)$"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_NO_BLOCK = re.compile(r"[^a-z0-9]+")
MOST_STEPS = 1_500  # longest horizon: a day of minutes, and more
_MOST_INPUTS = 12_000


class SeriesKeys(TomlSection):
    """The table of values, and how its cells are read."""

    file: str
    """CSV or Parquet file; relative paths start at the TOML's folder; with a *, as in
    sales/*.parquet, each file is a block of series"""
    time: str
    """column of stamps"""
    period: str = ""
    """column of the part of the day, where time holds days: 13:30, or its number"""
    values: list[str] = Field(min_length=1)
    """columns of values, one series each"""
    id: str = ""
    """column that names the series, where all share a value column, or two as 'store + item'"""
    static: list[str] = Field(default=[])
    """columns with one number or word for each series, such as its kind; trees on lags read them"""
    # A spreadsheet would run a cell that begins like a formula.
    unit: str = Field(min_length=1, pattern=r"^(-|[^=+@\x00-\x1f-][^\x00-\x1f]*)$")
    """unit of the values, in any words"""
    time_zone: ClockZone = "UTC"
    """clock of stamps without an offset: Europe/Paris, UTC or +01:00"""
    time_format: str = ""
    """strptime format of the stamps; empty: ISO 8601"""
    stamps: Literal["start", "end"] = "start"
    """whether a stamp is the start or the end of its interval"""
    decimal: Literal[".", ","] = "."
    """decimal mark of the values"""
    duplicates: Literal["refuse", "first", "last", "mean"] = "refuse"
    """what to keep where one stamp has two different values"""
    aggregate: Literal["", "sum", "mean", "last"] = ""
    """what becomes of all rows within a step, of events or an irregular meter; empty: rows are on
    the grid"""
    fill: float | None = None
    """value of steps without a row, such as 0 of sales; empty: none"""
    repeated_hour: Literal["refuse", "first", "second"] = "refuse"
    """which of the two hours it is when clocks go back and a stamp comes once"""

    @model_validator(mode="after")
    def _check_columns(self) -> "SeriesKeys":
        if self.id and len(self.values) > 1:
            raise ValueError("with an id column there is one column of values; name one")
        if self.static and not self.id:
            raise ValueError("static columns describe series, so id must name them")
        if len(set(self.values)) < len(self.values):
            raise ValueError("a column of values comes twice; name each once")
        return self


class GridKeys(TomlSection):
    """The steps that the values are put on."""

    step: str
    """length of a step: 5min to 1d, weeks as 1w, months as 1mo (3mo, 12mo); rows finer than a step
    of at most a day are averaged"""
    horizon: int = Field(default=0, ge=0, le=MOST_STEPS)
    """steps of a forecast; 0: depends on the step"""
    lookback: int = Field(default=0, ge=0, le=_MOST_INPUTS)
    """steps of history; 0: depends on the step"""
    stride: int = Field(default=0, ge=0)
    """steps from one forecast to the next in train, validation and test; 0: a horizon or a day
    below daily grids, else one step"""
    season_steps: int = Field(default=0, ge=0)
    """season that the data show, in steps; 0: depends on the step"""
    max_fill_steps: int = Field(default=3, ge=0)
    """longest gap that an input may bridge"""
    max_filled_inputs: int | None = Field(default=None, ge=0)
    """most of the inputs that may be bridged; empty: a quarter"""

    @model_validator(mode="after")
    def _check_step(self) -> "GridKeys":
        step = read_step(self.step)
        if self.season_steps > self.lookback_steps:
            raise ValueError(
                f"a season of {self.season_steps} steps is longer than the look-back of "
                f"{self.lookback_steps}; set lookback to two seasons or more"
            )
        if 0 < self.lookback < FEWEST_INPUTS:
            raise ValueError(f"a look-back of {self.lookback} steps; give {FEWEST_INPUTS} or more")

        stride = self.stride_steps * step
        if step < DAY and stride % DAY and DAY % stride:
            raise ValueError(
                f"a stride of {self.stride} steps of {self.step} is not a number of days, nor "
                "divides one"
            )
        if self.filled_inputs >= self.lookback_steps:
            raise ValueError(
                f"max_filled_inputs {self.max_filled_inputs} of {self.lookback_steps} inputs; at "
                "least one must be measured"
            )
        return self

    @property
    def horizon_steps(self) -> int:
        """Steps of a forecast."""
        return self.horizon or choose_horizon(read_step(self.step))

    @property
    def lookback_steps(self) -> int:
        """Steps that a forecast looks back on."""
        return self.lookback or choose_lookback(read_step(self.step), self.horizon_steps)

    @property
    def stride_steps(self) -> int:
        """Steps from one origin to the next."""
        return self.stride or choose_stride(read_step(self.step), self.horizon_steps, 0, 1)

    @property
    def filled_inputs(self) -> int:
        """Most of the inputs that may be carried over gaps."""
        return (
            self.lookback_steps // 4 if self.max_filled_inputs is None else self.max_filled_inputs
        )


class SplitKeys(TomlSection):
    """Where train ends, and where validation does."""

    fractions: tuple[float, float, float] | None = None
    """train, validation, test: shares of all series' time; they move as it grows"""
    validation_from: date | None = None
    """first day of validation"""
    test_from: date | None = None
    """first day of the test, which has no end"""

    @model_validator(mode="after")
    def _check_one_rule(self) -> "SplitKeys":
        if (self.validation_from is None) != (self.test_from is None):
            raise ValueError("give both validation_from and test_from, or fractions")
        if (self.validation_from is None) == (self.fractions is None):
            raise ValueError("give either fractions, or validation_from and test_from")
        if self.validation_from and self.test_from and self.validation_from >= self.test_from:
            raise ValueError(f"validation_from {self.validation_from} is not before test_from")
        if self.fractions and (min(self.fractions) <= 0 or abs(sum(self.fractions) - 1) > 1e-9):
            raise ValueError(f"fractions {list(self.fractions)} must be above 0 and add up to 1")
        return self


class PlaceKeys(TomlSection):
    """Where the people of the series live."""

    time_zone: PlaceZone = "UTC"
    """time zone of weekdays and holidays"""
    country: str = ""
    """country of public holidays, such as FR; empty: none"""
    subdivision: str = ""
    """its state or region, such as BY; empty: the country"""

    @model_validator(mode="after")
    def _check_holidays(self) -> "PlaceKeys":
        if self.country:
            import holidays

            try:
                holidays.country_holidays(self.country, subdiv=self.subdivision or None)
            except NotImplementedError as error:
                raise ValueError(f"no public holidays are known: {error}") from error
        return self


class _ValueTableKeys(TomlSection):
    """A table of values in addition to the series itself."""

    file: str
    """CSV or Parquet file"""
    time: str
    """column of stamps"""
    values: list[str] = Field(min_length=1)
    """columns of values"""
    id: str = ""
    """column that names the series; empty: for every series"""
    time_format: str = ""
    """strptime format of the stamps; empty: ISO 8601"""
    decimal: Literal[".", ","] = "."
    """decimal mark of the values"""


class CovariateKeys(_ValueTableKeys):
    """A table of daily values, such as the weather; finer rows become mean, lowest and highest."""

    time: str
    """column of days or stamps, on the clock of the series"""
    known: Literal["after", "before"] = "after"
    """after: measured, known when the day is over; before: a plan or forecast that is known when it
    begins"""


class AheadKeys(_ValueTableKeys):
    """A table of values that are known ahead, one for each step: a temperature forecast, a plan."""

    time: str
    """column of stamps, of the same steps as the series"""
    known_at: str = ""
    """column of the time at which each value was known; the newest value for a step counts"""
    known: Literal["", "start"] = ""
    """start: every value was known from the start, as a calendar is"""

    @model_validator(mode="after")
    def _check_one_rule(self) -> "AheadKeys":
        if bool(self.known_at) == bool(self.known):
            raise ValueError(
                "give either known_at, the column of the time at which each value was known, or "
                'known = "start" if all were known from the start, as measured values were not'
            )
        return self


class NewsKeys(TomlSection):
    """Where the articles come from that the agents may read."""

    articles: str = ""
    """CSV or Parquet file of articles"""
    time: str = "published_at"
    """its column of publication times"""
    title: str = "title"
    """its column of headlines"""
    url: str = ""
    """its column of addresses; empty: none"""
    body: str = ""
    """its column of texts; empty: none"""
    time_format: str = ""
    """strptime format of the times; empty: ISO 8601"""
    gdelt: str = ""
    """query that live mode asks GDELT"""
    keywords: list[str] = Field(default=[])
    """keep articles that hold one of these words"""
    lookback_days: int = Field(default=7, ge=1, le=365)
    """how far back candidates reach"""


class EvaluationKeys(TomlSection):
    """How errors are measured, and what values may be."""

    mape_threshold: float = Field(default=0.0, ge=0)
    """smaller values are left out of MAPE"""
    low: float | None = None
    """no value is below this, and no forecast; empty: any"""
    high: float | None = None
    """no value is above this, and no forecast; empty: any"""
    reconciliation: Literal["wls", "mint", "ols", "bottom-up"] = "wls"
    """how totals are made to add up: by the width of bands, the covariance of errors, all series
    alike, or only from their parts"""
    max_gap_share: float = Field(default=0.05, ge=0, le=1)
    """share of gaps above which a check warns"""


class ScheduleKeys(TomlSection):
    """When it is refreshed and forecast, where ``COMPEVO_SCHEDULES`` names it."""

    at: TimeOfDay | None = None
    """time of the refresh, as 18:00; empty: after midnight"""
    zone: OptionalZone = ""
    """its clock; empty: place.time_zone"""
    days_ahead: int = Field(default=0, ge=0, le=1)
    """1: forecast the day after, from what is known at that time"""
    deadline: TimeOfDay | None = None
    """when a missing forecast is reported; empty: an hour after at"""

    @model_validator(mode="after")
    def _check_at(self) -> "ScheduleKeys":
        if self.at is None and (self.days_ahead or self.zone or self.deadline):
            raise ValueError("days_ahead, zone and deadline need at, the time of the refresh")
        return self


class PromptKeys(TomlSection):
    """The words that agents read."""

    task: str = ""
    """what is predicted, with {entity} for the series"""


class Declaration(TomlSection):
    """A user's own data set."""

    name: Name
    """name of the data set: letters, digits and hyphens"""
    description: str = ""
    """one sentence for the UI"""
    series: SeriesKeys
    grid: GridKeys
    splits: SplitKeys
    place: PlaceKeys = PlaceKeys()
    covariates: CovariateKeys | None = None
    ahead: AheadKeys | None = None
    totals: dict[str, list[str]] = Field(default={})
    """names of series by the name of their total; ["*"]: all"""
    news: NewsKeys = NewsKeys()
    evaluation: EvaluationKeys = EvaluationKeys()
    prompt: PromptKeys = PromptKeys()
    schedule: ScheduleKeys = ScheduleKeys()

    @model_validator(mode="after")
    def _check_series_of_covariates(self) -> "Declaration":
        for section, keys in (("covariates", self.covariates), ("ahead", self.ahead)):
            if keys is not None and self.series.id and not keys.id:
                raise ValueError(
                    f"{section}.id is missing: a column names the series, so name the column of "
                    f"the {section} table with the series of each row"
                )
        if self.totals and self.evaluation.high is not None:
            raise ValueError("totals are above evaluation.high, which bounds every series")
        return self


def read_declaration(path: Path) -> Declaration:
    """Read a TOML file; a ConfigError names file, key and remedy."""
    return check_declaration(read_toml(path, "check the file"), str(path))


def check_declaration(raw: Mapping[str, object], where: str) -> Declaration:
    """Return the declaration that keys make.

    ``where`` names it in the message. ConfigError if a key is missing, unknown or wrong.
    """
    try:
        return Declaration.model_validate(raw)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc']))} is missing; `compevo init` writes every key with "
            "its meaning"
            if fault["type"] == "missing"
            else describe_error(fault, Declaration)
            for fault in error.errors()
        ]
        raise ConfigError(f"{where}: {'; '.join(faults)}") from error


def make_spec(declaration: Declaration) -> DatasetSpec:
    """Return how windows of a declared data set are cut.

    Windows of a grid below a day start at midnight of the stamps' clock, and where the horizon is
    shorter a stride apart on each day; windows of longer steps a stride apart. Where daylight
    saving is no whole number of steps, days keep standard time.
    """
    step = read_step(declaration.grid.step)
    is_daily = step >= DAY
    news, splits = declaration.news, declaration.splits
    spans: tuple[Span, ...] = ()
    if splits.validation_from is not None and splits.test_from is not None:
        spans = divide_days(_PATTERN, splits.validation_from, splits.test_from)
    at = declaration.schedule.at
    unknown_steps: tuple[int, ...] = (0,)
    if at is not None and declaration.schedule.days_ahead and step < DAY:
        into_day = timedelta(hours=at.hour, minutes=at.minute)
        # Forecast on the day before: one more than begin after that time, as the newest is late.
        unknown_steps = (0, math.ceil((DAY - into_day) / step) + 1)
    place = Place(
        timezone=declaration.place.time_zone,
        country=declaration.place.country,
        subdivision=declaration.place.subdivision,
    )

    zone = declaration.series.time_zone
    saving = text_stamps.find_summer_offset(zone) - text_stamps.find_standard_offset(zone)
    is_zoned = saving and step < DAY and not saving % step
    make = partial(ZonedSpec, market_zone=zone) if is_zoned else DatasetSpec
    return make(
        name=declaration.name,
        variable=name_variable(declaration),
        step=step,
        stride_steps=declaration.grid.stride_steps,
        series=((_PATTERN, ""),),
        default_place=place,
        market_offset=text_stamps.find_standard_offset(zone),
        unknown_steps=unknown_steps,
        align_to_market_day=not is_daily,
        lookback_steps=declaration.grid.lookback_steps,
        horizon_steps=declaration.grid.horizon_steps,
        season_steps=declaration.grid.season_steps,
        year_evidence=True,
        totals={
            make_label(total): tuple(
                part if part == ALL_SERIES else make_label(part) for part in parts
            )
            for total, parts in declaration.totals.items()
        },
        spans=spans,
        fractions=splits.fractions or (0.7, 0.1, 0.2),
        max_fill_steps=declaration.grid.max_fill_steps,
        max_filled_inputs=declaration.grid.filled_inputs,
        news_lookback=timedelta(days=news.lookback_days),
        news_longest_lookback=timedelta(days=max(28, news.lookback_days)),
        # Chosen where articles are read: an article without one of the words is not stored.
        news_source=name_publisher(declaration.name),
        bounds=(declaration.evaluation.low, declaration.evaluation.high),
        mape_threshold=declaration.evaluation.mape_threshold,
        task=declaration.prompt.task
        or f"Predict the next {declaration.grid.horizon_steps} values of {{entity}}, "
        f"{declaration.grid.step} each",
    )


def is_pattern(file: str) -> bool:
    """Whether a declaration's file names several, each a block of series."""
    return "*" in file


def list_files(pattern: Path) -> list[Path]:
    """Return the files that an absolute path with a ``*`` matches, in order."""
    return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def divide_declaration(declaration: Declaration, folder: Path) -> list[Declaration]:
    """Return a declaration for each file of a family, named by what the ``*`` stands for.

    A ``*`` in the path of another table stands for the same. Relative paths start at ``folder``.
    ConfigError if the pattern matches no file, or two whose blocks have one name, or if
    totals or news are declared, which would belong to all blocks at once.
    """
    pattern = (folder / declaration.series.file).absolute()
    before, _, after = str(pattern).partition("*")
    files = list_files(pattern) if "*" not in after else []
    if not files:
        raise ConfigError(
            f"{declaration.name}: no file matches series.file {declaration.series.file!r}; write "
            "one * into it, as in sales/*.parquet"
        )
    if declaration.totals or declaration.news.articles or declaration.news.gdelt:
        raise ConfigError(
            f"{declaration.name}: totals and news belong to no single block: leave [totals] and "
            "[news] out, or declare one file"
        )

    blocks: dict[str, Declaration] = {}
    for file in files:
        matched = str(file)[len(before) : len(str(file)) - len(after)]
        block = _NO_BLOCK.sub("-", matched.lower()).strip("-")
        if not block or block in blocks:
            raise ConfigError(
                f"{file}: its block is {block!r}, as another's or empty: rename the file so that "
                "the * stands for other letters and digits"
            )
        tables = {
            section: keys.model_copy(update={"file": keys.file.replace("*", matched)})
            for section in ("series", "covariates", "ahead")
            if (keys := getattr(declaration, section)) is not None
        }
        named = {"name": f"{declaration.name}-{block}"}
        blocks[block] = declaration.model_copy(update=tables | named)
    return list(blocks.values())


def name_publisher(name: str) -> str:
    """Return the publisher of a data set's own files and articles."""
    return OWN_PUBLISHER + name


def name_variable(declaration: Declaration) -> str:
    """Return the variable of the series: the column of values, or "value" for several."""
    values = declaration.series.values
    return make_label(values[0]) if len(values) == 1 else "value"


def make_label(text: str) -> str:
    """Return a column's or series' name as a label that file names and prompts may hold."""
    return _NO_LABEL.sub("-", text).strip("-.")
