"""The data sets: grid, series, places, split plan and news rule.

What belongs here: what a declaration has; the values are in ``datasets.toml``. What does not: code
that reads or cuts data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import polars as pl
from pydantic import ConfigDict, TypeAdapter

from compevo_core.data.calendar import Place
from compevo_core.data.view import DEFAULT_STEPS, NO_BOUNDS, Bounds
from compevo_core.errors import ConfigError
from compevo_core.runtime.files import read_packaged

WLS, MINT, OLS, BOTTOM_UP = RECONCILIATIONS = ("wls", "mint", "ols", "bottom-up")
ALL_SERIES = "*"  # all series that are not totals, as the parts of a total


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySubset:
    """A named subset: ``count`` days from ``first_day`` on, ``every`` days apart."""

    name: str
    first_day: date
    every: int
    count: int

    def contains(self, day: date) -> bool:
        """Return whether ``day`` belongs to the subset."""
        offset = (day - self.first_day).days
        return offset >= 0 and offset % self.every == 0 and offset // self.every < self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One split of one series family: target days ``first_day`` to ``last_day``, both included.

    Days follow the market clock; ``series_pattern`` is a regular expression for series ids.
    """

    split: str
    series_pattern: str
    first_day: date
    last_day: date
    subsets: tuple[DaySubset, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSpec:
    """How windows of one data set are cut.

    ``series`` maps a pattern of ``series_id`` to an entity name; "" takes the pattern's one group.
    Where several patterns give one entity and no dated spans apply, the first pattern with data is
    used and the manifest lists the others as unused.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # a misspelled field must not be ignored

    name: str
    variable: str
    step: timedelta
    stride_steps: int
    series: tuple[tuple[str, str], ...]
    default_place: Place
    places: Mapping[str, Place] = field(default_factory=dict)  # of entities that are elsewhere
    market_offset: timedelta = timedelta(0)  # the fixed clock that starts target days
    align_to_market_day: bool = False
    lookback_steps: int = DEFAULT_STEPS
    horizon_steps: int = DEFAULT_STEPS
    season_steps: int = 0  # length of the season that the data show; 0: the grid's own
    spans: tuple[Span, ...] = ()
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2)  # of all series' time, without spans
    first_day: date | None = None
    last_day: date | None = None
    max_fill_steps: int = 0  # longest gap that an input may bridge
    max_filled_inputs: int = 0  # most filled steps of the inputs
    news_lookback: timedelta = timedelta(days=7)
    news_limit: int = 64  # most candidates of a window
    news_fewest: int = 0  # with fewer candidates, a window looks further back
    news_longest_lookback: timedelta = timedelta(days=28)  # how far back it then looks at most
    news_languages: tuple[str, ...] = ()  # languages that candidates may have; empty = all
    news_of_country: bool = False  # whether candidates are the news of the entity's own country
    news_source: str = ""  # publisher of all candidates (17-own-data)
    bounds: Bounds = NO_BOUNDS  # of what a value can be; forecasts are moved into them
    mape_threshold: float = 0.0  # series unit; smaller targets are left out of MAPE and counted
    task: str = ""  # what a prompt asks for, with {entity}; empty = known by the data set's name
    # Steps before an origin not yet measured when a view is made; one view for each.
    unknown_steps: tuple[int, ...] = (0,)
    published_evidence: bool = False  # whether views hold a published forecast's quantiles, errors
    # Whether views hold own values and covariates of the last fortnight
    past_evidence: bool = False
    totals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # entities by their total's
    # Whether views hold last year's values, holidays by step, and the values before the inputs
    year_evidence: bool = False

    def __post_init__(self) -> None:
        if self.stride_steps < 1 or self.step <= timedelta(0):
            raise ConfigError(
                f"{self.name}: step {self.step} and stride {self.stride_steps} must be above zero"
            )
        low, high = self.bounds
        if low is not None and high is not None and low >= high:
            raise ConfigError(f"{self.name}: the bounds {low:g} to {high:g} leave no value")
        if min(self.lookback_steps, self.horizon_steps) < 1:
            raise ConfigError(
                f"{self.name}: a look-back of {self.lookback_steps} and a horizon of "
                f"{self.horizon_steps} steps; both must be at least 1"
            )
        if abs(sum(self.fractions) - 1) > 1e-9 or min(self.fractions) <= 0:
            raise ConfigError(
                f"{self.name}: fractions {self.fractions} must be positive and add up to 1"
            )

        if self.news_longest_lookback < self.news_lookback:
            raise ConfigError(
                f"{self.name}: the longest look-back {self.news_longest_lookback} is shorter than "
                f"the usual one, {self.news_lookback}"
            )

    @property
    def horizon(self) -> timedelta:
        """Length of what a forecast covers; of months the mean one."""
        return self.horizon_steps * self.step

    @property
    def starts_with_days(self) -> bool:
        """Whether windows start with a day, so that a next day can be forecast."""
        return self.align_to_market_day or self.step >= timedelta(days=1)

    @property
    def has_origins_within_days(self) -> bool:
        """Whether windows start at several times of each day."""
        return self.align_to_market_day and self.stride_steps * self.step < timedelta(days=1)

    @property
    def market_clock(self) -> tzinfo:
        """The clock of target days."""
        return timezone(self.market_offset)

    def to_market(self, at_utc: datetime) -> datetime:
        """Return an instant on the clock of target days, as a time without a zone."""
        return at_utc.astimezone(self.market_clock).replace(tzinfo=None)

    def from_market(self, start: date | datetime) -> datetime:
        """Return the instant, UTC, of a time on that clock, or of the midnight of a day."""
        local = start if isinstance(start, datetime) else datetime.combine(start, time())
        return local.replace(tzinfo=self.market_clock).astimezone(UTC)

    def find_market_day(self) -> pl.Expr:
        """Return the expression of the day on that clock of ``start_utc``."""
        return (pl.col("start_utc") + self.market_offset).dt.date()

    def find_place(self, entity: str) -> Place:
        """Return where the people of an entity live."""
        return self.places.get(entity, self.default_place)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonedSpec(DatasetSpec):
    """A data set whose days begin at midnight of a clock with daylight saving.

    A day in whose night clocks change has an hour less or more. Where they skip midnight, the day
    begins as they change; where midnight comes twice, with the first one.
    """

    market_zone: str

    @property
    def market_clock(self) -> tzinfo:
        """The clock of target days."""
        return ZoneInfo(self.market_zone)

    def find_market_day(self) -> pl.Expr:
        """Return the expression of the day on that clock of ``start_utc``."""
        return pl.col("start_utc").dt.convert_time_zone(self.market_zone).dt.date()


class _DatasetsByName(dict[str, DatasetSpec]):
    """Declarations by name; an unknown name raises an error that lists the known ones."""

    def __missing__(self, name: str) -> DatasetSpec:
        raise ConfigError(f"no data set {name!r}; known: {', '.join(self)}")


_TABLES = read_packaged(__file__, "datasets")
_SPEC = TypeAdapter(DatasetSpec)
DATASETS: dict[str, DatasetSpec] = _DatasetsByName()
for _name, _table in _TABLES.items():
    # A declaration may begin with the fields of another.
    _fields = {"name": _name, **_TABLES.get(_table.pop("like", ""), {}), **_table}
    DATASETS[_name] = _SPEC.validate_python(_fields)

ELECTRICITY, ELECTRICITY_OPERATIONAL, EXCHANGE, BITCOIN, TRAFFIC = DATASETS.values()
NEM_PLACES = ELECTRICITY.places
