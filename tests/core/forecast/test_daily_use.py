"""A population in daily use: what moves on with what became known, night by night."""

from datetime import timedelta

import numpy as np
import pytest

from compevo_core.forecast.daily_state import KEPT_NIGHTS, Snapshots
from compevo_core.forecast.forecaster import CompEvoForecaster
from tests.core.forecast.test_forecaster import seal_population
from tests.core.training.test_ensemble import members, train_members
from tests.support.population import news_pool, windows
from tests.support.window_samples import change_views, flip_a_bit

DAYS = windows("test", 9, first_day=70, news=False)
DAILY = {
    "selection__online": True,
    "selection__rule": "boa",
    "selection__parts": 4,
    "forecast__prior": "calendar-ridge",
    "forecast__refit_days": 3,
    "forecast__known_errors": "mean",
}


@pytest.fixture(scope="module")
def sealed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("daily")
    seal_population(folder, **DAILY)
    return folder


def _load(folder):
    return CompEvoForecaster.load(folder, news_pool())


def view_before(days):
    """The same days, each viewed at 17:00 of the day before."""
    seen = {"unknown_steps": 14}
    return change_views(days, lambda view: seen | {"window_id": f"{view.window_id}-17"})


@pytest.mark.parametrize("known", ["midnight", "17:00"])
def test_no_forecast_knows_its_day(known, sealed):
    days = DAYS if known == "midnight" else view_before(DAYS)
    # The same days with another truth from day 6 on.
    origins = sorted({view.origin_utc for view in DAYS.views()})
    is_late_N = np.array([view.origin_utc >= origins[6] for view in days.views()])
    altered = days.with_truth(days.truth() * np.where(is_late_N, 3.0, 1.0)[:, None])
    clean, poisoned = (_load(sealed).follow(some) for some in (days, altered))

    # Day 7 is forecast at 17:00 of day 6, whose truth is known at its end.
    last = 6 if known == "midnight" else 7
    until = np.array([view.origin_utc <= origins[last] for view in DAYS.views()])
    for name in ("aggregate", "step_weights", "quantiles"):
        own, other = (getattr(forecast, name)[until] for forecast in (clean, poisoned))
        assert np.array_equal(own, other, equal_nan=True), name
    assert np.array_equal(clean.agents[:, until], poisoned.agents[:, until])
    # The days after it do know.
    assert not np.allclose(clean.step_weights[~until], poisoned.step_weights[~until])
    assert not np.allclose(clean.bases[:, ~until], poisoned.bases[:, ~until])


def test_following_days_equals_forecasting_and_observing(sealed):
    forecaster, followed = _load(sealed), _load(sealed).follow(DAYS)
    before = forecaster.predict(DAYS.views())
    assert np.array_equal(forecaster.follow(DAYS).aggregate, followed.aggregate)
    assert np.array_equal(forecaster.predict(DAYS.views()), before)

    for start in range(0, len(DAYS), 2):
        day = DAYS[start : start + 2]
        made = forecaster.predict_by_agent(day.views())
        assert np.array_equal(made.aggregate, followed.aggregate[start : start + 2])
        assert np.array_equal(made.step_weights, followed.step_weights[start : start + 2])
        assert np.array_equal(made.quantiles, followed.quantiles[start : start + 2], equal_nan=True)
        forecaster.observe(day)


def test_priors_are_refitted_after_the_set_days(sealed):
    forecaster = _load(sealed)
    first = dict(forecaster.priors.fitted)
    # The last day that they were fitted on is day 39; the next fit is due when day 42 is over.
    forecaster.observe(windows("test", 1, first_day=41))
    assert forecaster.priors.fitted == first
    forecaster.observe(windows("test", 1, first_day=42))
    assert all(forecaster.priors.fitted[key] is not prior for key, prior in first.items())


N_NIGHTS = 100


def make_days(count):
    """Return days that each have a view of midnight and one of seven hours before."""
    days = windows("test", count, first_day=70, news=False)
    return days.with_windows([*days, *view_before(days)])


