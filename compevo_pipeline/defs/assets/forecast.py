"""``forecast/next_day`` and ``forecast/scored``: days forecast in advance, and how good they were.

What belongs here: a forecast for each target day, its scores, and how both are shown. What does
not: forecasting (``work.next_day``), scoring (``compevo_core``), alarms (``defs.asset_checks``).

A partition is the day that the forecast begins with: 48 half-hours are that day, 48 days it and the
47 after it; where windows begin several times a day, ``at`` names another time than midnight. Of a
family of blocks the partitions are the blocks, and a launch names the day. A forecast that was
issued is never changed; a day that is filled in later from the same data gives the same forecast.
Scores have no partitions: a run scores all days that are over, again where the truth was revised.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
import polars as pl
from pydantic import Field

from compevo_core.errors import ConfigError
from compevo_core.evaluation.issued_scores import PERSISTENCE, measure_skill, select_standing
from compevo_core.evaluation.result_rows import POOLED
from compevo_core.forecast.explain import choose_decimals
from compevo_core.forecast.issued import (
    EQUAL,
    METHOD,
    PUBLISHED,
    list_issued,
    read_chain,
    read_issued,
)
from compevo_core.report.tomorrow import ForecastDay, day_table, name_span, weight_table
from compevo_pipeline.defs import asset_keys as keys
from compevo_pipeline.defs import definition, metadata
from compevo_pipeline.defs.definition import Blocks, Context, Result, WorkspaceParam
from compevo_pipeline.sources.registry import RegisteredDataset
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.next_day import (
    NEWS_LIMIT,
    DayForecast,
    KnownTo,
    MissingInputError,
    NewsRule,
    StaleNews,
    forecast_day,
)
from compevo_pipeline.work.results import update_scored

_PEAK = frozenset({"peak", "80 % band ", "at", "°C"})  # columns of the report's table of a day
_LOGIC = "goes by"

NEXT_DAY_CODE = (
    "compevo_core/agents",
    "compevo_core/baselines",
    "compevo_core/data",
    "compevo_core/forecast/forecaster.py",
    "compevo_core/forecast/issued.py",
    "compevo_core/forecast/prediction.py",
    "compevo_core/lm",
    "compevo_core/lora",
    "compevo_pipeline/work/next_day.py",
)


class NextDayConfig(definition.LaunchConfig):
    """Up to when the forecast may use data, and when its news is too old."""

    known_to: KnownTo | None = Field(default=None, strict=False)
    """midnight before the day; or issue-time, when the publisher issues its own forecast (AEMO: at
    17:00 the day before); left out: the earlier one that the data set's views know"""
    news_limit_hours: float = Field(default=NEWS_LIMIT / timedelta(hours=1), gt=0)
    """age of the newest article, at the time the forecast knows to, that is allowed"""
    stale_news: StaleNews = Field(default=StaleNews.WARN, strict=False)
    """where it is older: warn, and forecast; or refuse"""
    waits: bool = False
    """where values or a published forecast are missing: end without a forecast, for a later run"""
    supersede: bool = False
    """issue a day again that was issued before: the older forecast is kept, too"""
    at: str = Field(default="", pattern=r"^(([01]\d|2[0-3]):[0-5]\d)?$")
    """time of day at which the forecast begins, as 06:00, where windows begin several times a day;
    midnight unless given"""

    def find_start(self, day: str) -> date:
        """Return the day of a partition, with the time at which the forecast begins."""
        return datetime.fromisoformat(f"{day}T{self.at}") if self.at else date.fromisoformat(day)

    @property
    def news_rule(self) -> NewsRule:
        """The rule for old news."""
        return NewsRule(limit=timedelta(hours=self.news_limit_hours), action=self.stale_news)


class BlockDayConfig(NextDayConfig):
    """The same for a block of series, whose partition is no day."""

    day: str = Field(default="", pattern=r"^(\d{4}-\d\d-\d\d)?$")
    """day to forecast; the newest that can be forecast unless given"""


