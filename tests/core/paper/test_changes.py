"""Named changes: each changes what its name says and no more; experiments of them are scored."""

import logging
from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from compevo_core.baselines import fit_baseline
from compevo_core.config.run import RunConfig
from compevo_core.errors import ConfigError
from compevo_core.evaluation.metrics import measure_naive_error
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.paper.changes import (
    ABLATION,
    ALL_TRIALS,
    CHANGES,
    DISTANCE,
    EXPERIMENTS,
    PAPER_METHOD,
    change_weather,
    find_experiment,
    find_variant,
    list_changes,
)
from compevo_core.paper.report.inputs import read_configs, read_inputs, read_result_file
from compevo_core.paper.report.paper_tables import (
    PERTURBATION,
    PRINTED,
    build_fold_table,
    build_paper_tables,
    list_subjects,
)
from compevo_core.paper.trials import (
    Trial,
    _select_scopes,
    build_folds,
    list_trials_of_runs,
    score_experiment,
    train_folds,
)
from compevo_core.training.checkpoint import hash_stage
from compevo_core.training.run_folder import RunFolder
from compevo_core.training.trainer import train
from tests.support.population import join_windows, news_pool, tiny
from tests.support.population import windows as make_windows
from tests.support.report_samples import NOW
from tests.support.window_samples import make_window_set, place_in_folds


def full_method():
    """Settings in which every control takes something away."""
    return tiny(
        population__agents=2,
        population__members=[{"prior": "gbm", "seed": 1}, {"news_scope": "none"}],
        forecast__known_errors="mean",
    )


def list_differences(base, changed):
    return {
        f"{section}.{key}": value
        for section, values in changed.to_dict().items()
        for key, value in values.items()
        if value != base.to_dict()[section][key]
    }


ADAPTED = {"one-agent", ALL_TRIALS, "paper-method"}


@pytest.mark.parametrize("name", sorted({*list_changes("control", "variant")} - ADAPTED))
def test_a_change_alters_only_what_it_names(name):
    changed = find_variant(name).configure(full_method())
    assert list_differences(full_method(), changed) == CHANGES[name].settings


def test_one_agent_is_the_first_of_its_members():
    full = full_method().with_overrides({"grpo.group_size": 8})
    config = find_variant("one-agent").configure(full)
    assert config.population.agents == 1
    assert config.population.members == full.population.members[:1]
    # A population of agents that are alike has no entry to keep.
    assert find_variant("one-agent").configure(tiny()).population.members == ()

    # With all trials of the population.
    config = find_variant(ALL_TRIALS).configure(full)
    assert (config.population.agents, config.grpo.group_size) == (1, 16)
    # What reads everything has no logic to try.
    members = [{"reads": "everything"}, {"window_share": 0.5}]
    pair = {"population.agents": 2, "population.members": members}
    specialists = RunConfig.preset("specialists").with_overrides(pair)
    config = find_variant(ALL_TRIALS).configure(specialists)
    assert [member.window_share for member in config.population.members] == [0.5]


@pytest.mark.parametrize(
    ("name", "rounds", "sizes"), [("default", 16, (3, 8, 4)), ("demo", 1, (2, 4, 1))]
)
def test_the_papers_method_is_its_preset_shortened(name, rounds, sizes):
    full, preset = RunConfig.preset(name), RunConfig.preset(PAPER_METHOD)
    config = find_variant("paper-method").configure(full.with_overrides({"run.seed": 7}))
    assert (config.run.rounds, config.run.supervised_rounds, config.run.seed) == (rounds, rounds, 7)
    agents, group, layers = sizes
    assert (config.population.agents, config.forecast.layers) == (agents, layers)
    assert config.population.members == full.population.members[:agents]
    assert config.forecast.prior_folds == full.forecast.prior_folds
    assert config.grpo == preset.grpo.model_copy(update={"group_size": group})
    assert (config.evolution, config.objective) == (preset.evolution, preset.objective)

    rate = {"demo": 5e-3}.get(name, preset.optim.policy_lr)
    assert config.optim == preset.optim.model_copy(update={"policy_lr": rate})


def test_repeats_of_the_full_method_are_foreseen():
    def list_unchanged(config):
        changes = EXPERIMENTS[ABLATION].changes
        return {change.name for change in changes if change.changes_nothing(config)}

    assert list_unchanged(full_method()) == set()
    assert list_unchanged(tiny()) == {"no-known-errors", "alike-agents"}
    assert find_variant("swapped-news").changes_nothing(tiny(news__top_k=0))


