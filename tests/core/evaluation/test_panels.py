"""Forecast panels: which windows become one, and what its file holds.

That panels survive their file whole is shown in ``tests/core/report/test_inputs.py``.
"""

import numpy as np
import pytest

from compevo_core.errors import DataError
from compevo_core.evaluation.panels import build_panels, read_panels, write_panels
from compevo_core.evaluation.scopes import Scope
from tests.support import population as small


def scope(days=5):
    return Scope(subset="test", windows=small.windows("test", days, entities=("NSW1",)))


def panels(count, *, chosen=()):
    chosen_scope = scope()
    n_windows = len(chosen_scope.windows)
    forecasts = {"compevo": np.full((n_windows, 48), 7.0), "persistence": np.zeros((n_windows, 48))}
    return build_panels(chosen_scope, forecasts, [chosen] * n_windows, small.news_pool(), count)


def test_a_panel_holds_every_method_and_the_newest_news_first():
    ids = small.article_ids()
    (panel,) = panels(1, chosen=(ids[0], ids[2]))
    assert list(panel.forecasts) == ["compevo", "persistence"]
    assert panel.forecasts["compevo"] == [7.0] * 48
    assert [title for _, title in panel.news] == [small.TITLES[2], small.TITLES[0]]
    assert panel.truth == scope().windows[0].y.tolist()


def test_a_headline_with_a_unicode_line_separator_stays_one_line(tmp_path):
    (panel,) = panels(1)
    odd = panel.__class__(**vars(panel) | {"news": (("2019-01-01 00:00", "a\u2028b\x85c"),)})
    write_panels(tmp_path / "panels.jsonl", [odd, panel])
    first, second = read_panels(tmp_path / "panels.jsonl")
    assert first.news[0][1] == "a\u2028b\x85c"
    assert second.window_id == panel.window_id


def test_a_torn_line_is_named(tmp_path):
    path = tmp_path / "panels.jsonl"
    write_panels(path, panels(2))
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(DataError, match="line 3: not a forecast panel"):
        read_panels(path)
