"""The pages in a browser: the policy stops what is not theirs, charts draw, nothing is fetched.

Runs where Chromium is at hand.
"""

import shutil
import subprocess

import pytest

from compevo_core.report.page import render_research
from tests.core.report.test_tomorrow import render_tomorrow
from tests.support.traced_samples import make_traced_inputs

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
ATTACK = (
    "<p><img src='http://127.0.0.1:9/x.png'><script>document.title = 'run'</script>"
    "<base href='http://127.0.0.1:9/'><form action='http://127.0.0.1:9/'></form></p>"
)


def open_page(folder, page):
    """Return the page as the browser has it after its scripts, and what the browser wrote."""
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
            *("--enable-logging=stderr", "--virtual-time-budget=8000", "--dump-dom"),
            f"--user-data-dir={folder / 'profile'}",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
def test_markup_that_got_into_the_page_all_the_same_is_stopped(tmp_path):
    shown, log = open_page(
        tmp_path, render_tomorrow().replace('<main id="main">', f'<main id="main">{ATTACK}')
    )
    assert "<title>CompEvo forecast</title>" in shown
    assert log.count("Content Security Policy") >= 3


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine")
def test_the_logics_in_space_draw_under_the_same_policy(tmp_path):
    shown, log = open_page(tmp_path, render_research(make_traced_inputs(tmp_path / "traced")))
    assert 'class="gl-container"' in shown and "<canvas" in shown
    assert "Content Security Policy" not in log
