"""A forecast as it was issued: its values, what they were made of, and what was known.

What belongs here: making the record of a forecast, its hash, its folder, and the chain of records.
What does not: views (``data.build``), forecasting (``forecast.forecaster``), when forecasts are
issued and where they are stored (the pipeline).

An issued forecast is written once and never changed: readers of its scores must be able to trust
that no forecast was improved after its day. A later issue may revise it: a record of its own in a
folder next to it, which names the hash of the older one; both are kept.

The time of issue is sealed too. ``chain.jsonl`` has a line for each record of a data set in the
order of issue: the hash of the whole record, including ``issued_at``, and the hash of the line
before. So no record or time can be changed or removed without changing every later line; anyone
who noted the head, the hash of the last line, can detect that.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.data.datasets import WLS
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.quantiles import LEVELS, stack_published_quantiles
from compevo_core.data.schemas import UTC_US
from compevo_core.data.steps import shift
from compevo_core.data.view import Window, WindowView, find_horizon, stack_by_step
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.forecast.prediction import Prediction, centre_sparse, reconcile
from compevo_core.runtime import files

if TYPE_CHECKING:
    from compevo_core.forecast.forecaster import CompEvoForecaster

VALUES_FILE = "forecast.parquet"
FACTS_FILE = "forecast.json"
CHAIN_FILE = "chain.jsonl"
_SEALING_FILE = "sealing.json"  # the facts until the chain names them
METHOD = "forecast"  # what is issued, by any method
EQUAL = "equal"  # the plain mean of its members
MEMBER = "member-"
PRIOR = "prior"  # the base that validated best
BASE = "base-"  # the forecast that an agent corrects
PUBLISHED = "published"
SUPERSEDES = "supersedes"  # fact of a later issue: the hash of the forecast that it replaces

TEMPERATURE = "temperature_c"  # covariate by step: what was forecast, degrees Celsius

_INSTANT = "%Y%m%dT%H%MZ"

ISSUED_SCHEMA: dict[str, pl.DataType] = {
    "entity": pl.String(),
    "method": pl.String(),  # the forecast, its parts, and what was published
    "quantile": pl.Float64(),  # null: the point forecast
    "start_utc": UTC_US,
    "value": pl.Float64(),
    "unit": pl.String(),
}


@dataclass(frozen=True, kw_only=True)
class IssuedForecast:
    """One forecast of all series of a data set from one origin."""

    # A value for each entity, method, quantile and step, in the columns of ``ISSUED_SCHEMA``; the
    # forecast has quantiles where enough past errors were known
    rows: pl.DataFrame
    # What it was made of, ready for JSON; everything but ``issued_at``, ``commit`` and what it
    # supersedes follows from the model and from what was known
    facts: Mapping[str, Any]

    @property
    def hash(self) -> str:
        """SHA-256 of values and facts except the issue: equal forecasts have equal hashes."""
        of_issue = ("issued_at", SUPERSEDES)
        facts = {name: fact for name, fact in self.facts.items() if name not in of_issue}
        digest = hashlib.sha256(files.hash_text(json.dumps(facts, sort_keys=True)).encode())
        digest.update(self.rows["value"].to_numpy().tobytes())
        digest.update(self.rows.drop("value").write_csv().encode())
        return digest.hexdigest()

    @cached_property
    def series(self) -> dict[str, dict[str, Any]]:
        """Facts of each of its series, in the order of the views."""
        return {str(entry["entity"]): entry for entry in self.facts["series"]}

    @property
    def entities(self) -> list[str]:
        """Its series, in the order of the views."""
        return list(self.series)

    @property
    def names(self) -> dict[str, str]:
        """Name of each of its methods: its own, its members' and the single ones."""
        method, taken = str(self.facts["method"]), set(self.rows["method"])
        names = {METHOD: method, EQUAL: f"{method}-equal", PRIOR: f"{method}-prior"}
        for number, member in enumerate(self.facts["members"]):
            name = str(member).replace(" ", "-")
            names |= {f"{MEMBER}{number}": name, f"{BASE}{number}": f"{name}-base"}
        return {role: role if name in taken else name for role, name in names.items()}

    @property
    def is_joint(self) -> bool:
        """Whether its agents were fitted together, so that none is a forecast of its own."""
        return bool(self.facts["fit"] == "joint")

    @property
    def zone(self) -> timezone:
        """The market's clock."""
        offset = timedelta(minutes=int(self.facts["clock_minutes"]))
        return timezone(offset, f"UTC{offset.total_seconds() / 3600:+g}" if offset else "UTC")

    @property
    def origin(self) -> datetime:
        """Start of the first step, on the market's clock."""
        return datetime.fromisoformat(self.facts["origin_utc"]).astimezone(self.zone)

    @property
    def unit(self) -> str:
        """Unit of the values."""
        return str(self.rows["unit"][0])

    @cached_property
    def starts(self) -> list[datetime]:
        """Start of each step, UTC."""
        return self.rows["start_utc"].unique().sort().to_list()

    @property
    def length(self) -> timedelta:
        """How long its steps take together: the next forecast begins there."""
        return self.starts[-1] - self.starts[0] + self.step

    @property
    def previous_origin(self) -> datetime:
        """Start of as many steps before its own, on the market's clock."""
        return shift(self.starts[0], -len(self.starts), self.step).astimezone(self.zone)

    @property
    def is_day(self) -> bool:
        """Whether all steps start on one day of the market's clock."""
        first, last = (self.starts[i].astimezone(self.zone).date() for i in (0, -1))
        return first == last

    @property
    def step(self) -> timedelta:
        """Length of a step; of months the mean one."""
        return timedelta(minutes=int(self.facts["step_minutes"]))

    def select_points(self, entity: str, quantile: float | None = None) -> dict[str, FloatArray]:
        """Return the values (H,) of a series by method: point forecasts, or one quantile."""
        return dict(self._values[entity, quantile])

    @cached_property
    def _values(self) -> Mapping[tuple[str, float | None], dict[str, FloatArray]]:
        # Of all series at once: a search for each takes as long as there are others.
        rows = self.rows.sort("start_utc", maintain_order=True)
        lines = rows.group_by("entity", "quantile", "method", maintain_order=True).agg("value")
        values: defaultdict[tuple[str, float | None], dict[str, FloatArray]] = defaultdict(dict)
        for entity, quantile, method, values_H in zip(*lines, strict=True):
            values[entity, quantile][method] = values_H.to_numpy()
        return values


