"""``forecast/next_day``: tomorrow's forecast, issued before anyone knows the answer.

What belongs here: one issued forecast a target day, and how it is shown. What does not: how a day
is forecast (``compevo_pipeline.next_day``), the record (``compevo_core.issued``).

A partition is a target day. A day that is filled in later from the same data gives the very same
forecast; one that was issued is never changed.
"""

from datetime import date, timedelta
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.baselines.shared_fits import SharedFits
from compevo_core.issued import IssuedForecast
from compevo_pipeline.asset_keys import NEWS_EMBEDDINGS, NEXT_DAY, model_key, windows_key
from compevo_pipeline.assets import metadata
from compevo_pipeline.assets.day_picture import render_day
from compevo_pipeline.assets.definition import GPU_POOL, OWNERS, code_version, fits_folder
from compevo_pipeline.failures import translate_errors
from compevo_pipeline.next_day import forecast_day
from compevo_pipeline.next_day_inputs import NEWS_LIMIT, KnownTo, NewsRule, StaleNews
from compevo_pipeline.partitions import OPERATIONAL, target_days
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


class NextDayConfig(dg.Config):
    """What the forecast may know, and when its news is too old."""

    known_to: KnownTo = Field(
        default=KnownTo.ISSUE_TIME,
        description="issue-time: to 17:00 the day before, when AEMO issues its own; or midnight",
    )
    news_limit_hours: float = Field(
        default=NEWS_LIMIT / timedelta(hours=1),
        gt=0,
        description="age of the newest article, at the time the forecast knows to, that is allowed",
    )
    stale_news: StaleNews = Field(
        default=StaleNews.WARN,
        description="where it is older: warn, and forecast; or refuse",
    )


@dg.asset(
    key=NEXT_DAY,
    deps=[
        model_key(OPERATIONAL),
        windows_key(OPERATIONAL),
        NEWS_EMBEDDINGS,
    ],
    partitions_def=target_days,
    group_name="forecast",
    description=(
        "Operational demand of a day, issued the day before from what was known by then: values by "
        "region, agents, weights, news; sealed, and never changed."
    ),
    kinds={"pytorch", "parquet"},
    owners=OWNERS,
    code_version=code_version(*CODE),
    pool=GPU_POOL,
)
def next_day(
    context: dg.AssetExecutionContext,
    config: NextDayConfig,
    workspace: Workspace,
    clock: dg.ResourceParam[Clock],
) -> dg.MaterializeResult[Any]:
    """Issue the forecast of the partition's day."""
    day = date.fromisoformat(context.partition_key)
    with translate_errors(retry=False):
        found = forecast_day(
            workspace,
            OPERATIONAL,
            day,
            config.known_to,
            clock=clock,
            log=context.log,
            fit=SharedFits(fits_folder(workspace.layout)),
            news_rule=NewsRule(
                limit=timedelta(hours=config.news_limit_hours), action=config.stale_news
            ),
        )

    forecast = found.forecast
    points = forecast.rows.filter(pl.col("quantile").is_null())
    return dg.MaterializeResult(
        metadata={
            "issued_at": str(forecast.facts["issued_at"]),
            "information_until": str(forecast.facts["information_until"]),
            "issued_now": found.is_new,
            "notes": "; ".join(found.notes) or "none",
            "newest_known": metadata.render_counts(_name_newest(forecast)),
            "model": str(forecast.facts["artifact_hash"])[:16],
            "dagster/row_count": forecast.rows.height,
            "by_region": metadata.render_table(_summarise(points), rows=10),
            "weights": metadata.render_table(_tabulate_weights(forecast), rows=10),
            "plot": render_day(forecast),
            "folder": metadata.link_path(found.folder),
        },
        data_version=dg.DataVersion(forecast.hash[:32]),
    )


def _name_newest(forecast: IssuedForecast) -> dict[str, object]:
    """Return the newest thing of each input that the forecast knew, by name."""
    newest = forecast.facts["newest"]
    by_entity = {f"value of {entity}": stamp for entity, stamp in newest["values"].items()}
    return by_entity | {
        "published forecast": newest["publication"] or "none",
        "article": newest["article"] or "none",
    }


def _summarise(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the mean over the day by region (rows) and method (columns), whole megawatts."""
    means = rows.group_by("entity", "method", maintain_order=True).agg(
        pl.col("value").mean().round(0)
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
