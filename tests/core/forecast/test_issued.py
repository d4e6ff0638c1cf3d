"""Issued forecasts: what they hold, that the same one is one, and that none is ever changed."""

import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pytest

from compevo_core.config.run import RunConfig
from compevo_core.data.quantiles import LEVELS
from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.forecast import issued
from compevo_core.forecast.prediction import Prediction
from tests.support import population as small
from tests.support.issued_samples import make_issued

NOW = datetime(2026, 3, 30, 7, 30, tzinfo=UTC)
NEWS = small.news_pool()
ARTICLE = str(NEWS.articles["article_id"][0])
VIEWS = small.windows("test", 1, first_day=60).views()


class FakePopulation:
    """Forecasts a constant for each view; what it adds can be changed."""

    config = RunConfig.preset("tiny")
    artifact_hash = "f" * 64
    name, members = "compevo", ("agent 0", "agent 1")
    logics = ("read the weather", "read policy")

    def __init__(self, level=100.0, quantiles=None):
        self.level = level
        self.quantiles = quantiles

    def estimate_day(self, views, forecast_NH, past):
        mean_NQ = forecast_NH.mean(axis=1)[:, None] + 10 * (np.array(LEVELS) - 0.5)
        return {"mean": mean_NQ, "peak": np.full((len(views), len(LEVELS)), np.nan)}

    def predict(self, views):
        assert not any(ARTICLE in view.candidate_ids for view in views)
        return np.array([np.full(48, 92.0 if view.candidate_ids else 80.0) for view in views])

    def predict_by_agent(self, views):
        shape = (len(views), 48)
        agents = np.stack([np.full(shape, self.level - 1), np.full(shape, self.level + 3)])
        unknown = np.full((len(views), len(LEVELS), 48), np.nan)
        return Prediction(
            aggregate=np.full(shape, self.level),
            agents=agents,
            quantiles=unknown if self.quantiles is None else self.quantiles,
            n_unparsed=0,
            bases=agents - 2.0,
            levels=np.full_like(agents, 0.5),
            prior=np.full(shape, self.level - 5),
            step_weights=np.full((len(views), 2, 48), 0.5),
            chosen_news=[[(ARTICLE,)] * len(views), [()] * len(views)],
        )


def issue(level=100.0, issued_at=NOW, views=VIEWS, quantiles=None):
    facts = {"market_offset": timedelta(hours=10), "issued_at": issued_at, "commit": "abc"}
    last_week = {VIEWS[0].entity: np.where(np.arange(48) < 40, 90.0, np.nan)}
    population = FakePopulation(level, quantiles)
    return issued.issue_forecast(population, views, news=NEWS, last_week=last_week, **facts)


def test_a_forecast_holds_population_parts_and_origins():
    forecast = issue()
    means = dict(forecast.rows.group_by("method").agg(pl.col("value").mean()).iter_rows())
    of_members = {"member-0": 99.0, "member-1": 103.0, "base-0": 97.0, "base-1": 101.0}
    assert means == {"forecast": 100.0, "equal": 101.0, "prior": 95.0} | of_members
    assert forecast.rows.height == len(VIEWS) * 7 * 48

    facts = forecast.facts
    assert (facts["artifact_hash"], facts["commit"]) == ("f" * 64, "abc")
    assert facts["information_until"] == VIEWS[0].origin_utc.isoformat()
    assert [one["entity"] for one in facts["series"]] == [view.entity for view in VIEWS]
    assert facts["series"][0]["chosen_news"] == [[ARTICLE], []]
    # What was read is named in the record itself: the store of news moves on.
    assert facts["articles"][ARTICLE]["title"] == NEWS.get_title(ARTICLE)
    # Without its article it would be 92 and not 100, without any 80.
    assert all(one["article_changes"] == {ARTICLE: 8.0} for one in facts["series"])
    assert issued.list_news_changes(forecast) == {view.entity: 0.25 for view in VIEWS}
    assert facts["newest_candidate"] == max(NEWS.articles["available_at"]).isoformat()

    # Without enough past errors of the peak there is no band of it.
    entry = facts["series"][0]
    assert entry["day_quantiles"] == {"mean": [100 + 10 * (level - 0.5) for level in LEVELS]}
    assert entry["last_week"] == [90.0] * 40 + [None] * 8


