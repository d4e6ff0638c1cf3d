"""The data sets of a deployment: the built-in ones, and those of its user's TOML files.

What belongs here: all that the pipeline has to know of a data set, in one entry each, and reading
the folder of declarations. What does not: how windows are cut (``compevo_core.data``), parsing
(``sources``), assets.

A declaration that is broken takes nothing else down: it is kept with its error, to be shown.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from compevo_core.data.datasets import DATASETS, DatasetSpec
from compevo_core.errors import ConfigError
from compevo_pipeline.feeds import Feed
from compevo_pipeline.own_feeds import make_feeds
from compevo_pipeline.series_rules import RULES, Rules, Variable
from compevo_pipeline.sources.own.declaration import DAY, Declaration, read_declaration
from compevo_pipeline.sources.own.spec import make_spec

_DESCRIPTIONS = {
    "electricity": (
        "Half-hourly demand of the five NEM regions in MW (three AEMO measures, stored apart), "
        "AEMO's day-ahead forecasts, daily weather, and the published 100-window benchmark."
    ),
    "electricity-operational": (
        "Half-hourly operational demand of the five NEM regions in MW from May 2025 on, with "
        "AEMO's day-ahead forecasts of demand and of rooftop solar power, and forecast weather of "
        "Open-Meteo (CC BY 4.0; its free service is for non-commercial use)."
    ),
    "exchange": (
        "Daily US dollars per Australian dollar: ECB reference rates and the AUD/USD benchmark."
    ),
    "bitcoin": "Daily Bitcoin price in USD and 17 further BitInfoCharts variables.",
    "traffic": "Hourly road occupancy (0 to 1) of Caltrans PeMS sensors.",
}
_MAX_AGES = {
    "electricity": timedelta(days=2),
    "electricity-operational": timedelta(days=2),
    "exchange": timedelta(days=5),  # a long weekend without rates
    "bitcoin": timedelta(days=3),
    "traffic": timedelta(days=45),  # a month is published when it is over
}
_HOLE_STEPS = 96  # two horizons: a longer stretch without values was not collected


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredDataset:
    """All that the pipeline knows of a data set.

    Attributes:
        spec: how its windows are cut.
        description: one sentence for the UI.
        rules: what its rows must look like.
        max_age: age of the newest value above which live mode warns.
        feeds: its own sources; empty for a built-in one, whose sources are in ``feeds``.
        declaration: the file of a user's own data set, else None.
    """

    spec: DatasetSpec
    description: str
    rules: Rules
    max_age: timedelta
    feeds: tuple[Feed, ...] = ()
    declaration: Path | None = None

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.spec.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The data sets of a deployment by name, built-in ones first.

    Attributes:
        datasets: every data set that can be used.
        broken: the error of every declaration that cannot, by the name of its file.
    """

    datasets: Mapping[str, RegisteredDataset]
    broken: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.datasets)

    def __getitem__(self, name: str) -> RegisteredDataset:
        """Return a data set.

        Raises:
            ConfigError: there is none of that name, or its declaration is broken.
        """
        if name in self.datasets:
            return self.datasets[name]
        if name in self.broken:
            raise ConfigError(self.broken[name])
        raise ConfigError(
            f"no data set {name!r}; known: {', '.join(self.datasets)}; declare one of your own "
            "with `compevo init`"
        )

    @property
    def own(self) -> tuple[RegisteredDataset, ...]:
        """The user's own data sets."""
        return tuple(one for one in self.datasets.values() if one.declaration is not None)


def load_registry(folder: Path) -> Registry:
    """Return the built-in data sets and those declared in ``folder/*.toml``.

    A folder that does not exist declares none.
    """
    datasets = {
        name: RegisteredDataset(
            spec=spec,
            description=_DESCRIPTIONS[name],
            rules=RULES[name],
            max_age=_MAX_AGES[name],
        )
        for name, spec in DATASETS.items()
    }
    broken: dict[str, str] = {}

    for path in sorted(folder.glob("*.toml")):
        try:
            declaration = read_declaration(path)
            _refuse_name(declaration, path)
            datasets[declaration.name] = make_dataset(declaration, path)
        except ConfigError as error:
            broken[path.stem] = str(error)
    return Registry(datasets=datasets, broken=broken)


def make_dataset(declaration: Declaration, path: Path) -> RegisteredDataset:
    """Return the entry of a user's own data set.

    Args:
        declaration: what the file says.
        path: the file; the tables that it names lie relative to its folder.
    """
    spec = make_spec(declaration)
    bounds = declaration.evaluation
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
        max_age=max(DAY * 2, 2 * 48 * spec.step),
        feeds=make_feeds(declaration, path.parent),
        declaration=path,
    )


def _refuse_name(declaration: Declaration, path: Path) -> None:
    if declaration.name in DATASETS:
        raise ConfigError(
            f"{path}: name {declaration.name!r} is that of a built-in data set; choose another"
        )
    # One file a name, and its own: two files of one name would hide each other.
    if declaration.name != path.stem:
        raise ConfigError(
            f"{path}: name is {declaration.name!r}; rename the file to {declaration.name}.toml"
        )