EVENINGS = make_days(9)
ORIGINS = sorted({view.origin_utc for view in EVENINGS.views()})


def revise(days, day, factor):
    """Return the days with the first value of one of them revised."""
    origin = sorted({view.origin_utc for view in days.views()})[day]
    truth_NH = days.truth()
    truth_NH[[view.origin_utc == origin for view in days.views()], 0] *= factor
    return days.with_truth(truth_NH)


class Nights:
    """Nights one after the other, each in a process of its own."""

    def __init__(self, run, folder, version="a", origins=ORIGINS):
        self.run = run
        self.origins = origins
        artifact_hash = CompEvoForecaster.load(run, news_pool()).artifact_hash
        self.snapshots = Snapshots(folder, artifact_hash, version)
        self.fits, self.counts, self.lines = 0, [], []

    def fit(self, *arguments, **options):
        from compevo_core.baselines import fit_baseline

        self.fits += 1
        return fit_baseline(*arguments, **options)

    def forecast(self, days, number, *, resumes=True):
        """Forecast a day at 17:00 of the day before; later days are not known."""
        until = self.origins[number] - timedelta(hours=7)
        known = days.with_windows(w for w in days if w.view.origin_utc < self.origins[number])
        forecaster = CompEvoForecaster.load(self.run, news_pool(), fit=self.fit)
        if resumes:
            found = self.snapshots.find(known, until)
            kept = self.snapshots, found, self.lines.append
            self.counts.append(forecaster.catch_up(known, until, *kept))
        else:
            forecaster.observe(forecaster.select_unobserved(known, until))
        of_day = [view for view in days.views() if view.origin_utc == self.origins[number]]
        return forecaster.predict_by_agent([view for view in of_day if view.unknown_steps])


def assert_equal(one, other):
    for name in ("aggregate", "agents", "bases", "levels", "step_weights", "quantiles"):
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True), name


@pytest.mark.parametrize("rule", ["boa", "paper", "equal"])
def test_a_night_continues_with_the_same_bits(rule, sealed, tmp_path):
    if rule != "boa":
        # Without levels, and with priors that stay.
        sealed, scope = tmp_path / rule, "series" if rule == "paper" else "all"
        changes = {"selection__online": True, "selection__rule": rule, "selection__scope": scope}
        seal_population(sealed, **changes)
    nights = Nights(sealed, tmp_path / "kept")
    for number in range(3, 6):
        made = nights.forecast(EVENINGS, number)

    assert_equal(made, nights.forecast(EVENINGS, 5, resumes=False))
    # Two series and two views of the one day that has ended since the night before.
    assert {forecast for _, forecast in nights.counts[1:]} == {4}
    assert nights.counts[-1][0] == 4 * 4
    assert nights.lines[-1].startswith("2/2 origins since training")


def test_a_revision_reaches_back_only_as_needed(sealed, tmp_path):
    nights = Nights(sealed, tmp_path)
    for number in range(4, 8):
        nights.forecast(EVENINGS, number)

    revised = revise(EVENINGS, 5, 1.5)
    made = nights.forecast(revised, 8)

    # Day 5 itself is forecast again, and the days after it; none before.
    n_known, n_forecast = nights.counts[-1]
    assert n_known == 4 * 7
    assert 4 * 2 <= n_forecast <= 4 * 3
    assert_equal(made, nights.forecast(revised, 8, resumes=False))


def test_other_code_versions_continue_until_remade(sealed, tmp_path):
    for number in (3, 4):
        Nights(sealed, tmp_path).forecast(EVENINGS, number)
    upgraded = Nights(sealed, tmp_path, version="b")
    before = upgraded.fits
    upgraded.forecast(EVENINGS, 5)
    assert upgraded.counts == [(4 * 4, 4)]
    assert upgraded.fits - before <= 1

    # In a run of its own, from the sealed model on; from then on it is the one that is found.
    until = ORIGINS[5] - timedelta(hours=7)
    known = EVENINGS.with_windows(w for w in EVENINGS if w.view.origin_utc < ORIGINS[5])
    CompEvoForecaster.load(sealed, news_pool()).catch_up(known, until, upgraded.snapshots, None)
    found = upgraded.snapshots.find(known, until)
    assert found.facts["made_by"] == "b"


