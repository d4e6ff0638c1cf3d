"""The data sets of a deployment: the built-in ones, and the ones that its user declares in TOML.

What belongs here: what the pipeline has to know of a data set, in one entry each, with the rules
that its rows must follow (grid, units, bounds, gaps), and reading the folder of declarations. What
does not: cutting windows (``compevo_core.data``), parsing, the checks (``checks.expectations``).

A broken declaration affects nothing else: its error is kept, to be shown.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import time, timedelta
from pathlib import Path

from compevo_core.data.context import PUBLISHED
from compevo_core.data.datasets import DATASETS, WLS, DatasetSpec
from compevo_core.data.steps import DAY
from compevo_core.errors import ConfigError
from compevo_pipeline.sources import bitinfocharts
from compevo_pipeline.sources.common.nem import NEM_ZONE
from compevo_pipeline.sources.feeds import Feed, default_feeds, make_own_feeds
from compevo_pipeline.sources.own.declaration import (
    Declaration,
    divide_declaration,
    is_pattern,
    make_spec,
    read_declaration,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """Rules for the rows of a variable."""

    unit: str
    low: float | None  # lowest value in it; None where there is no bound
    high: float | None  # highest value
    # Narrower bounds by region, where one range for all would hide an error.
    regions: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    is_steady: bool = False  # a run of one value, or a jump there and back, is a fault

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value; infinite where there is no bound."""
        low, high = self.low, self.high
        return (-math.inf if low is None else low, math.inf if high is None else high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of one data set."""

    step: timedelta  # the grid
    # Unit and bounds by variable; one that is not named must only be non-negative.
    variables: Mapping[str, Variable]
    max_gap_share: float  # largest share of a series' grid without a value, holes not counted
    hole: timedelta  # a longer stretch without values was not collected, and is not a gap
    weekdays_only: tuple[str, ...] = ()  # prefixes of series that publish on business days
    clock: timedelta = timedelta(0)  # UTC offset of the clock whose midnight is a step of the grid
    zones: tuple[str, ...] = ()  # clocks that its people live by; empty: none that changes
    # The same by name of what others forecast: the target, as published, and covariates by step.
    forecasts: Mapping[str, Variable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Night:
    """When a data set is refreshed by itself, and which day is forecast then."""

    zone: str  # whose clock the times are on
    at: time | None = None  # None: a quarter past midnight of the data set's own clock
    days_ahead: int = 0  # 0 forecasts the day of the refresh, 1 the one after it
    deadline: time | None = None  # when an alert is sent of a missing forecast; None: never


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDataset:
    """All that the pipeline knows of a data set."""

    spec: DatasetSpec  # how its windows are cut
    description: str  # one sentence for the UI
    rules: Rules  # what its rows must look like
    max_age: timedelta  # age of the newest value above which live mode warns
    feeds: tuple[Feed, ...] = ()  # its own sources; a built-in data set has them in `feeds`
    reconciliation: str = WLS  # how its totals are made to add up
    declaration: Path | None = None  # the file of a user's own data set, else None
    family: str = ""  # the declaration that it is a block of, if that names several files
    # After the refresh of midnight, so that they do not ask for the same news at once.
    night: Night = Night(zone=NEM_ZONE, at=time(1, 15))

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.spec.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The data sets of a deployment by name, built-in ones first.

    A declaration of several files is a family: each file is a data set of its own, a block.
    """

    datasets: Mapping[str, RegisteredDataset]  # every data set that can be used
    families: Mapping[str, RegisteredDataset] = field(default_factory=dict)  # what blocks share
    # The error of every declaration that cannot, by the name of its file.
    broken: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.datasets)

    def __getitem__(self, name: str) -> RegisteredDataset:
        """Return a data set.

        ConfigError if there is none of that name, or its declaration is broken.
        """
        if name in self.datasets:
            return self.datasets[name]
        if name in self.broken:
            raise ConfigError(self.broken[name])
        if name in self.families:
            blocks = self.find_blocks(name)
            raise ConfigError(
                f"{name} consists of {len(blocks)} blocks of series: name one, such as {blocks[0]}"
            )
        raise ConfigError(
            f"no data set {name!r}; known: {', '.join(self.datasets)}; declare one of your own "
            "with `compevo init`"
        )

    @property
    def whole(self) -> dict[str, RegisteredDataset]:
        """The data sets that are no block."""
        return {name: each for name, each in self.datasets.items() if not each.family}

    @property
    def declared(self) -> dict[str, RegisteredDataset]:
        """What has assets of its own: data sets that are no block, and families."""
        return {**self.whole, **self.families}

    def find_blocks(self, family: str) -> list[str]:
        """Return the names of the data sets that are blocks of a family."""
        return [each.name for each in self.datasets.values() if each.family == family]

    @property
    def own(self) -> tuple[RegisteredDataset, ...]:
        """The user's own data sets."""
        return tuple(dataset for dataset in self.datasets.values() if dataset.declaration)


