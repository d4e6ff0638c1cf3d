"""A public site of what was issued: whole, continued, and never replaced."""

from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compevo_core.errors import CheckpointMismatch, DataError
from compevo_core.forecast.issued import CHAIN_FILE, read_chain, write_issued
from compevo_pipeline.cli.main import app
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.storage.series_store import SeriesStore
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.results import publish_site
from tests.support.issued_samples import ORIGIN, make_issued
from tests.support.scored_samples import NOW
from tests.support.window_samples import make_daily_values, make_series

DATASET = "electricity-operational"
ONE_DAY = timedelta(days=1)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(settings=Settings(home=tmp_path / "home", mode=Mode.SAMPLE))
    series = make_series(
        make_daily_values(5),
        first=ORIGIN - 4 * ONE_DAY,
        series_id="AEMO/OPERATIONAL_DEMAND/NSW1",
    )
    SeriesStore(made.layout.root).write(DATASET, series)
    write_issued(made.layout.issued(DATASET), make_issued(origin=ORIGIN - ONE_DAY))
    return made


def test_a_site_holds_records_chain_scores_and_page_and_is_continued(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, root = tmp_path / "site", deployment.layout.issued(DATASET)
    first = publish_site(deployment, site, NOW)[DATASET]
    write_issued(root, make_issued())
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COMPEVO_MODE", "sample")
    shown = CliRunner().invoke(app, ["publish", str(site)], catch_exceptions=False)
    chain = read_chain(site / "issued" / DATASET)
    assert list(chain.lines[:1]) == list(first.lines) and len(chain.lines) == 2
    assert chain.head in shown.output and chain.head == read_chain(root).head

    page = (site / "index.html").read_text(encoding="utf-8")
    assert chain.head in page and "The publisher's own forecast" in page
    assert "2026-03" in (site / "scores" / f"{DATASET}-by-step.csv").read_text()
    assert str(tmp_path) not in page

    # Anybody checks it without the deployment.
    monkeypatch.setenv("COMPEVO_HOME", str(tmp_path / "none"))
    words = ["verify", "--folder", str(site / "issued")]
    assert chain.head in CliRunner().invoke(app, words, catch_exceptions=False).output
    record = next(site.glob("issued/*/*/known-*/forecast.json"))
    record.write_text(record.read_text().replace("+00:00", "+01:00"))
    with pytest.raises(CheckpointMismatch, match="altered"):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_what_was_published_is_not_replaced_by_another_past(
    deployment: Deployment, tmp_path: Path
) -> None:
    site, root = tmp_path / "site", deployment.layout.issued(DATASET)
    publish_site(deployment, site, NOW)
    kept = (site / "issued" / DATASET / CHAIN_FILE).read_bytes()

    # The deployment lost its past and issued the day again.
    root.rename(tmp_path / "lost")
    write_issued(root, make_issued(origin=ORIGIN - ONE_DAY, level=7000.0))
    with pytest.raises(CheckpointMismatch, match="not the beginning of the chain"):
        publish_site(deployment, site, NOW)
    assert (site / "issued" / DATASET / CHAIN_FILE).read_bytes() == kept


def test_nothing_to_publish_names_the_command(tmp_path: Path) -> None:
    empty = Deployment(settings=Settings(home=tmp_path, mode=Mode.SAMPLE))
    with pytest.raises(DataError, match="compevo forecast"):
        publish_site(empty, tmp_path / "site", NOW)
