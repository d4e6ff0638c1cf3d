"""``forecast/next_day``: a data set's next day, forecast before anyone knows the answer.

What belongs here: one issued forecast a target day, and how it is shown. What does not: how a day
is forecast (``compevo_pipeline.next_day``), the record (``compevo_core.issued``).

A partition is the day that the forecast begins with: 48 half-hours are that day, 48 hours it and
the one after it, 48 days it and the 47 after it. A day that is filled in later from the same data
gives the very same forecast; one that was issued is never changed.
"""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.baselines.shared_fits import SharedFits
from compevo_core.data.datasets import DatasetSpec
from compevo_core.data.view import HORIZON
from compevo_core.day_summary import choose_decimals
from compevo_core.issued import IssuedForecast, list_issued, read_issued
from compevo_pipeline.asset_keys import (
    NEWS_EMBEDDINGS,
    model_key,
    next_day_key,
    windows_key,
)
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.day_picture import render_day
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, code_version, fits_folder
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.launch_config import LaunchConfig
from compevo_pipeline.next_day import DayForecast, forecast_day
from compevo_pipeline.next_day_inputs import NEWS_LIMIT, KnownTo, NewsRule, StaleNews
from compevo_pipeline.partitions import make_target_days
from compevo_pipeline.registry import Registry
from compevo_pipeline.resources import Clock, Workspace

CODE = (
    "compevo_core/agents",
    "compevo_core/baselines",
    "compevo_core/data",
    "compevo_core/forecaster.py",
    "compevo_core/daily_state.py",
    "compevo_core/issued.py",
    "compevo_core/lm",
    "compevo_core/online",
    "compevo_core/quantiles.py",
    "compevo_pipeline/next_day.py",
    "compevo_pipeline/next_day_inputs.py",
)


class NextDayConfig(LaunchConfig):
    """What the forecast may know, and when its news is too old."""

    known_to: KnownTo | None = Field(default=None, strict=False)
    """midnight before the day; or issue-time, when the publisher issues its own forecast (AEMO: at
    17:00 the day before); left out: the earlier one that the data set's views know"""
    news_limit_hours: float = Field(default=NEWS_LIMIT / timedelta(hours=1), gt=0)
    """age of the newest article, at the time the forecast knows to, that is allowed"""
    stale_news: StaleNews = Field(default=StaleNews.WARN, strict=False)
    """where it is older: warn, and forecast; or refuse"""

    @property
    def news_rule(self) -> NewsRule:
        """The rule for old news."""
        return NewsRule(limit=timedelta(hours=self.news_limit_hours), action=self.stale_news)


def build_next_day_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return an asset for each data set whose windows start with a day."""
    specs = [registry[name].spec for name in registry]
    return [build_next_day_asset(spec) for spec in specs if spec.starts_with_days]


def build_next_day_asset(spec: DatasetSpec) -> dg.AssetsDefinition:
    """Return the asset of one data set's forecasts."""
    dataset = spec.name

    @dg.asset(
        key=next_day_key(dataset),
        deps=[model_key(dataset), windows_key(dataset), NEWS_EMBEDDINGS],
        partitions_def=make_target_days(spec),
        group_name="forecast",
        description=(
            f"Forecast of {dataset} for {_describe_span(spec)}, issued from what was known before: "
            "values by series, agents, weights, news; sealed, and never changed."
        ),
        kinds={"pytorch", "parquet"},
        owners=OWNERS,
        code_version=code_version(*CODE),
        pool=GPU_POOL,
        tags={"dataset": dataset},
        op_tags={"dataset": dataset},
        config_schema=NextDayConfig.schema_of_launch(),
    )
    def _next_day(
        context: dg.AssetExecutionContext, workspace: Workspace, clock: dg.ResourceParam[Clock]
    ) -> dg.MaterializeResult[Any]:
        with translate_errors(retry=False):
            config = NextDayConfig.read(context)
            found = forecast_day(
                workspace,
                dataset,
                date.fromisoformat(context.partition_key),
                config.known_to,
                clock=clock,
                log=context.log,
                fit=SharedFits(fits_folder(workspace.layout)),
                news_rule=config.news_rule,
            )
        return dg.MaterializeResult(
            metadata={"mode": workspace.data_mode.value} | _describe(found),
            data_version=dg.DataVersion(found.forecast.hash[:32]),
        )

    return _next_day


def _describe_span(spec: DatasetSpec) -> str:
    days = HORIZON * spec.step / timedelta(days=1)
    return "a day" if days == 1 else f"{days:g} days"


def _describe(found: DayForecast) -> dict[str, Any]:
    """Return what the asset's page shows of an issued forecast."""
    forecast = found.forecast
    points = forecast.rows.filter(pl.col("quantile").is_null())
    return {
        "issued_at": str(forecast.facts["issued_at"]),
        "information_until": str(forecast.facts["information_until"]),
        "issued_now": found.is_new,
        "notes": "; ".join(found.notes) or "none",
        "newest_known": metadata.render_counts(_name_newest(forecast)),
        "model": str(forecast.facts["artifact_hash"])[:16],
        "dagster/row_count": forecast.rows.height,
        "by_series": metadata.render_table(_summarise(points), rows=10),
        # An evening's forecast and that of midnight are of one day, which is one partition.
        "of_this_day": metadata.render_table(_tabulate_issued(found)),
        "weights": metadata.render_table(_tabulate_weights(forecast), rows=10),
        "plot": render_day(forecast),
        "folder": metadata.link_path(found.folder),
    }


def _tabulate_issued(found: DayForecast) -> pl.DataFrame:
    """Return the forecasts of the day by what they knew, that of this run among them."""
    origin = found.forecast.origin.astimezone(UTC)
    rows = []
    for folder in list_issued(found.folder.parents[1], origin):
        facts = read_issued(folder).facts
        until = datetime.fromisoformat(facts["information_until"])
        rows.append(
            {
                "known_to": (KnownTo.MIDNIGHT if until == origin else KnownTo.ISSUE_TIME).value,
                "known_until": f"{until:%Y-%m-%d %H:%M} UTC",
                "issued_at": str(facts["issued_at"]),
                "of_this_run": folder == found.folder,
            }
        )
    return pl.DataFrame(rows)


def _name_newest(forecast: IssuedForecast) -> dict[str, object]:
    """Return the newest thing of each input that the forecast knew, by name."""
    newest = forecast.facts["newest"]
    by_entity = {f"value of {entity}": stamp for entity, stamp in newest["values"].items()}
    return by_entity | {
        "published forecast": newest["publication"] or "none",
        "article": newest["article"] or "none",
    }


def _summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over the horizon by series (rows) and method (columns), to four digits."""
    decimals = choose_decimals(rows["value"].to_list())
    means = rows.group_by("entity", "method", maintain_order=True).agg(
        pl.col("value").mean().round(decimals)
    )
    return means.pivot("method", index="entity", values="value")


def _tabulate_weights(forecast: IssuedForecast) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"entity": one["entity"]}
            | {f"agent {agent}": round(weight, 3) for agent, weight in enumerate(one["weights"])}
            for one in forecast.facts["series"]
        ]
    )