def issue_forecast(
    forecaster: "CompEvoForecaster",
    views: Sequence[WindowView],
    *,
    news: NewsPool | None,
    market_offset: timedelta,
    issued_at: datetime,
    commit: str,
    newest: Mapping[str, Any] | None = None,
    last_week: Mapping[str, FloatArray] | None = None,
    totals: Mapping[str, Sequence[str]] | None = None,
    reconciliation: str = WLS,
    data: Mapping[str, str] | None = None,
) -> IssuedForecast:
    """Forecast views of one origin and cutoff, and record how the values came about.

    Let the model observe known errors first; ``news`` holds the articles that agents read. Days
    begin on the clock of ``market_offset`` from UTC. The facts include ``newest``, the instants of
    the newest inputs (``data.context``), and ``last_week``, the same steps (H,) of each
    series last week as then known, NaN where unknown. ``totals`` maps a total to its series, whose
    forecasts must add up as ``reconciliation`` says; ``data`` has the times of the ``first`` and
    ``last`` known value and until when the model was fitted. DataError if there is no view, a part
    of a total has none, or they have several origins.
    """
    if len({(view.dataset, view.origin_utc, view.information_until) for view in views}) != 1:
        raise DataError(
            f"{len(views)} views of several origins, or none: issue forecasts day by day"
        )

    prediction, past = forecaster.predict_by_agent(views), None
    news_change_N = measure_news_change(forecaster, views, prediction.aggregate)
    article_changes = measure_article_changes(forecaster, views, prediction)
    if totals:
        past = forecaster.past_errors
        prediction, past = reconcile(prediction, views, totals, past, reconciliation)
    day_quantiles = forecaster.estimate_day(views, prediction.aggregate, past)
    prediction = centre_sparse(prediction, views, totals or {})
    points_NH, quantiles_NQH = {METHOD: prediction.aggregate}, {METHOD: prediction.quantiles}
    # A model by itself has no parts, and only what reads news corrects a base.
    if forecaster.logics or len(prediction.agents) > 1:
        points_NH[EQUAL] = prediction.equal
        points_NH |= {f"{MEMBER}{i}": values_NH for i, values_NH in enumerate(prediction.agents)}
    if forecaster.logics:
        points_NH |= {f"{BASE}{i}": base_NH for i, base_NH in enumerate(prediction.bases)}
        if prediction.prior is not None:
            points_NH[PRIOR] = prediction.prior
    if all(view.published is not None for view in views):
        points_NH[PUBLISHED] = np.stack([v.published for v in views if v.published is not None])
        quantiles_NQH[PUBLISHED] = stack_published_quantiles(views)

    first = views[0]
    pool = news if forecaster.logics else None
    named = [name for view in views for name in view.candidate_ids]
    dates = [] if pool is None else [pool.get_date(name) for name in named]
    facts = {
        "dataset": first.dataset,
        "origin_utc": first.origin_utc.isoformat(),
        "information_until": first.information_until.isoformat(),
        "clock_minutes": market_offset // timedelta(minutes=1),
        "step_minutes": first.step_minutes,
        "horizon": first.horizon,
        "issued_at": issued_at.isoformat(),
        "commit": commit,
        "config_hash": forecaster.config.hash,
        "artifact_hash": forecaster.artifact_hash,
        "views_hash": hash_views(views),
        "newest": json.loads(json.dumps(newest or {}, default=datetime.isoformat)),
        "method": forecaster.name,
        "data": dict(data or {}),
        "members": list(forecaster.members),
        "logics": list(forecaster.logics),
        # Agents that are fitted together add up: none is a forecast of its own.
        "fit": forecaster.config.news.fit,
        "articles": {} if pool is None else _describe_articles(pool, prediction.chosen_news),
        "newest_candidate": max(dates).isoformat() if dates else None,
        "series": [
            {
                **_describe_inputs(view),
                "weights": prediction.weights[row].tolist(),
                "step_weights": prediction.step_weights[row].tolist(),
                "chosen_news": [list(by_agent[row]) for by_agent in prediction.chosen_news],
                "levels": prediction.levels[:, row].tolist(),
                "news_change": None if news_change_N is None else float(news_change_N[row]),
                "article_changes": article_changes[row],
                "last_week": _list_known((last_week or {}).get(view.entity, ())),
                "day_quantiles": {
                    name: _list_known(values_NQ[row])
                    for name, values_NQ in day_quantiles.items()
                    if np.isfinite(values_NQ[row]).all()
                },
            }
            for row, view in enumerate(views)
        ],
    }

    return IssuedForecast(rows=_tabulate(views, points_NH, quantiles_NQH), facts=facts)