# US dollars a unit of the currency; about a third beyond the range of the last thirty years.
_RATE_BOUNDS = {
    "aud": (0.4, 1.3),
    "gbp": (0.9, 2.5),
    "cad": (0.5, 1.3),
    "chf": (0.4, 1.6),
    "cny": (0.1, 0.2),
    "jpy": (0.004, 0.02),
    "nzd": (0.3, 1.1),
    "sgd": (0.4, 1.0),
    "eur": (0.7, 1.8),
}

# A sixth or more above every record and well below the least: roofs feed in more every year, and
# South Australia's demand falls below zero.
_REGION_BOUNDS = {
    "NSW1": (500.0, 17000.0),
    "QLD1": (500.0, 13500.0),
    "SA1": (-1500.0, 4500.0),
    "TAS1": (100.0, 2500.0),
    "VIC1": (-1500.0, 13000.0),
}
_DEMAND_VARIABLES = {
    "demand_mw": Variable(unit="MW", low=-1000, high=20000, regions=_REGION_BOUNDS, is_steady=True),
    "demand_forecast_mw": Variable(unit="MW", low=-1500, high=20000, regions=_REGION_BOUNDS),
}
_FORECASTS = {
    PUBLISHED: _DEMAND_VARIABLES["demand_forecast_mw"],
    "rooftop_pv_mw": Variable(unit="MW", low=0, high=20000),
    # Wider than any weather of the five places since measurements began.
    "temperature_c": Variable(unit="°C", low=-25, high=55),
    "dew_point_c": Variable(unit="°C", low=-45, high=40),
    "cloud_cover_pct": Variable(unit="%", low=0, high=100),
    "sunshine_share": Variable(unit="fraction", low=0, high=1),
    "wind_speed_m_s": Variable(unit="m/s", low=0, high=75),
    "solar_radiation_w_m2": Variable(unit="W/m²", low=0, high=1500),
}

_DEMAND_RULES = Rules(
    step=timedelta(minutes=30),
    variables=_DEMAND_VARIABLES,
    max_gap_share=0.01,
    hole=timedelta(days=2),
    zones=("Australia/Sydney",),
    forecasts=_FORECASTS,
)
# The market's floor, and a cap above every one it has had.
_PRICE = {"price_aud_per_mwh": Variable(unit="AUD/MWh", low=-1000, high=25000)}

BUILT_IN = {
    "electricity": RegisteredDataset(
        spec=DATASETS["electricity"],
        description=(
            "Half-hourly demand of the five NEM regions in MW (three AEMO measures, stored "
            "apart), AEMO's day-ahead forecasts, daily weather, and the published 100-window "
            "benchmark."
        ),
        rules=replace(_DEMAND_RULES, variables=_DEMAND_VARIABLES | _PRICE),
        max_age=timedelta(days=2),
    ),
    "electricity-operational": RegisteredDataset(
        spec=DATASETS["electricity-operational"],
        description=(
            "Half-hourly operational demand of the five NEM regions in MW from May 2025 on, "
            "with AEMO's day-ahead forecasts of demand and of rooftop solar power, and forecast"
            " weather of Open-Meteo (CC BY 4.0; its free service is for non-commercial use)."
        ),
        rules=_DEMAND_RULES,
        max_age=timedelta(days=2),
        # AEMO issues its day-ahead forecast at 17:00; three quarters of an hour later it is out.
        night=Night(zone=NEM_ZONE, at=time(17, 45), days_ahead=1, deadline=time(18, 45)),
    ),
    "exchange": RegisteredDataset(
        spec=DATASETS["exchange"],
        description=(
            "Daily US dollars per Australian dollar: ECB reference rates and the AUD/USD benchmark."
        ),
        rules=Rules(
            step=timedelta(days=1),
            variables={
                f"rate_usd_per_{code}": Variable(unit=f"USD per {code.upper()}", low=low, high=high)
                for code, (low, high) in _RATE_BOUNDS.items()
            },
            max_gap_share=0.05,
            hole=timedelta(days=14),
            weekdays_only=("ECB/", "N2F/", "RBA/"),
        ),
        max_age=timedelta(days=5),  # a long weekend without rates
    ),
    "bitcoin": RegisteredDataset(
        spec=DATASETS["bitcoin"],
        description="Daily Bitcoin price in USD and 17 further BitInfoCharts variables.",
        rules=Rules(
            step=timedelta(days=1),
            variables={
                metric.variable: Variable(
                    unit=metric.unit,
                    # No day of the network has a zero; what people tweet and search may end.
                    low=0 if slug in ("tweets", "google_trends") else 1e-12,
                    high=1e6 if slug == "price" else None,
                )
                for slug, metric in bitinfocharts.METRICS.items()
            },
            max_gap_share=0.05,
            hole=timedelta(days=120),
        ),
        max_age=timedelta(days=3),
    ),
    "traffic": RegisteredDataset(
        spec=DATASETS["traffic"],
        description="Hourly road occupancy (0 to 1) of Caltrans PeMS sensors.",
        rules=Rules(
            step=timedelta(hours=1),
            variables={
                "occupancy": Variable(unit="fraction", low=0, high=1),
                "pct_observed": Variable(unit="%", low=0, high=100),
            },
            max_gap_share=0.05,
            hole=timedelta(days=14),
            zones=("America/Los_Angeles",),
        ),
        max_age=timedelta(days=45),  # a month is published when it is over
    ),
}
"""The data sets of this project by name; their feeds are in ``feeds``."""

