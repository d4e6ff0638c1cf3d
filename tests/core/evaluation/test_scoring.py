"""Scores of a population and of baselines, with a forecaster that is not a language model.

That the command and the assets make the same rows is shown in
``tests/pipeline/defs/assets/test_evaluation.py``.
"""

import logging
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import SharedFits, fit_baseline, known_errors
from compevo_core.config.run import RunConfig
from compevo_core.data.scaling import Scaler
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError, DataError, LeakageError
from compevo_core.evaluation import baseline_scores, scoring
from compevo_core.evaluation.baseline_scores import ValidationForecasts
from compevo_core.evaluation.comparison import PAIRED_TEST_SCHEMA
from compevo_core.evaluation.result_rows import POOLED, hash_without_seed, write_tables
from compevo_core.evaluation.scopes import Scope, read_forecasts
from compevo_core.forecast.prediction import Prediction
from compevo_core.paper.report.inputs import read_configs, read_panels
from compevo_core.training.run_folder import RunFolder
from tests.support import population as small
from tests.support.window_samples import make_set

LOG = logging.getLogger("scoring")
TRAIN = small.windows("train", 6)
"""As many days as a test needs."""
SCOPES = [
    Scope(subset="first", windows=small.windows("test", 6, first_day=60)),
    Scope(subset="second", windows=small.windows("test", 2, first_day=80)),
]
SHARED = {"train": TRAIN, "experiment": "main", "commit": "abc", "log": LOG}
IDS = small.article_ids()
FITTED = ("persistence", "calendar-ridge", "gbm", "blend")
PARTS = ["compevo", "compevo-equal", "compevo-agent-0", "compevo-agent-1", "compevo-prior"]

FITS = SharedFits()
"""What an earlier test fitted on the same days is taken from it."""


def score_baselines(scopes, *, seeds=1, **options):
    shared = {"fit": FITS, "experiment": "main", "commit": "abc"}
    return baseline_scores.score_baselines(TRAIN, scopes, seeds=seeds, **shared, **options)


class FakePopulation:
    """Forecasts the last day plus one; the second agent never gives a readable answer."""

    name, logics = "compevo", ("read the weather", "read policy")
    config = RunConfig.preset("tiny").with_overrides({"population.agents": 2})
    artifact_hash = "f" * 64
    knowledge_cutoff = "none (a fake)"
    is_daily, blend = False, 0.25

    def __init__(self):
        self.batches = []
        self.manifest = {"device": "cuda", "chosen_round": 0}

    def predict_by_agent(self, views):
        self.batches.append(len(views))
        persistence_NH = np.stack([view.x for view in views])
        chosen = [[(IDS[0], IDS[1])] * len(views), [(IDS[1], IDS[2])] * len(views)]
        agents_ANH = np.stack([persistence_NH, persistence_NH + 4])
        unknown, levels = np.full((len(views), 11, 48), np.nan), 0 * agents_ANH
        return Prediction(
            aggregate=persistence_NH + 1,
            agents=agents_ANH,
            step_weights=np.full((len(views), 2, 48), 0.5),
            quantiles=unknown,
            bases=agents_ANH,
            levels=levels,
            prior=persistence_NH,
            chosen_news=chosen,
            n_unparsed=len(views),
        )


def test_a_scope_is_forecast_in_whole_batches(caplog):
    population = FakePopulation()
    with caplog.at_level(logging.INFO, logger="scoring"):
        [forecast] = scoring.forecast_scopes(population, SCOPES[:1], LOG)

    assert population.batches == [10, 2]
    assert caplog.messages[-1].startswith("first: 12/12 windows, 0s left")
    assert forecast.prediction.aggregate.shape == (12, 48)
    assert forecast.chosen == [(IDS[0], IDS[1], IDS[2])] * 12
    assert (forecast.n_answers, forecast.prediction.n_unparsed) == (24, 12)


def test_population_rows_name_run_and_scopes():
    rows = scoring.score_population(FakePopulation(), SCOPES, **SHARED).rows
    pooled = rows.filter(pl.col("entity") == POOLED)
    assert pooled.select("method", "subset", "n_windows").rows() == [
        (method, subset, n) for subset, n in (("first", 12), ("second", 4)) for method in PARTS
    ]

    row = pooled.row(0, named=True)
    config = FakePopulation.config
    assert (row["experiment"], row["commit"], row["device"]) == ("main", "abc", "cuda")
    assert (row["config_hash"], row["artifact_hash"]) == (config.hash, "f" * 64)
    assert (row["backbone"], row["seed"]) == (config.backbone.name_or_path, config.run.seed)
    assert row["seedless_hash"] == hash_without_seed(config)
    assert row["mase"] > 0 and row["parse_failure_rate"] == 0.5
    assert (row["news_choice_share"], row["refit"]) == (1.0, False)
    assert (row["chosen_round"], row["blend"]) == (0, 0.25)