def build_next_day_asset(declared: RegisteredDataset, blocks: Blocks = None) -> dg.AssetsDefinition:
    """Return the asset of one data set's forecasts."""
    name, spec = declared.name, declared.spec
    days = spec.horizon / timedelta(days=1)
    span = "a day" if days == 1 else f"{days:g} days"

    @definition.define_asset(
        keys.next_day_key(name),
        deps=[keys.model_key(name), keys.windows_key(name), keys.NEWS_EMBEDDINGS],
        partitions_def=blocks or keys.make_target_days(spec),
        description=(
            f"Forecast of {name} for {span}, issued from what was known before: "
            "values by series, members, weights, news; sealed, and never changed."
        ),
        kinds={"pytorch", "parquet"},
        code=NEXT_DAY_CODE,
        pool=definition.BLOCKS_POOL if blocks else definition.GPU_POOL,
        dataset=name,
        config=BlockDayConfig if blocks else NextDayConfig,
        freshness_policy=definition.make_freshness(declared.night),
        output_required=False,
    )
    def _next_day(context: Context, workspace: WorkspaceParam) -> Iterator[dg.MaterializeResult]:  # type: ignore[type-arg]  # Dagster refuses a parameter
        with definition.translate_errors(retry=False):
            config = (BlockDayConfig if blocks else NextDayConfig).read(context)
            if not context.has_partition_key:
                raise ConfigError(
                    "no day to forecast: launch a partition, such as --partition 2026-03-31"
                )
            dataset = context.partition_key if blocks else name
            day = config.day if isinstance(config, BlockDayConfig) else context.partition_key
            try:
                day_forecast = forecast_day(
                    workspace,
                    dataset,
                    config.find_start(day) if day else None,
                    config.known_to,
                    log=context.log,
                    news_rule=config.news_rule,
                    supersede=config.supersede,
                )
            except MissingInputError as error:
                if not config.waits:
                    raise
                context.log.info(f"the forecast waits: {error}")
                return
            for note in day_forecast.notes:
                context.log.warning(f"{dataset}, {day_forecast.forecast.origin.date()}: {note}")
        yield describe_forecast(workspace, day_forecast)

    return _next_day


def describe_forecast(workspace: Deployment, found: DayForecast) -> Result:
    """Return what the UI shows of an issued forecast: the day first, the record last."""
    forecast = found.forecast
    newest = forecast.facts["newest"]
    points = forecast.rows.filter(pl.col("quantile").is_null()).with_columns(
        pl.col("method").replace(forecast.names)
    )

    # The mean over the horizon by method and series.
    decimals = choose_decimals(points["value"].to_list())
    means = (
        points.filter(pl.col("entity").is_in(forecast.entities[: metadata.MOST_SERIES]))
        .group_by("entity", "method", maintain_order=True)
        .agg(pl.col("value").mean().round(decimals))
        .pivot("entity", index="method", values="value")
    )
    table = day_table(forecast)
    # Members' weights, weights by series, and what agents go by: a table each.
    weights = weight_table(ForecastDay(issued=forecast))
    by_member: dict[str, Any] = {"weights": "one model: none"}
    if weights is not None:
        header, by_series = set(weights.header), set(weights.header) & set(forecast.entities)
        parts = {
            "weights": header - by_series - {_LOGIC},
            "weights_by_series": by_series,
            "goes_by": header & {_LOGIC},
        }
        by_member = {
            name: metadata.render_columns(weights, part) for name, part in parts.items() if part
        }
    # An evening's forecast and that of midnight are of one day, which is one partition.
    origin, issued = forecast.origin.astimezone(UTC), []
    for folder in list_issued(found.folder.parents[1], origin):
        facts = read_issued(folder).facts
        until = datetime.fromisoformat(facts["information_until"])
        issued_at = datetime.fromisoformat(facts["issued_at"])
        issued.append(
            {
                "known_to": (KnownTo.MIDNIGHT if until == origin else KnownTo.ISSUE_TIME).value,
                "known_until": f"{until.astimezone(forecast.zone):%Y-%m-%d %H:%M}",
                "issued_at": f"{issued_at.astimezone(forecast.zone):%Y-%m-%d %H:%M}",
                "this": folder == found.folder,
            }
        )

    def show_moment(name: str) -> str:
        moment = datetime.fromisoformat(str(forecast.facts[name])).astimezone(forecast.zone)
        return f"{moment:%Y-%m-%d %H:%M} {forecast.zone.tzname(None)}"

    shown: dict[str, Any] = {
        "day": f"{name_span(forecast)}, times in {forecast.zone.tzname(None)}",
        "forecast": metadata.render_columns(table, set(table.header) - _PEAK),
        "peak": metadata.render_columns(table, _PEAK),
        "charts": metadata.render_day(forecast),
        "known_until": show_moment("information_until"),
        "issued_at": show_moment("issued_at"),
        "notes": "; ".join(found.notes) or "none",
        **by_member,
        "by_series": metadata.render_table(means, rows=len(forecast.names) + 3),
        "of_this_day": metadata.render_table(pl.DataFrame(issued)),
        "newest_known": metadata.render_counts(
            {f"value of {entity}": stamp for entity, stamp in newest["values"].items()}
            | {
                "published forecast": newest["publication"] or "none",
                "article": newest["article"] or "none",
            },
            "time",
        ),
        "issued_now": found.is_new,
        "model": str(forecast.facts["artifact_hash"])[:16],
        "chain_head": read_chain(found.folder.parents[1]).head,
        "dagster/row_count": forecast.rows.height,
        "folder": dg.MetadataValue.path(found.folder),
        "mode": workspace.data_mode.value,
    }
    return dg.MaterializeResult(
        metadata=shown, data_version=dg.DataVersion(found.forecast.hash[:32])
    )