def measure_news_change(
    forecaster: "CompEvoForecaster", views: Sequence[WindowView], forecast_NH: FloatArray
) -> FloatArray | None:
    """Return how far forecasts are from those without articles, as a share (N,) of their mean.

    None if the model reads no news.
    """
    if not forecaster.config.encoder:
        return None
    blind_NH = forecaster.predict([replace(view, candidate_ids=()) for view in views])
    level_N = np.abs(blind_NH).mean(axis=1)
    change_N = (forecast_NH - blind_NH).mean(axis=1)
    return np.asarray(change_N / np.where(level_N, level_N, np.inf))


def measure_article_changes(
    forecaster: "CompEvoForecaster", views: Sequence[WindowView], prediction: Prediction
) -> list[dict[str, float]]:
    """Return by how much each article that a view's agents chose moves its mean forecast.

    By name, in the view's unit: the forecast less the one without the article, in place of which
    agents may choose another.
    """
    pairs = [
        (row, name)
        for row, read in enumerate(zip(*prediction.chosen_news, strict=True))
        for name in sorted({name for names in read for name in names})
    ]
    without = [
        replace(views[row], candidate_ids=tuple(i for i in views[row].candidate_ids if i != name))
        for row, name in pairs
    ]
    changes: list[dict[str, float]] = [{} for _ in views]
    forecast_PH = forecaster.predict(without) if pairs else ()
    for (row, name), forecast_H in zip(pairs, forecast_PH, strict=True):
        changes[row][name] = float((prediction.aggregate[row] - forecast_H).mean())
    return changes