def test_quantiles_have_rows_only_where_known(tmp_path):
    quantiles = np.full((len(VIEWS), len(LEVELS), 48), np.nan)
    quantiles[0] = 100.0 + np.arange(len(LEVELS))[:, None]

    forecast = issue(quantiles=quantiles)

    rows = forecast.rows.filter(pl.col("quantile").is_not_null())
    assert rows.select("entity", "method").unique().row(0) == (VIEWS[0].entity, "forecast")
    assert rows["quantile"].unique().sort().to_list() == list(LEVELS)

    # The points are what they were, and a quantile is found by its level.
    plain = issue().rows
    assert forecast.rows.filter(pl.col("quantile").is_null()).equals(plain)
    first, second = (view.entity for view in VIEWS)
    assert (forecast.select_points(first, 0.9)["forecast"] == 108.0).all()
    assert (forecast.select_points(first)["forecast"] == 100.0).all()
    assert forecast.select_points(second, 0.9) == {}
    # Rows of all series are searched once, not for each series.
    assert forecast.select_points(first)["forecast"] is forecast.select_points(first)["forecast"]

    folder = issued.write_issued(tmp_path, forecast)
    assert issued.read_issued(folder).rows.equals(forecast.rows)
    assert forecast.hash != issue().hash


def test_published_forecasts_appear_where_all_series_have_them():
    band = {f"published_q{level}": np.full(48, 7.0 + level) for level in (0.1, 0.9)}
    views = tuple(replace(view, published=np.full(48, 7.0), step_covariates=band) for view in VIEWS)
    rows = issue(views=views).rows.filter(pl.col("method") == "published")
    found = rows.filter(pl.col("entity") == VIEWS[0].entity).group_by("quantile").first()
    by_level = dict(found.select("quantile", "value").iter_rows())
    assert by_level == {None: 7.0, 0.1: 7.1, 0.5: 7.0, 0.9: 7.9}
    assert rows.height == 4 * 48 * len(VIEWS)
    assert "published" not in issue(views=(*views[:-1], VIEWS[-1])).rows["method"]


def test_a_day_has_one_forecast_of_its_knowledge(tmp_path):
    folder = issued.write_issued(tmp_path, issue())
    later = NOW.replace(hour=9)
    assert issued.write_issued(tmp_path, issue(issued_at=later)) == folder
    assert issue(issued_at=later).hash == issue().hash
    with pytest.raises(DataError, match="issued 2026-03-30T07:30"):
        issued.write_issued(tmp_path, issue(level=101.0))
    kept = issued.read_issued(folder)
    assert (kept.facts["issued_at"], kept.hash) == (NOW.isoformat(), issue().hash)

    # An earlier cutoff is another forecast, next to the first, without unmeasured values.
    earlier = issue(views=tuple(replace(view, unknown_steps=14) for view in VIEWS))
    assert issued.write_issued(tmp_path, earlier) != folder
    inputs = earlier.facts["series"][0]["inputs"]
    assert inputs == [*VIEWS[0].x[:34].tolist(), *[None] * 14]


def chain_lines(root):
    return (root / issued.CHAIN_FILE).read_text().splitlines()


def write_lines(root, lines):
    (root / issued.CHAIN_FILE).write_text("".join(f"{line}\n" for line in lines))


def view_day(number):
    return small.windows("test", 1, first_day=60 + number).views()


def issue_days(root, count=3):
    return [issued.write_issued(root, issue(views=view_day(number))) for number in range(count)]