def test_a_state_of_another_model_is_not_found(sealed, tmp_path):
    nights = Nights(sealed, tmp_path)
    nights.forecast(EVENINGS, 5)
    other = Snapshots(tmp_path, "another", "a")
    assert nights.snapshots.find(EVENINGS, ORIGINS[6]) is not None
    assert other.find(EVENINGS, ORIGINS[6]) is None


DAMAGES = [pytest.param(seed, marks=pytest.mark.slow if seed >= 3 else ()) for seed in range(40)]


@pytest.mark.parametrize("seed", DAMAGES)
def test_a_flipped_state_bit_changes_no_forecast(sealed, tmp_path, seed, caplog):
    for number in (3, 4, 5):
        Nights(sealed, tmp_path).forecast(EVENINGS, number)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    # Every kind of file in turn: facts, arrays, levels, priors, experience.
    flip_a_bit(files[seed % len(files)], np.random.default_rng(seed))
    nights = Nights(sealed, tmp_path)
    made = nights.forecast(EVENINGS, 6)
    assert_equal(made, nights.forecast(EVENINGS, 6, resumes=False))
    assert len(nights.snapshots.damaged) == caplog.text.count("is damaged:")


def test_a_damaged_state_falls_back(sealed, tmp_path):
    nights = Nights(sealed, tmp_path)
    for number in (4, 5):
        nights.forecast(EVENINGS, number)
    newest, *_ = sorted(tmp_path.glob("a/*/state.json"), key=lambda f: -f.stat().st_mtime_ns)
    newest.write_text("{")

    nights.forecast(EVENINGS, 6)
    assert nights.snapshots.damaged == [newest.parent.name] and nights.counts[-1][1] == 2 * 4

    for part in (tmp_path / "a" / "experience").iterdir():
        part.unlink()
    made = nights.forecast(EVENINGS, 7)
    assert nights.counts[-1] == (4 * 6, 4 * 6) and len(nights.snapshots.damaged) == 3
    assert_equal(made, nights.forecast(EVENINGS, 7, resumes=False))


@pytest.mark.slow
def test_a_night_costs_the_same_every_time(tmp_path):
    changes = {name: value for name, value in DAILY.items() if name != "forecast__prior"}
    changes["forecast__refit_days"] = 7
    run, kept = tmp_path / "run", tmp_path / "kept"
    train_members(run, members("calendar-ridge", "persistence", **changes))
    days = make_days(N_NIGHTS + 3)
    origins = sorted({view.origin_utc for view in days.views()})
    nights = Nights(run, kept, origins=origins)
    sizes, fits = [], []
    for number in range(2, N_NIGHTS):
        if number % 10 == 0:
            # A value of three days ago is revised every tenth night.
            days = revise(days, number - 4, 1.01)
        before = nights.fits
        nights.forecast(days, number)
        fits.append(nights.fits - before)
        sizes.append(sum(file.stat().st_size for file in kept.rglob("*") if file.is_file()))

    # Counts of work, and not seconds: the last nights do what the first ones did.
    per_night = [forecast for _, forecast in nights.counts]
    assert max(per_night[-30:]) <= max(per_night[:30]) <= 4 * 14
    assert max(fits) <= 2 * 2
    assert sum(fits[-30:]) <= sum(fits[:30]) + 2
    # Bytes grow by the experience of a day, and states are thinned.
    middle = len(sizes) // 2
    assert sizes[-1] - sizes[middle] <= 1.2 * (sizes[middle] - sizes[0])
    assert len(list(kept.glob("a/*/state.json"))) <= KEPT_NIGHTS + 8
    assert_equal(nights.forecast(days, N_NIGHTS), nights.forecast(days, N_NIGHTS, resumes=False))