def list_news_changes(issued: IssuedForecast) -> dict[str, float]:
    """Return how far news moves the mean of each series, as a share; empty if none is read."""
    return {
        entity: float(facts["news_change"])
        for entity, facts in issued.series.items()
        if facts["news_change"] is not None
    }


def _describe_inputs(view: WindowView) -> dict[str, Any]:
    """Return what a view knew of its series, ready for JSON."""
    known = view.x[: view.lookback - view.unknown_steps].tolist()
    temperature_H = stack_by_step([view], TEMPERATURE)[0]
    known_T = temperature_H[np.isfinite(temperature_H)]
    return {
        "window_id": view.window_id,
        "entity": view.entity,
        # None if not measured yet.
        "inputs": known + [None] * view.unknown_steps,
        # The lowest and highest known value of the steps, if there was any.
        "temperature": [float(known_T.min()), float(known_T.max())] if known_T.size else None,
        "filled_inputs": view.n_filled,
        "unknown_inputs": view.unknown_steps,
    }


def _list_known(values: Iterable[float]) -> list[float | None]:
    """Return values ready for JSON, which has no NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]


def hash_views(views: Sequence[WindowView]) -> str:
    """Return the hash of everything that views hold."""
    unknown_H = np.full(find_horizon(views), np.nan)
    windows = [Window(view=view, y=unknown_H) for view in views]
    return WindowSet(windows, dataset=views[0].dataset).hash


def widen(issued: IssuedForecast) -> pl.DataFrame:
    """Return a row for each series and step, with a column for each method and quantile.

    ``start`` is on the market's clock with its offset, as text, ``start_utc`` the same moment. The
    forecast is ``compevo`` or its method, such as ``gbm`` with the quantile ``gbm-q0.1``.
    """
    level = pl.format("-q{}", "quantile").fill_null("")
    named = issued.rows.with_columns(column=pl.col("method").replace(issued.names) + level)
    wide = named.pivot("column", index=["entity", "start_utc", "unit"], values="value")
    at = [start.astimezone(issued.zone).isoformat() for start in wide["start_utc"]]
    return wide.insert_column(1, pl.Series("start", at)).with_columns(compevo=issued.names[METHOD])


def find_issued(root: Path, origin_utc: datetime, information_until: datetime) -> Path:
    """Return the folder of the newest issue with an origin and a cutoff.

    Later issues have a number behind the name, so that they come after the first by name.
    """
    first = root / f"{origin_utc:{_INSTANT}}" / f"known-{information_until:{_INSTANT}}"
    later = first.parent.glob(f"{first.name}-*/{FACTS_FILE}")
    return max((path.parent for path in later), default=first)


def list_earlier(folder: Path) -> list[Path]:
    """Return the folders of the forecasts that an issue supersedes, the first one first."""
    first = "-".join(folder.name.split("-")[:2])
    issues = sorted(path.parent for path in folder.parent.glob(f"{first}*/{FACTS_FILE}"))
    return [issue for issue in issues if issue.name < folder.name]


def count_issue(folder: Path) -> int:
    """Return which issue of its forecast a folder holds: 1 for the first."""
    return int("".join(folder.name.split("-")[2:]) or 1)


def list_issued(root: Path, origin_utc: datetime | None = None) -> list[Path]:
    """Return the folders of all forecasts, or of one origin, by day, knowledge and issue."""
    # Names begin with the instant, so their order is that of time. Facts are written last.
    day = "*" if origin_utc is None else f"{origin_utc:{_INSTANT}}"
    return sorted(path.parent for path in root.glob(f"{day}/known-*/{FACTS_FILE}"))


def is_issued(folder: Path) -> bool:
    """Return whether a folder holds a complete forecast."""
    return (folder / FACTS_FILE).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The issued forecasts of a data set in the order of issue."""

    lines: Sequence[str] = ()  # of the file
    records: Mapping[str, str]  # hash of the record by folder, relative to the data set's

    @property
    def head(self) -> str:
        """Hash of the last line; empty without any."""
        return files.hash_text(self.lines[-1]) if self.lines else ""