def test_only_swapped_news_gets_other_windows():
    windows = make_windows("train", 40)
    assert find_variant("no-news").change_windows(windows) is windows
    swapped = find_variant("swapped-news").change_windows(windows)
    assert swapped.hash != windows.hash
    # Runs of several seeds are scored together, so all were trained on the same windows.
    assert find_variant("swapped-news").change_windows(windows).hash == swapped.hash


@pytest.mark.parametrize("name", sorted(set(EXPERIMENTS) - {"ablation", "parts", *PERTURBATION}))
def test_a_change_differs_only_in_its_settings(name):
    base = RunConfig.preset("operational") if name == "weather" else tiny()
    changes = EXPERIMENTS[name].changes
    # What follows from the members is not a setting of its own.
    keys = [
        set(list_differences(base, change.configure(base))) - {"population.members"}
        for change in changes
    ]

    assert max(map(len, keys)) == 1
    # The weather's controls leave out members, or what moves their weights.
    assert len(set().union(*keys)) == (2 if name == "weather" else 1)


def test_news_is_changed_under_rival_systems_too():
    experiments = [EXPERIMENTS[name] for name in PERTURBATION]
    assert [it.system for it in experiments] == ["compevo", "mael", "mae-gpt", "mad-rl"]
    assert all(it.changes == experiments[0].changes for it in experiments)
    assert not any(it.trains for it in experiments)


def test_policy_weights_vary_where_policies_learn():
    base = RunConfig.preset("default")
    assert not base.grpo.enabled
    for change in EXPERIMENTS["lambda-pg"].changes:
        assert change.configure(base).grpo.enabled


def test_disabled_parts_return_together():
    off, paper = RunConfig.preset("default"), RunConfig.preset("paper")
    parts = {change.name: change.configure(off) for change in EXPERIMENTS["parts"].changes}
    assert parts["parts=none"] == off
    back = list_differences(off, parts["parts=all"])
    assert back == {name: list_differences(off, paper)[name] for name in back}
    policies = {"evolution.flat_share", "evolution.cross_share"}  # policies write, not chance
    terms = {"objective.lambda_div", "objective.lambda_prune"}
    assert back.keys() == policies | terms | {"evolution.update", "grpo.enabled"}
    assert len({hash_stage(config, {}) for config in parts.values()}) == 1


@pytest.mark.parametrize("name", sorted(PRINTED))
def test_what_the_paper_prints_is_varied_here_too(name):
    assert set(list_subjects(PRINTED[name])) <= set(EXPERIMENTS[name].names)


def test_further_agents_reuse_members_with_seeds():
    members = [{"prior": "gbm"}, {"news_scope": "none"}]
    (change,) = EXPERIMENTS["agents"].select(["agents=3"])
    config = change.configure(tiny(population__agents=2, population__members=members))
    reused = [(member.prior, member.seed) for member in config.population.members]
    assert reused == [("gbm", 0), ("shared", 1), ("gbm", 2)]


def test_unknown_or_unfit_changes_are_refused():
    with pytest.raises(ConfigError, match="ablation, lambda-pg"):
        find_experiment("lamda")
    with pytest.raises(ConfigError, match="'tau=7'"):
        EXPERIMENTS["tau"].select(["tau=7"])
    with pytest.raises(ConfigError, match=r"'no-new'.*compevo"):
        find_variant("no-new")
    with pytest.raises(ConfigError, match="members=published"):
        EXPERIMENTS["weather"].select(["members=published"])[0].configure(tiny())


DAY = timedelta(days=1)
OTHERS = ("past_lag1", "past_mean14", "published_error_lag1", "rooftop_mw", "rooftop_mw_mean14")
WEATHER = ("temperature_c", "temperature_c_lag1", "temperature_c_mean14")