def edit_time(folder):
    facts = (folder / issued.FACTS_FILE).read_text()
    (folder / issued.FACTS_FILE).write_text(facts.replace("2026-03-30T07:30", "2026-03-29T07:30"))


def remake(folder):
    """Other values with the hashes of other values: a record that is whole in itself."""
    with TemporaryDirectory() as other:
        made = issued.write_issued(Path(other), issue(level=500.0, views=view_day(1)))
        shutil.copytree(made, folder, dirs_exist_ok=True)


def edit_chain(change):
    """Return what puts other lines in the place of the chain's."""
    return lambda folder: write_lines(folder.parents[1], change(chain_lines(folder.parents[1])))


@pytest.mark.parametrize(
    ("corrupt", "problem"),
    [
        (edit_time, "was altered .* restore it"),
        (lambda folder: (folder / issued.FACTS_FILE).write_text('{"dat'), "was altered"),
        (lambda folder: (folder / issued.VALUES_FILE).write_bytes(b"torn"), "was altered"),
        (remake, "was altered since it was issued"),
        (shutil.rmtree, "was removed since it was issued"),
        (lambda folder: (folder / issued.FACTS_FILE).unlink(), "was removed since it was issued"),
        (edit_chain(lambda lines: [lines[0], lines[2]]), "line 2 does not follow"),
        (edit_chain(lambda lines: lines[:1]), "has no line in"),
        (
            edit_chain(lambda lines: [line.replace("07:30", "06:30") for line in lines]),
            "line 2 does",
        ),
        (edit_chain(lambda lines: [*lines, '{"fol']), "line 4 does not follow"),
        (lambda folder: (folder.parents[1] / issued.CHAIN_FILE).unlink(), "has no line in"),
    ],
)
def test_any_later_change_is_one_clear_error(tmp_path, corrupt, problem):
    folder = issue_days(tmp_path)[1]
    assert len(issued.verify_issued(tmp_path).records) == 3
    corrupt(folder)
    for check in (lambda: issued.verify_issued(tmp_path), lambda: issued.read_issued(folder)):
        with pytest.raises(CheckpointMismatch, match=problem):
            check()
    # Nothing replaces what was removed, and no new chain is begun next to old records.
    for number in (1, 10) if problem == "has no line in" else (1,):
        with pytest.raises(CheckpointMismatch):
            issued.write_issued(tmp_path, issue(views=view_day(number)))


def test_the_head_changes_with_issue_and_time(tmp_path):
    roots = [tmp_path / name for name in ("one", "two", "later")]
    for root in roots:
        issued.write_issued(root, issue(issued_at=NOW + timedelta(hours=root.name == "later")))
    heads = [issued.read_chain(root).head for root in roots]
    assert heads[0] == heads[1] != heads[2]
    issue_days(roots[0])
    assert issued.read_chain(roots[0]).head != heads[1]
    assert issued.read_chain(tmp_path / "none").head == ""


def test_the_next_issue_completes_a_killed_one(tmp_path):
    folder = issue_days(tmp_path, 1)[0]
    (folder / issued.FACTS_FILE).rename(folder / "sealing.json")
    assert not issued.is_issued(folder)
    later = issue_days(tmp_path, 2)
    assert later[0] == folder and len(issued.verify_issued(tmp_path).lines) == 2

    # One before the line left no forecast.
    lines = chain_lines(tmp_path)
    write_lines(tmp_path, lines[:1])
    (later[1] / issued.FACTS_FILE).rename(later[1] / "sealing.json")
    assert issue_days(tmp_path, 2) == later and chain_lines(tmp_path) == lines