def read_chain(root: Path) -> Chain:
    """Read the chain of a data set's issued forecasts; it has no lines if none was issued.

    CheckpointMismatch if a line was changed, added or removed.
    """
    path = root / CHAIN_FILE
    # A damaged letter breaks the chain like any other change.
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    lines = text.splitlines()
    records: dict[str, str] = {}
    previous = ""

    for number, line in enumerate(lines, start=1):
        try:
            link = json.loads(line)
            is_next = link["previous"] == previous and link["folder"] not in records
            records[link["folder"]] = link["record"]
        except (ValueError, KeyError, TypeError):
            is_next = False
        if not is_next:
            raise CheckpointMismatch(
                f"{path}, line {number} does not follow the line before it: lines were changed or "
                "removed; restore the file from a copy"
            )
        previous = files.hash_text(line)

    return Chain(lines=lines, records=records)


def list_records(root: Path, chain: Chain) -> list[Path]:
    """Return the folders of a data set's issued forecasts, by day, knowledge and issue.

    CheckpointMismatch if one that the chain names is not there.
    """
    for folder in (root / name for name in chain.records):
        if not is_issued(folder) and not (folder / _SEALING_FILE).exists():
            raise _removed(folder)
    return list_issued(root)


def verify_issued(root: Path) -> Chain:
    """Check every issued forecast of a data set against the chain, and the chain itself.

    CheckpointMismatch if a record, a time or a line was changed, added or removed.
    """
    chain = read_chain(root)
    for folder in list_records(root, chain):
        read_issued(folder, chain)
    return chain


def write_issued(root: Path, forecast: IssuedForecast, *, supersede: bool = False) -> Path:
    """Write a forecast, unless an equal one was issued before, and return its folder.

    With ``supersede`` it revises an earlier forecast, which is kept and named by its hash.
    DataError if another forecast was issued for this origin and cutoff, or the time of issue is
    before the cutoff; CheckpointMismatch if the chain or the earlier forecast was altered;
    StoreBusy if another process issues for longer than a minute.
    """
    facts = dict(forecast.facts)
    until = datetime.fromisoformat(facts["information_until"])
    if datetime.fromisoformat(facts["issued_at"]) < until:
        raise DataError(
            f"a forecast issued at {facts['issued_at']} cannot know until {until.isoformat()}; "
            "correct the clock of this machine, or name an earlier day"
        )

    # One issuer at a time: values of one and facts of another would be neither's forecast.
    with files.file_lock(root / ".lock", exclusive=True):
        chain = read_chain(root)
        _finish_seal(root, chain)
        for record in list_issued(root):
            if record.relative_to(root).as_posix() not in chain.records:
                raise _unnamed(record)
        folder = find_issued(root, datetime.fromisoformat(facts["origin_utc"]), until)
        if is_issued(folder):
            before = read_issued(folder)
            if before.hash == forecast.hash:
                return folder
            if not supersede:
                raise DataError(
                    f"{folder} holds another forecast, issued {before.facts['issued_at']} by model "
                    f"{str(before.facts['artifact_hash'])[:16]}; issued forecasts are never "
                    "changed: keep it, or issue one that supersedes it"
                )
            facts[SUPERSEDES] = before.hash
            first = folder.name.split("-")[:2]
            folder = folder.with_name("-".join([*first, f"{count_issue(folder) + 1:02d}"]))
        name = folder.relative_to(root).as_posix()
        if name in chain.records:
            raise _removed(folder)

        files.write_atomically(folder / VALUES_FILE, forecast.rows.write_parquet)
        values_sha256 = files.hash_file(folder / VALUES_FILE)
        sealed = {**facts, "hash": forecast.hash, "values_sha256": values_sha256}
        # A kill before the line leaves no forecast; after it, the next issue finishes the forecast.
        files.write_json(folder / _SEALING_FILE, sealed)
        link = {
            "folder": name,
            "issued_at": facts["issued_at"],
            "previous": chain.head,
            "record": files.hash_file(folder / _SEALING_FILE),
        }
        lines = [*chain.lines, json.dumps(link, sort_keys=True)]
        files.write_text(root / CHAIN_FILE, "".join(f"{line}\n" for line in lines))
        _finish_seal(root, read_chain(root))
    return folder