def test_weather_of_another_day_comes_from_before():
    # One window a day, whose covariates by step are all the number of its day.
    given = make_window_set(12)
    first = given[0].view.origin_utc
    days = given.with_windows(
        window.change_view(
            origin_utc=first + i * DAY,
            step_covariates={name: np.full(48, float(i)) for name in OTHERS + WEATHER},
        )
        for i, window in enumerate(given)
    )

    without, changed = (change_weather(days, name) for name in ("none", "nine-days-before"))

    assert change_weather(days, "own") is days
    for before, after in zip(days, without, strict=True):
        assert set(after.view.step_covariates) == set(OTHERS)
        assert after.y.tobytes() == before.y.tobytes()
    for day, view in enumerate(changed.views()):
        lent = view.step_covariates
        assert all((lent[name] == day).all() for name in OTHERS)
        if day < DISTANCE / DAY:
            assert not set(lent) & set(WEATHER)
        else:
            assert all((lent[name] == day - 9).all() for name in WEATHER)
    with pytest.raises(ConfigError, match="'tomorrow'"):
        change_weather(days, "tomorrow")


LOG = logging.getLogger("experiments")
CONFIG = tiny(run__rounds=2, run__validate_every=0, evolution__every=0, selection__ema=0.0)
TEMPERATURES = ("tau=0.1", "tau=0.5", "tau=5")


@pytest.fixture(scope="module")
def windows():
    return join_windows(("train", 6, 0), ("val", 2, 40), ("test", 5, 60))


@pytest.fixture(scope="module")
def run(tmp_path_factory, windows):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(CONFIG, windows.split("train"), windows.split("val"), news_pool(), folder)
    return folder


def test_a_temperature_moves_only_the_weights(windows, run):
    views = windows.split("test").views()
    forecaster = CompEvoForecaster.load(run, news_pool())
    model = forecaster._model
    model.calibration.override_A.fill(0.0)
    model.selection.fitness_EA.copy_(model.selection.fitness_EA.new_tensor([[-1.0, -2.0, -3.0]]))

    before = forecaster.predict_by_agent(views)
    forecaster.reweigh(CONFIG.with_overrides({"selection.temperature": 0.05}))
    after = forecaster.predict_by_agent(views)

    assert (after.agents == before.agents).all()
    assert after.step_weights[:, 0].min() > 0.99 > before.step_weights[:, 0].max()
    assert forecaster.config.selection.temperature == 0.05


def test_a_sweep_becomes_rows_pairs_and_tables(tmp_path, windows, run):
    experiment = EXPERIMENTS["tau"]
    changes = experiment.select(TEMPERATURES)
    trials = list_trials_of_runs(changes, [(run, CONFIG)], windows, news_pool())
    score_experiment(experiment, trials, news_pool(), tmp_path, commit="c", log=LOG)

    inputs = read_inputs(tmp_path, [], mode="archive", generated_at=NOW)
    pooled = inputs.rows.filter(pl.col("entity") == "pooled")
    assert set(pooled["experiment"]) == {"experiment-tau"}
    assert set(pooled["method"]) == set(TEMPERATURES)
    # The settings that a row was made with, not the settings of its run.
    assert set(read_configs(tmp_path)) == set(pooled["config_hash"])
    pairs = {(test["method_a"], test["method_b"]) for test in inputs.paired}
    assert pairs == {("tau=0.1", "tau=0.5"), ("tau=5", "tau=0.5")}
    captions = [table.caption for table in build_paper_tables("sensitivity", inputs)]
    assert any("temperature of the weights, against tau=0.5" in caption for caption in captions)


def test_changed_news_is_scored_where_changed(windows, run):
    changes = EXPERIMENTS["news"].select(["news=own", "news=none", "news=noisy"])
    trials = list_trials_of_runs(changes, [(run, CONFIG)], windows, news_pool())
    counts = [len(trial.windows[0].view.candidate_ids) for trial in trials]

    assert counts[1] == 0 and counts[2] >= counts[0] > 0


def test_returning_parts_are_judged_on_validation(windows):
    (scope,) = _select_scopes(EXPERIMENTS["parts"], windows, 1, None)
    assert (scope.subset, scope.days) == ("val", None)
    assert {window.view.split for window in scope.windows} == {"val"}


