"""The key of a paid plan at Open-Meteo: sent to its own host alone, and written nowhere."""

import json
import logging
import traceback

import pytest

from compevo_core.errors import CompEvoError, ConfigError, SourceRejected, SourceTransient
from compevo_pipeline.config.settings import Settings
from tests.pipeline.sources.test_weather_live import NOW, asked_run
from tests.support.live import LiveHome
from tests.support.replay import Answer
from tests.support.weather import make_run

DATASET = "electricity-operational"
HOST, FREE, PATH = (
    "customer-single-runs-api.open-meteo.com",
    "single-runs-api.open-meteo.com",
    "/v1/forecast",
)
KEY = "canary-Key_0123456789"


def answer(seen):
    return Answer(body=json.dumps(make_run(asked_run(seen))).encode(), kind="application/json")


def quote(status):
    """Refuses, and quotes the key and the whole address, as servers do."""

    def refuse(seen):
        # The key first: of a long answer only the beginning is told.
        reason = f"{seen.query['apikey']}: {dict(seen.query)}"
        body = json.dumps({"reason": reason, "error": True})
        return Answer(body=body.encode(), status=status, kind="application/json")

    return refuse


@pytest.fixture
def home(tmp_path):
    return LiveHome(tmp_path / "home", NOW, {"open_meteo_key": KEY})


def ingest(home):
    return home.ingest(DATASET, only=["weather-forecast"])


def test_with_a_key_the_customers_host_is_asked_and_without_one_the_free_host(
    home, replay, tmp_path
):
    replay.serve({(HOST, PATH): answer, (FREE, PATH): answer})
    ingest(home)
    assert {(seen.host, *seen.query["apikey"]) for seen in replay.seen} == {(HOST, KEY)}
    asked = len(replay.seen)
    assert ingest(home)["weather-forecast"]["files"] == 0
    assert len(replay.seen) == asked

    ingest(LiveHome(tmp_path / "free", NOW))
    assert {(seen.host, "apikey" in seen.query) for seen in replay.seen[asked:]} == {(FREE, False)}


REFUSALS = {
    "quoted": (quote(400), SourceRejected),
    "busy": (quote(503), SourceTransient),
    "cut": (Answer(is_reset=True), SourceTransient),
    "moved": (
        Answer(status=302, headers={"Location": f"https://{FREE}{PATH}?apikey={KEY}"}),
        SourceRejected,
    ),
}


@pytest.mark.parametrize(("reply", "expected"), REFUSALS.values(), ids=REFUSALS)
def test_the_key_reaches_no_text_log_or_file(home, replay, caplog, reply, expected):
    caplog.set_level(logging.DEBUG)
    replay.serve({(HOST, PATH): answer})
    texts = [repr(home.workspace.settings), str(ingest(home))]
    home.wait(days=1)
    replay.serve({(HOST, PATH): reply})
    with pytest.raises(expected) as caught:
        ingest(home)
    texts += ["".join(traceback.format_exception(caught.value)), repr(caught.value)]
    result = home.materialize(DATASET)
    texts += [str(event) for event in result.all_events]
    texts.append(caplog.text)

    assert [text for text in texts if KEY in text] == []
    assert "apikey" in str(replay.seen[-1].query)
    assert {seen.host for seen in replay.seen if "apikey" in seen.query} == {HOST}
    written = [path for path in home.home.rglob("*") if path.is_file()]
    assert len(written) > 5
    assert [path for path in written if KEY.encode() in path.read_bytes()] == []


def test_a_refused_certificate_names_the_host_and_no_key(home, replay, caplog):
    caplog.set_level(logging.DEBUG)
    replay.bad_certificates.add(HOST)
    with pytest.raises(CompEvoError, match="certificate was refused") as caught:
        ingest(home)
    assert KEY not in "".join(traceback.format_exception(caught.value)) + caplog.text


def test_a_run_that_is_not_there_is_known_as_such_on_the_customers_host(home, replay):
    reason = json.dumps({"error": True, "reason": "The requested model run is not available"})
    replay.serve({(HOST, PATH): Answer(body=reason.encode(), status=400, kind="application/json")})
    assert ingest(home)["weather-forecast"]["files"] == 0
    home.wait(minutes=5)
    asked = len(replay.seen)
    ingest(home)
    assert len(replay.seen) == asked


def test_a_key_of_other_characters_is_refused_without_its_value():
    with pytest.raises(ConfigError, match="COMPEVO_OPEN_METEO_KEY") as caught:
        Settings.from_environment({"COMPEVO_OPEN_METEO_KEY": "canary&latitude=1"})
    assert "canary" not in str(caught.value)
    assert Settings.from_environment({}).open_meteo is None