def finish_killed(root: Path) -> None:
    """Finish the issue of a process that was killed after the chain's line, if there is one.

    CheckpointMismatch if the chain was altered; StoreBusy if another process issues for a minute.
    """
    if (root / CHAIN_FILE).exists():
        with files.file_lock(root / ".lock", exclusive=True):
            _finish_seal(root, read_chain(root))


def _finish_seal(root: Path, chain: Chain) -> None:
    """Put the facts of the last record in their place; a folder that has them is complete."""
    for name, record in list(chain.records.items())[-1:]:
        sealing = root / name / _SEALING_FILE
        if sealing.exists() and files.hash_file(sealing) == record:
            sealing.replace(root / name / FACTS_FILE)


def read_issued(folder: Path, chain: Chain | None = None) -> IssuedForecast:
    """Read what :func:`write_issued` wrote, and check it against the chain.

    The chain is read from disk unless given. DataError if there is no complete forecast;
    CheckpointMismatch if values, facts or chain were altered since.
    """
    root = folder.parents[1]
    chain = chain or read_chain(root)
    record = chain.records.get(folder.relative_to(root).as_posix())
    if not is_issued(folder):
        if record is not None:
            raise _removed(folder)
        raise DataError(f"no issued forecast in {folder} ({FACTS_FILE} is missing); issue it first")
    if record is None:
        raise _unnamed(folder)

    # The chain seals the facts, with the time of issue, and the facts seal the values.
    values = folder / VALUES_FILE
    is_whole = files.hash_file(folder / FACTS_FILE) == record
    facts: dict[str, Any] = json.loads((folder / FACTS_FILE).read_bytes()) if is_whole else {}
    if not values.exists() or files.hash_file(values) != facts.pop("values_sha256", None):
        raise CheckpointMismatch(
            f"{folder} was altered since it was issued; restore it from a copy"
        )
    del facts["hash"]
    return IssuedForecast(rows=pl.read_parquet(values), facts=facts)


def _removed(folder: Path) -> CheckpointMismatch:
    return CheckpointMismatch(f"{folder} was removed since it was issued; restore it from a copy")


def _unnamed(folder: Path) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"{folder} has no line in {folder.parents[1] / CHAIN_FILE}: the line was removed, or the "
        "record put there; restore the chain from a copy, or remove the record"
    )


def _describe_articles(
    news: NewsPool, chosen_news: Sequence[Sequence[Sequence[str]]]
) -> dict[str, dict[str, str]]:
    """Return title, publisher and date of every article that an agent read; untrusted text."""
    chosen = {name for by_row in chosen_news for names in by_row for name in names}
    return {
        name: {
            "title": news.get_title(name),
            "domain": news.get_text(name, "domain"),
            "available_at": news.get_date(name).isoformat(),
        }
        for name in sorted(chosen)
    }


def _tabulate(
    views: Sequence[WindowView],
    points_NH: Mapping[str, FloatArray],
    quantiles_NQH: Mapping[str, FloatArray],
) -> pl.DataFrame:
    """Return rows of ``ISSUED_SCHEMA``: of each series the points, then the quantiles.

    Quantiles are at ``LEVELS``; a line of them that holds NaN is left out.
    """
    lines: list[tuple[str, float | None, FloatArray]]
    lines = [(method, None, values_NH) for method, values_NH in points_NH.items()]
    for method, values_NQH in quantiles_NQH.items():
        lines += [(method, level, values_NQH[:, place]) for place, level in enumerate(LEVELS)]
    rows: list[tuple[object, ...]] = []
    for row, view in enumerate(views):
        starts = [shift(view.origin_utc, step, view.step) for step in range(view.horizon)]
        rows += [
            (view.entity, method, level, start, float(value), view.unit)
            for method, level, values_NH in lines
            if level is None or np.isfinite(values_NH[row]).all()
            for start, value in zip(starts, values_NH[row], strict=True)
        ]

    return pl.DataFrame(rows, schema=ISSUED_SCHEMA, orient="row")