def test_population_parts_are_scored_from_equal_forecasts():
    population = FakePopulation()
    scores = scoring.score_population(population, SCOPES[:1], **SHARED)
    assert population.batches == [10, 2]  # each window is forecast once

    by_method = {name: values_NH for name, (values_NH,) in scores.predictions[0][1].items()}
    base_NH = by_method["compevo-prior"]
    for name, added in zip(PARTS, (1, 2, 0, 4, 0), strict=True):
        assert np.allclose(by_method[name], base_NH + added)

    rows = {row["method"]: row for row in scores.rows.to_dicts() if row["entity"] == POOLED}
    assert {row["artifact_hash"] for row in rows.values()} == {"f" * 64}
    assert rows["compevo-equal"]["backbone"] == rows["compevo"]["backbone"]
    # No language model, no answer and no article has a part in the prior.
    prior = rows["compevo-prior"]
    assert (prior["backbone"], prior["possibly_memorised"]) == ("", False)
    assert (prior["parse_failure_rate"], prior["news_choice_share"]) == (None, None)

    tests = scoring.compare_seeds([scores], [{}], "compevo")
    assert tests["method_b"].to_list() == ["compevo-equal", "compevo-prior"]


def test_lone_and_joint_agents_have_no_rows():
    class Lone(FakePopulation):
        def predict_by_agent(self, views):
            found = super().predict_by_agent(views)
            return replace(found, agents=found.agents[:1], prior=None)

    joint = FakePopulation()
    joint.config = RunConfig.preset("specialists").with_overrides({"population.agents": 2})
    alone, together = (
        scoring.score_population(one, SCOPES[:1], **SHARED).rows for one in (Lone(), joint)
    )
    assert set(alone["method"]) == {"compevo"}
    assert set(together["method"]) == {"compevo", "compevo-prior"}


def test_random_baselines_have_rows_per_seed():
    scores = score_baselines(SCOPES, seeds=3)
    seeds = scores.rows.group_by("method").agg(pl.col("seed").unique().sort()).rows()
    assert dict(seeds) == dict(zip(FITTED, ([0], [0], [0, 1, 2], [0, 1, 2]), strict=True))

    one_seed = score_baselines(SCOPES)
    for by_method, by_method_once in zip(scores.forecasts, one_seed.forecasts, strict=True):
        assert len(by_method["gbm"]) == 3 and len(by_method["persistence"]) == 1
        assert np.array_equal(by_method["gbm"][0], by_method_once["gbm"][0])
        assert not np.array_equal(by_method["gbm"][0], by_method["gbm"][1])


def test_baselines_use_their_known_validation_errors():
    val = small.windows("val", 10, first_day=30)
    drifted = val.with_truth(val.truth() - 100.0)
    scores = score_baselines(SCOPES, val=drifted, seeds=2)
    pooled = scores.rows.filter(pl.col("entity") == POOLED, pl.col("subset") == "first")
    trees = [(name, seed) for name in ("gbm", "blend") for seed in (0, 1)]
    plain = [("calendar-ridge", 0), *trees]
    both = [(f"{name}{end}", seed) for name, seed in plain for end in ("", "-recalibrated")]
    assert pooled.select("method", "seed").rows() == [("persistence", 0), *both]
    for by_method in scores.forecasts:
        lowered = by_method["gbm-recalibrated"][1] - by_method["gbm"][1]
        assert lowered.mean() < -20.0

    # The level comes from validation: other truths of the test windows change no forecast.
    noise = [replace(s, windows=s.windows.with_truth(s.windows.truth() * 3)) for s in SCOPES]
    again = score_baselines(noise, val=drifted)
    first, same = (run.forecasts[0]["gbm-recalibrated"][0] for run in (scores, again))
    assert np.array_equal(first, same)


def test_baselines_get_quantiles_day_by_day():
    val = small.windows("val", 30, first_day=20)
    test = small.windows("test", 20, first_day=60)

    def score(windows):
        rows = score_baselines([Scope(subset="test", windows=windows)], val=val).rows
        return rows.filter(pl.col("entity") != POOLED)

    rows = score(test)
    assert rows.select("wql", "coverage_95").null_count().row(0) == (0, 0)
    assert "gbm-recalibrated" in rows["method"].to_list()

    # The first day's quantiles come only from validation, the last day's from test days, too.
    poisoned_NH = test.truth()
    ordinary = score(test[:2])
    poisoned_NH[2:] *= 5
    others = ("seconds", "seconds_per_window", "data_hash")
    poisoned = score(test.with_truth(poisoned_NH)[:2])
    assert poisoned.drop(others).equals(ordinary.drop(others))
    early = test.with_truth(np.where(np.arange(len(test))[:, None] < 30, 5, 1) * test.truth())
    last = slice(len(test) - 2, None)
    methods = ValidationForecasts.make("persistence", fit_baseline("persistence", TRAIN), val, None)
    forecast_NH = np.stack([view.x for view in test.views()])
    follow = partial(methods.follow, "persistence")
    first, second = (follow(windows, forecast_NH)[last] for windows in (test, early))
    assert np.ptp(second) > np.ptp(first)


