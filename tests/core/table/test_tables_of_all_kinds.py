"""Tables of the kinds that the benchmark has, made small: sound, and forecast without a warning."""

import os
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest

from benchmarks.rows import REPO
from benchmarks.tables import TASKS
from compevo_core import Forecaster
from compevo_core.data.content import describe_faults
from compevo_core.table.frames import SERIES, read_table

FIELD = REPO.parent / "shared" / "field"  # cases of other people, where they are at hand


def make_table(task):
    """A season and noise on the grid of a table; sparse, or zero at night, where that is."""
    rng = np.random.default_rng(len(task.name))
    season = task.seasons[0]
    count = 120 * season if task.freq[-1] in "hn" else 8 * max(season, task.horizon) + 120
    stamps = pd.date_range("2023-01-02", periods=count, freq=task.freq)
    wave = 10 * np.sin(2 * np.pi * np.arange(count) / season)
    values = 100 + wave + rng.normal(0, 1, count)
    if task.name == "intermittent":
        values = np.where(rng.random(count) < 0.2, rng.integers(1, 9, count), 0).astype(float)
    if task.name == "solar":
        values = np.clip(wave * rng.uniform(0.5, 1.5, count), 0, None)
    columns = {name: rng.normal(size=count) for name in task.ahead}
    one = pd.DataFrame({"unique_id": "s", "ds": stamps, "y": values} | columns)
    return pd.concat([one, one.assign(unique_id="t", y=3 * one["y"])])


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_each_kind_of_table_is_forecast(task):
    table = make_table(task)
    rows, form = read_table(table, Forecaster())
    for (name,), part in rows.group_by(SERIES):
        assert describe_faults(str(name), part, form.clock.step) == []

    steps = task.horizon * 7 // 5 if task.freq == "B" else task.horizon
    ends = table["ds"].drop_duplicates().iloc[-task.horizon :]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = Forecaster("seasonal-mean", horizon=steps, ahead=task.ahead)
        fitted.fit(table[~table["ds"].isin(ends)])
        future = table[table["ds"].isin(ends)].drop(columns="y") if task.ahead else None
        forecast = fitted.predict(future=future)
    assert list(forecast[forecast["unique_id"] == "t"]["ds"]) == list(ends)
    assert forecast["mean"].between(forecast["q0.1"], forecast["q0.9"]).all()


@pytest.mark.slow
@pytest.mark.skipif(not FIELD.is_dir(), reason="the cases are not at hand")
@pytest.mark.parametrize("name", ["cases_open", "cases_pass"])
def test_cases_of_other_people_hold(name):
    command = [sys.executable, str(FIELD / f"{name}.py")]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    assert "FAIL" not in done.stdout
    assert done.stdout.splitlines()[-1].endswith(" ok, 0 failed"), done.stderr[-500:]