SCORED_CODE = (
    "compevo_core/evaluation",
    "compevo_core/forecast/issued.py",
    "compevo_pipeline/work/results.py",
)

_SHOWN_DAYS = 7
_DRAWN_DAYS = 60
_SHOWN_ROWS = 40
_DRAWN_METHODS = (METHOD, PUBLISHED, PERSISTENCE)


@definition.define_by_dataset(
    keys.scored_key,
    deps=[keys.next_day_key, keys.series_key],
    description=(
        "Errors, pinball loss and coverage of every issued forecast of {dataset} by day, "
        "series and method, and the skill over the last 7, 28 and 365 days; a revised truth is "
        "scored again."
    ),
    kinds={"polars", "parquet"},
    code=SCORED_CODE,
)
def build_scored_asset(dataset: str, context: Context, workspace: WorkspaceParam) -> Result:
    """Score the issued forecasts whose truth is stored by now."""
    scored = update_scored(workspace, dataset)

    context.log.info(
        f"{scored.added} rows added, {scored.revised} revised; {scored.waiting} forecasts wait "
        "for their truth"
    )
    rows = scored.rows
    skill = measure_skill(rows).filter(pl.col("entity") == POOLED).drop("entity", "last_day")
    revised = rows.filter(pl.col("revision") > 0)
    # The last days, newest first, with the MAE of the methods side by side.
    days = _pool_days(rows.filter(pl.col("method").is_in([*_DRAWN_METHODS, EQUAL])))
    if not days.is_empty():
        days = days.pivot("method", index=["day", "known_to"], values="mae")
        days = days.sort("day", "known_to", descending=True)

    shown = {}
    if rows.height:
        # The MAE of the last days, mean over series, of forecasts that knew to one instant.
        known_to = rows.sort("day")["known_to"][-1]
        pooled = _pool_days(rows.filter(pl.col("known_to") == known_to))
        recent = pooled.pivot("method", index="day", values="mae").sort("day").tail(_DRAWN_DAYS)
        ends = recent["day"].min(), recent["day"].max()
        drawn = [method for method in _DRAWN_METHODS if method in recent.columns]
        lines = {f"MAE of {method}, {known_to}": recent[method].to_list() for method in drawn}
        shown["errors"] = metadata.render_sketch(lines, ends)

    return dg.MaterializeResult(
        metadata={
            **metadata.describe_table(rows),
            "days": rows["day"].n_unique(),
            "days_filled_in_later": rows.filter(~pl.col("is_on_time"))["day"].n_unique(),
            "added": scored.added,
            "revised": scored.revised,
            "waiting_for_truth": scored.waiting,
            "skill": metadata.render_table(skill, rows=_SHOWN_ROWS),
            "last_days": metadata.render_table(days, rows=2 * _SHOWN_DAYS),
            "revisions": metadata.render_table(
                revised.select(
                    "day", "entity", "known_to", "method", "mae", "first_mae", "revision"
                ),
                rows=_SHOWN_ROWS,
            ),
            **shown,
            "mode": workspace.data_mode.value,
            "file": dg.MetadataValue.path(workspace.layout.scored(dataset)),
        }
    )


def _pool_days(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the MAE by day and method, mean over series."""
    by_method = select_standing(rows).group_by("day", "known_to", "method")
    return by_method.agg(pl.col("mae").mean()).sort("day")