def test_published_forecasts_keep_their_published_quantiles():
    def publish(window):
        level = np.full(48, 100.0)
        named = {f"published_q{q}": level + 10 * sign for q, sign in ((0.1, -1), (0.9, 1))}
        view = replace(window.view, published=level, step_covariates=named)
        return replace(window, view=view, y=level + 5)

    windows = make_set(map(publish, SCOPES[0].windows))
    scopes = [Scope(subset="first", windows=windows)]
    rows = score_baselines(scopes).rows
    (row,) = rows.filter(pl.col("method") == "published", pl.col("entity") == POOLED).to_dicts()
    # 0.1 * 15, 0.5 * 5 and 0.1 * 5.
    assert row["pinball_10_50_90"] == pytest.approx((1.5 + 2.5 + 0.5) / 3)
    assert (row["coverage_80"], row["width_80"]) == (1.0, 20.0)
    assert (row["wql"], row["coverage_95"], row["pinball_q20"]) == (None, None, None)


@pytest.fixture(scope="module")
def beside_baselines():
    """The scores of a population beside those of baselines, and the paired tests."""
    forecasts = score_baselines(SCOPES).forecasts
    beside = {"baseline_forecasts": forecasts, "news": small.news_pool(), "panels_per_scope": 2}
    scores = scoring.score_population(FakePopulation(), SCOPES, **SHARED, **beside)
    return scores, scoring.compare_seeds([scores] * 2, forecasts, "compevo")


def test_a_population_meets_every_baseline_on_every_scope(beside_baselines):
    scores, paired_tests = beside_baselines
    assert scores.rows["method"].unique(maintain_order=True).to_list() == PARTS
    assert paired_tests.select("subset", "method_b", "n", "seeds_a").rows() == [
        (subset, method, n, 2)
        for subset, n in (("first", 12), ("second", 4))
        for method in ("compevo-equal", "compevo-prior", *FITTED)
    ]

    assert [panel.subset for panel in scores.panels] == ["first", "first", "second", "second"]
    assert list(scores.panels[0].forecasts) == ["compevo", *FITTED]


def test_forecasts_for_some_scopes_only_are_refused():
    with pytest.raises(DataError, match="1 of 2 scopes"):
        scoring.score_population(FakePopulation(), SCOPES, **SHARED, baseline_forecasts=[{}])


def test_everything_scored_is_written_and_read_back(beside_baselines, tmp_path):
    config, results = FakePopulation.config, tmp_path / "results"
    scores, paired_tests = beside_baselines
    run = RunFolder(tmp_path / "run")

    path = write_tables(scores.rows, paired_tests, [config], results, "main", "paired-main")
    scoring.write_run_forecasts(scores, run)

    assert path == results / "main.csv"
    assert pl.read_csv(path).height == scores.rows.height
    paired = pl.read_csv(results / "paired-main.csv", schema=PAIRED_TEST_SCHEMA)
    assert paired.equals(paired_tests)
    assert list(read_configs(results)) == [config.hash]
    read = [panel.window_id for panel in read_panels(run.panels_file)]
    assert read == [panel.window_id for panel in scores.panels]
    stored = read_forecasts(run.predictions_file, SCOPES[1])
    assert np.array_equal(stored["compevo"][0], scores.predictions[1][1]["compevo"][0])


def test_other_settings_or_repeated_seeds_are_refused():
    config = RunConfig.preset("tiny")
    second = config.with_overrides({"run.seed": 7})
    scoring.require_seeds_of_one_method([config, second])
    with pytest.raises(ConfigError, match="different settings"):
        scoring.require_seeds_of_one_method([config, second.with_overrides({"population.rank": 2})])
    with pytest.raises(ConfigError, match="same seed"):
        scoring.require_seeds_of_one_method([second, second])


SCALER = Scaler.fit(TRAIN)
VAL = small.windows("val", 40, first_day=60)
TEST = small.windows("test", 6, first_day=120)


def test_errors_without_a_direction_add_nothing():
    signs = np.array([1 if view.origin_utc.toordinal() % 2 else -1 for view in VAL.views()])
    level = known_errors.fit_known_errors(VAL, VAL.truth() + 1000.0 * signs[:, None], SCALER)
    assert level.rule.form == "none"
    assert not level.apply(TEST.views(), np.zeros((len(TEST), 1, 48))).any()


def test_windows_of_another_split_are_refused():
    mixed = WindowSet([*VAL, *TEST], dataset=VAL.dataset)
    with pytest.raises(LeakageError, match="test"):
        known_errors.fit_known_errors(mixed, mixed.truth(), SCALER)
    with pytest.raises(DataError, match="every window once"):
        known_errors.fit_known_errors(VAL, VAL.truth()[1:], SCALER)