def test_superseding_keeps_every_issue(tmp_path):
    folders = [issued.write_issued(tmp_path, issue())]
    for level in (101.0, 102.0):
        again = [
            issued.write_issued(tmp_path, issue(level=level), supersede=True) for _ in range(2)
        ]
        assert again[0] == again[1]  # the very same forecast is not a new issue
        folders.append(again[0])
    assert [folder.name[-3:] for folder in folders[1:]] == ["-02", "-03"]
    assert issued.read_issued(folders[2]).facts["supersedes"] == issued.read_issued(folders[1]).hash
    assert [float(issued.read_issued(f).rows["value"][0]) for f in folders] == [100.0, 101.0, 102.0]

    until = VIEWS[0].information_until
    assert issued.find_issued(tmp_path, VIEWS[0].origin_utc, until) == folders[2]
    assert issued.list_issued(tmp_path)[-1] == folders[2]
    assert issued.list_earlier(folders[2]) == folders[:2] and issued.list_earlier(folders[0]) == []
    assert [issued.count_issue(folder) for folder in folders] == [1, 2, 3]
    with pytest.raises(CheckpointMismatch, match="was removed"):
        shutil.rmtree(folders[2])
        issued.write_issued(tmp_path, issue(level=103.0), supersede=True)


def test_impossible_issues_are_refused(tmp_path):
    early = VIEWS[0].information_until - timedelta(seconds=1)
    with pytest.raises(DataError, match="correct the clock"):
        issued.write_issued(tmp_path, issue(issued_at=early))
    assert not issued.is_issued(
        issued.find_issued(tmp_path, VIEWS[0].origin_utc, VIEWS[0].origin_utc)
    )
    assert issued.write_issued(tmp_path, issue(issued_at=VIEWS[0].information_until))

    (other, *_) = small.windows("test", 1, first_day=90).views()
    with pytest.raises(DataError, match="day by day"):
        issue(views=[*VIEWS, other])
    with pytest.raises(DataError, match="or none"):
        issue(views=())


def test_the_newest_forecast_knew_most(tmp_path):
    assert issued.list_issued(tmp_path) == []
    afternoon = tuple(replace(view, unknown_steps=14) for view in VIEWS)
    issued.write_issued(tmp_path, issue(views=afternoon))
    midnight = issued.write_issued(tmp_path, issue())
    later = issued.write_issued(tmp_path, issue(views=view_day(1)))
    assert issued.list_issued(tmp_path)[-1] == later
    assert issued.list_issued(tmp_path, VIEWS[0].origin_utc)[-1] == midnight

    # A forecast that is being written is none yet.
    (later / issued.FACTS_FILE).unlink()
    assert issued.list_issued(tmp_path)[-1] == midnight


def test_wide_values_follow_the_markets_clock():
    wide = issued.widen(make_issued())
    assert wide.height == 2 * 48
    first = wide.row(0, named=True)
    assert (first["entity"], first["start"]) == ("NSW1", "2026-03-31T00:00:00+10:00")
    assert first["compevo"] == 7500.0 and first["compevo-q0.1"] == 7000.0
    assert first["published"] == 7400.0 and first["unit"] == "MW"


def test_the_temperature_that_a_view_knew_is_sealed():
    assert issue().facts["series"][0]["temperature"] is None
    degrees_H = np.linspace(12.0, 31.0, 48)
    degrees_H[:3] = np.nan
    known = {issued.TEMPERATURE: degrees_H}
    warm = tuple(replace(view, step_covariates={**view.step_covariates, **known}) for view in VIEWS)
    assert issue(views=warm).facts["series"][0]["temperature"] == [degrees_H[3], 31.0]


def test_a_forecast_of_any_length_knows_it():
    day = make_issued()
    assert day.is_day and day.length == timedelta(days=1)
    one = day.rows.filter(pl.col("start_utc") == day.starts[0])
    single = issued.IssuedForecast(rows=one, facts={**day.facts, "step_minutes": 60})
    assert (single.step, single.length) == (timedelta(hours=1), timedelta(hours=1))
    later = day.rows.with_columns(start_utc=pl.col("start_utc") + timedelta(hours=1))
    assert not issued.IssuedForecast(rows=later, facts=day.facts).is_day
