"""What a report reads: runs, panels, checks and tests, whole or refused by name."""

from datetime import datetime

import numpy as np
import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.scopes import ForecastPanel, Scope, build_panels, write_panels
from compevo_core.paper.report.inputs import read_inputs, read_panels, read_run
from tests.support import population as small
from tests.support.report_samples import (
    HOSTILE,
    NOW,
    make_check,
    make_inputs,
    make_panel,
    make_rows,
    write_run,
)


def test_panels_survive_files_unless_they_are_broken(tmp_path):
    path = tmp_path / "panels.jsonl"
    odd = (("2019-01-01 00:00", "a\u2028b\x85c"),)  # to Unicode its parts are lines
    write_panels(path, [make_panel(), make_panel(news=odd), make_panel("QLD1", news=())])
    first, unusual, second = read_panels(path)

    assert unusual.news[0][1] == odd[0][1]
    assert first.truth[30] is None
    assert first.forecasts == make_panel().forecasts
    assert first.news[0][1] == HOSTILE
    assert second.news == ()
    assert first.origin_utc == make_panel().origin_utc

    with pytest.raises(DataError, match="gbm has 2 values"):
        make_panel(forecasts={"gbm": [1.0, 2.0]})
    local = make_panel(origin_utc=datetime(2021, 1, 1))  # noqa: DTZ001 - the case tested
    write_panels(path, [local])
    with pytest.raises(DataError, match="line 1"):
        read_panels(path)
    write_panels(path, [make_panel()])
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(DataError, match="line 2"):
        read_panels(path)


def test_a_run_folder_is_read_whole(tmp_path):
    run = read_run(write_run(tmp_path / "electricity"))
    assert (run.name, run.agents, len(run.rounds), len(run.panels)) == ("electricity", 3, 6, 1)
    assert run.setting("forecast", "prior") == "calendar-ridge"
    assert run.setting("forecast", "nothing") == ""


def test_checks_and_tests_are_recognised(tmp_path):
    make_rows().write_csv(tmp_path / "main.csv")
    (test,) = make_inputs().paired
    pl.DataFrame([test | {"seeds": "0"}]).write_csv(tmp_path / "paired.csv")
    (tmp_path / "checks.csv").write_text(
        "check,passed,detail\nhash unchanged,true,\nno 2026 in training,false,one window\n"
    )
    (tmp_path / "memory.csv").write_text("method,gib\ncompevo,3\n")
    run = write_run(tmp_path / "electricity")

    inputs = read_inputs(tmp_path, [run], mode="archive", generated_at=NOW)
    passed = make_check("hash unchanged", True, None)
    assert inputs.checks == [passed, make_check("no 2026 in training", False, "one window")]
    assert list(inputs.paired) == [test | {"seeds": "0"}]
    assert list(inputs.unread) == ["memory.csv"]
    assert isinstance(inputs.runs[0].panels[0], ForecastPanel)


def test_a_panel_holds_methods_and_newest_news():
    scope = Scope(subset="test", windows=small.windows("test", 5, entities=("NSW1",)))
    forecasts = {"compevo": np.full((5, 48), 7.0), "persistence": np.zeros((5, 48))}
    ids = small.article_ids()
    (panel,) = build_panels(scope, forecasts, [(ids[0], ids[2])] * 5, small.news_pool(), 1)
    assert list(panel.forecasts) == ["compevo", "persistence"]
    assert panel.forecasts["compevo"] == [7.0] * 48
    assert [title for _, title in panel.news] == [small.TITLES[2], small.TITLES[0]]
    assert panel.truth == scope.windows[0].y.tolist()