def test_days_after_the_test_are_scored_too(tmp_path):
    days = join_windows(("train", 24, 0), ("val", 6, 30), ("test", 6, 50), ("inference", 4, 70))
    members = [{"prior": "persistence", "weight": 3.0}, {"prior": "theta"}]
    numeric = {"forecast.decoder": "none", "population.agents": 2, "population.members": members}
    online = {"selection.online": True, "selection.rule": "boa"}
    base = RunConfig().with_overrides(numeric | online)
    weather = EXPERIMENTS["weather"]
    trials = []
    for change in weather.select(["weather=own", "weights=fixed"]):
        config, folder = change.configure(base), tmp_path / change.name
        train(config, days.split("train"), days.split("val"), news_pool(), folder)
        trials.append(Trial(change=change.name, config=config, windows=days, run=folder))

    _, rows, paired = score_experiment(
        weather, trials, news_pool(), tmp_path, commit="c", log=LOG, scopes=1
    )
    assert set(rows["split"]) == {"test", "inference"}
    assert set(paired["subset"]) == {"test", "inference"}
    pooled = rows.filter(pl.col("entity") == "pooled", pl.col("split") == "inference")
    assert set(pooled["n_windows"]) == {len(days.split("inference"))}

    # Weights that continue to learn have seen the test by then, fixed ones have not.
    population = CompEvoForecaster.load(trials[0].run, news_pool())
    both = days.with_windows([*days.split("test"), *days.split("inference")])
    later = [view.split == "inference" for view in both.views()]
    error = abs(population.follow(both).aggregate - both.truth())[later].mean()
    assert pooled.filter(method="weather=own")["mae"].item() == pytest.approx(error)
    scopes = _select_scopes(weather, days, 1, 1)
    assert [len(scope.days) for scope in scopes] == [len(both), len(both)]


# The shortest training that there is: what a fold's training does is the trainer's own business.
SHORTEST = tiny(
    population__agents=2,
    evolution__every=0,
    news__top_k=0,
    run__rounds=1,
    run__fixed_logics=0,
    run__validate_every=1,
    run__validation_windows=1,
)


@pytest.fixture(scope="module")
def folded():
    return place_in_folds(join_windows(("train", 18, 0), ("test", 2, 40), entities=("NSW1",)))


@pytest.fixture(scope="module")
def trained(folded, tmp_path_factory):
    out = tmp_path_factory.mktemp("folds")
    return out, train_folds(SHORTEST, folded, news_pool(), out, out, commit="abc")


def test_every_fold_is_trained_once_with_rows(folded, trained):
    out, rows = trained
    numbers = range(len(build_folds(folded)))
    assert len(numbers) == 5 and all(RunFolder(out / f"fold_{k}").is_finished for k in numbers)

    order = [(f"fold-{k}", method) for k in numbers for method in ("compevo", "compevo-prior")]
    assert rows.filter(entity="pooled").select("subset", "method").rows() == order
    assert read_result_file(out / "folds-electricity.csv").height == rows.height
    assert set(rows["commit"]) == {"abc"} and set(rows["config_hash"]) == {SHORTEST.hash}
    table = build_fold_table(rows)
    names = ["CompEvo's best base model, fold-4", "CompEvo, mean of folds"]
    names = [f"electricity: {name}" for name in names]
    assert [row[0] for row in table.rows[-3:-1]] == names
    errors = rows.filter(entity="pooled", method="compevo")["mae"]
    assert table.rows[-2][1] == f"{errors.mean():.1f} ± {errors.std():.1f}"

    calls = []
    options = {"commit": "abc", "on_round": lambda fold, record: calls.append(fold)}
    again = train_folds(SHORTEST, folded, news_pool(), out, out, **options)
    measured = pl.col("seconds", "seconds_per_window")
    assert again.drop(measured).equals(rows.drop(measured)) and calls == []


def test_fold_errors_come_from_their_own_windows(folded, trained):
    out, rows = trained
    for number, (learnt, validation) in enumerate(build_folds(folded)):
        assert {view.split for view in validation.views()} == {"val"}
        forecasts = {
            "compevo": CompEvoForecaster.load(out / f"fold_{number}", news_pool()),
            "compevo-prior": fit_baseline("persistence", learnt),
        }
        naive = measure_naive_error(learnt)["NSW1"]

        for method, forecaster in forecasts.items():
            scope = {"subset": f"fold-{number}", "method": method, "entity": "pooled"}
            row = rows.filter(**scope).row(0, named=True)
            error_NH = np.abs(forecaster.predict(validation.views()) - validation.truth())
            assert row["mae"] == pytest.approx(error_NH.mean(), rel=1e-4)
            assert row["mase"] == pytest.approx(error_NH.mean() / naive, rel=1e-4)
            assert row["n_windows"] == len(validation)
