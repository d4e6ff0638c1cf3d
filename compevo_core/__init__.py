"""CompEvo: a competing, evolving population of LoRA agents for news-driven forecasting.

A library: no Dagster, no database, no network. The names below are the public API; everything else
may change between versions.

    from compevo_core import Forecaster

    forecaster = Forecaster(horizon=28).fit(table)  # unique_id, ds, y; pandas or polars
    forecast = forecaster.predict()  # unique_id, ds, mean and quantiles

    from compevo_core import CompEvoForecaster, NewsPool, WindowSet

    windows = WindowSet.read("windows/electricity")
    population = CompEvoForecaster.load("runs/mine", NewsPool.read("news"))
    forecast_NH = population.predict(windows.split("test").views())
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compevo_core.baselines import BASELINES, fit_baseline
    from compevo_core.baselines.base import ViewForecaster
    from compevo_core.config.run import RunConfig
    from compevo_core.data.build import build_views, build_windows
    from compevo_core.data.datasets import DATASETS, DatasetSpec
    from compevo_core.data.news_pool import NewsPool
    from compevo_core.data.schemas import SERIES_SCHEMA
    from compevo_core.data.view import Window, WindowView
    from compevo_core.data.window import WindowSet
    from compevo_core.errors import CompEvoError
    from compevo_core.evaluation.result_rows import Identity, evaluate
    from compevo_core.forecast.forecaster import CompEvoForecaster
    from compevo_core.table.forecaster import Forecaster
    from compevo_core.table.groups import GroupedForecaster
    from compevo_core.training.round_record import RoundRecord
    from compevo_core.training.run_folder import RunFolder
    from compevo_core.training.trainer import train

__version__ = "0.3.0"
SAMPLE = Path(__file__).with_name("sample")
"""Folder of made-up tables: daily ``load.csv``, and the forecasts of ``weather.csv.gz``."""
__all__ = [
    "BASELINES",
    "DATASETS",
    "SAMPLE",
    "SERIES_SCHEMA",
    "CompEvoError",
    "CompEvoForecaster",
    "DatasetSpec",
    "Forecaster",
    "GroupedForecaster",
    "Identity",
    "NewsPool",
    "RoundRecord",
    "RunConfig",
    "RunFolder",
    "ViewForecaster",
    "Window",
    "WindowSet",
    "WindowView",
    "__version__",
    "build_views",
    "build_windows",
    "evaluate",
    "fit_baseline",
    "train",
]

_MODULES = {
    "BASELINES": "baselines",
    "DATASETS": "data.datasets",
    "CompEvoError": "errors",
    "CompEvoForecaster": "forecast.forecaster",
    "DatasetSpec": "data.datasets",
    "Forecaster": "table.forecaster",
    "GroupedForecaster": "table.groups",
    "Identity": "evaluation.result_rows",
    "NewsPool": "data.news_pool",
    "RoundRecord": "training.round_record",
    "RunConfig": "config.run",
    "RunFolder": "training.run_folder",
    "SERIES_SCHEMA": "data.schemas",
    "ViewForecaster": "baselines.base",
    "Window": "data.view",
    "WindowSet": "data.window",
    "WindowView": "data.view",
    "build_views": "data.build",
    "build_windows": "data.build",
    "evaluate": "evaluation.result_rows",
    "fit_baseline": "baselines",
    "train": "training.trainer",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Import a public name when it is first used.

    Importing the package must stay cheap: the Dagster definitions load without torch.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, which nothing has imported yet."""
    return sorted({*globals(), *__all__})