_HOLE_STEPS = 96  # a longer stretch without values was not collected


def load_registry(folder: Path) -> Registry:
    """Return the built-in data sets and those declared in ``folder/*.toml``.

    A folder that does not exist declares none.
    """
    datasets = dict(BUILT_IN)
    families: dict[str, RegisteredDataset] = {}
    broken: dict[str, str] = {}

    for path in sorted(folder.glob("*.toml")):
        try:
            declaration = read_declaration(path)
            check_own_name(declaration.name, path)
            # One file a name, and its own: two files of one name would hide each other.
            if declaration.name != path.stem:
                raise ConfigError(
                    f"{path}: name is {declaration.name!r}; rename the file to "
                    f"{declaration.name}.toml"
                )
            made = make_dataset(declaration, path)
            if is_pattern(declaration.series.file):
                blocks = divide_declaration(declaration, path.parent)
                if taken := [block.name for block in blocks if block.name in datasets]:
                    raise ConfigError(f"{path}: a file makes the block {taken[0]}: rename one")
                families[made.name] = made
                datasets |= {b.name: make_dataset(b, path, made.name) for b in blocks}
            else:
                datasets[made.name] = made
        except ConfigError as error:
            broken[path.stem] = str(error)
    return Registry(datasets=datasets, families=families, broken=broken)


def make_dataset(declaration: Declaration, path: Path, family: str = "") -> RegisteredDataset:
    """Return the entry of a user's own data set, or of a block of a family.

    Paths of tables in the config are relative to the folder of ``path``.
    """
    spec = make_spec(declaration)
    bounds, keys = declaration.evaluation, declaration.schedule
    return RegisteredDataset(
        spec=spec,
        description=declaration.description or f"Own data set, declared in {path.name}.",
        rules=Rules(
            step=spec.step,
            variables={
                spec.variable: Variable(
                    unit=declaration.series.unit, low=bounds.low, high=bounds.high
                )
            },
            max_gap_share=bounds.max_gap_share,
            hole=_HOLE_STEPS * spec.step,
            clock=spec.market_offset,
            zones=(spec.default_place.timezone,),
        ),
        # A file is copied by hand: twice its horizon is late on any grid.
        max_age=max(DAY * 2, 2 * spec.horizon),
        feeds=make_own_feeds(declaration, path.parent, family),
        reconciliation=bounds.reconciliation,
        declaration=path,
        family=family,
        night=Night(
            zone=keys.zone or spec.default_place.timezone,
            at=keys.at,
            days_ahead=keys.days_ahead,
            deadline=keys.deadline or (keys.at and time((keys.at.hour + 1) % 24, keys.at.minute)),
        ),
    )


def check_own_name(name: str, path: Path) -> None:
    """Raise :class:`ConfigError` for a name that means something else already."""
    # Feeds of one name would replace each other; on and off are words of COMPEVO_SCHEDULES.
    if name in {*DATASETS, *default_feeds(), "on", "off"}:
        raise ConfigError(
            f"{path}: the name {name!r} is built in; choose another, such as my-{name}"
        )
