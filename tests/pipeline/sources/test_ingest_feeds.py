"""Several feeds of one data set: which failure costs what, in each mode."""

import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from compevo_core.data.schemas import COVARIATE_SCHEMA
from compevo_core.errors import SchemaDrift, SourceAbsent, SourceRejected, SourceTransient
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.sources.common.base import FrameKind, Mode, RawFile
from compevo_pipeline.sources.feeds import Feed
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.preparation import ingest_feeds
from tests.support.sources import raw
from tests.support.store_workers import series

NOW = datetime(2026, 4, 1, tzinfo=UTC)
LOG = logging.getLogger("test")
SERIES_ID = "AEMO/TOTALDEMAND/NSW1"


def make_feed(
    name: str,
    kind: FrameKind = FrameKind.SERIES,
    error: Exception | None = None,
    *,
    fetch: Callable[..., Iterator[RawFile]] | None = None,
    replaces: bool = False,
    is_optional: bool = False,
) -> Feed:
    """A feed of one file that holds two values, or that fails."""

    def read(*_: object) -> Iterator[RawFile]:
        if error is not None:
            raise error
        yield raw(f"{name}.csv", name, "aemo")

    frame = series(values=(7000.0, 7100.0))
    parsed = frame if kind is FrameKind.SERIES else pl.DataFrame(schema=COVARIATE_SCHEMA)
    return Feed(
        name=name,
        read_files=read,
        fetch_live=fetch,
        parsers={kind: lambda _: parsed},
        replaces=replaces,
        is_optional=is_optional,
    )


def ingest(home: Path, *feeds: Feed, mode: Mode = Mode.ARCHIVE) -> dict[str, dict[str, int]]:
    settings = Settings(home=home, mode=mode, archive=home)
    workspace = Deployment(settings=settings)
    return ingest_feeds(workspace, feeds, "electricity", clock=lambda: NOW, log=LOG)


def read_values(home: Path) -> list[float]:
    store = Deployment(settings=Settings(home=home, mode=Mode.ARCHIVE)).series_store()
    return list(store.read("electricity")["value"])


ABSENT = SourceAbsent("no file aemo/* under the archive")


def test_a_feed_that_the_archive_lacks_is_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    missing = make_feed("weather", FrameKind.COVARIATES, ABSENT)
    counts = ingest(tmp_path, missing, make_feed("aemo"))
    assert list(counts) == ["aemo"] and counts["aemo"]["series rows"] == 2
    assert read_values(tmp_path) == [7000.0, 7100.0]
    assert "weather is left out: SourceAbsent: no file aemo/*" in caplog.text


def test_weather_alone_is_no_data_set(tmp_path: Path) -> None:
    weather = make_feed("weather", FrameKind.COVARIATES)
    with pytest.raises(SourceAbsent, match="no file aemo"):
        ingest(tmp_path, weather, make_feed("aemo", error=ABSENT))
    # Nothing is missing where nothing was left out: a run may ask for the weather alone.
    assert list(ingest(tmp_path, weather)) == ["weather"]


def test_a_file_that_a_declaration_names_is_never_left_out(tmp_path: Path) -> None:
    own = make_feed("own", error=ABSENT, replaces=True)
    with pytest.raises(SourceAbsent):
        ingest(tmp_path, make_feed("aemo"), own)


def test_a_feed_that_the_sample_lacks_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent):
        ingest(tmp_path, make_feed("aemo"), make_feed("other", error=ABSENT), mode=Mode.SAMPLE)


def test_a_torn_file_ends_the_run_and_what_other_feeds_gave_stays(tmp_path: Path) -> None:
    torn = make_feed("torn", error=SchemaDrift("line 3: cut"))
    with pytest.raises(SchemaDrift, match="line 3"):
        ingest(tmp_path, make_feed("aemo"), torn, make_feed("after"))
    assert read_values(tmp_path) == [7000.0, 7100.0]


def test_an_optional_feed_that_fails_costs_itself_alone(tmp_path: Path) -> None:
    torn = make_feed("weather", FrameKind.COVARIATES, SchemaDrift("cut"), is_optional=True)
    assert list(ingest(tmp_path, torn, make_feed("aemo"))) == ["aemo"]


def test_live_feeds_are_all_read_before_the_failure_that_a_retry_may_cure_is_raised(
    tmp_path: Path,
) -> None:
    def refuse(_: object) -> Iterator[RawFile]:
        raise SourceRejected("the file is another one")
        yield

    def drop(_: object) -> Iterator[RawFile]:
        raise SourceTransient("the connection was cut")
        yield

    def answer(_: object) -> Iterator[RawFile]:
        yield raw("a.csv", "a", "aemo", mode=Mode.LIVE)

    feeds = [
        make_feed("refused", fetch=refuse),
        make_feed("cut", fetch=drop),
        make_feed("good", fetch=answer),
    ]
    with pytest.raises(SourceTransient, match="connection was cut"):
        ingest(tmp_path, *feeds, mode=Mode.LIVE)
    assert read_values(tmp_path) == [7000.0, 7100.0]
