"""The HTTP client against a replay server: what is kept, asked again, refused."""

from compevo_core.errors import SourceBlocked
from compevo_pipeline.sources.common import http
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.common.http import FileRequest
from tests.support.replay import Answer, open_live

HOST = "nemweb.com.au"
URL = f"https://{HOST}/file.csv"
CSV = Answer(body=b"a,b\n", kind="text/csv", etag='"1"')


def fetch(live, url=URL, name="file.csv", **kwargs):
    return live.client.fetch(FileRequest(url=url, source="test", name=name, **kwargs))


def test_a_fetched_file_carries_its_provenance_and_is_kept(replay, tmp_path):
    replay.serve({(HOST, "/file.csv"): CSV})
    live = open_live(tmp_path)
    raw = fetch(live)
    assert (raw.content, raw.url, raw.mode, raw.fetched_at) == (b"a,b\n", URL, Mode.LIVE, live.now)
    assert (tmp_path / "raw" / "test" / "file.csv").read_bytes() == b"a,b\n"
    assert replay.seen[0].headers["user-agent"] == "compevo-tests (nobody@example.org)"


def test_a_file_whose_rows_were_never_stored_is_read_from_the_kept_bytes(replay, tmp_path):
    replay.serve({(HOST, "/file.csv"): CSV})
    fetch(open_live(tmp_path))
    again = fetch(open_live(tmp_path))
    assert again.content == b"a,b\n"
    assert replay.seen[1].is_conditional


def test_a_final_file_is_requested_once(replay, tmp_path):
    replay.serve({(HOST, "/file.csv"): CSV})
    fetch(open_live(tmp_path), is_final=True)
    live = open_live(tmp_path)
    assert fetch(live, is_final=True).content == b"a,b\n"
    live.ledger.confirm()
    assert fetch(open_live(tmp_path), is_final=True) is None
    assert len(replay.seen) == 1


def test_a_page_is_returned_also_where_it_has_not_changed(replay, tmp_path):
    replay.serve({(HOST, "/list/"): Answer(body=b"<html>x</html>", kind="text/html", etag='"7"')})
    for _ in range(2):
        live = open_live(tmp_path)
        page = live.client.read_page(
            FileRequest(url=f"https://{HOST}/list/", source="test", name="list.html")
        )
        live.ledger.confirm()
        assert page == b"<html>x</html>"
    assert replay.seen[1].is_conditional


CHALLENGE = b"<!DOCTYPE html><title>Just a moment...</title>"


def test_a_challenge_is_no_page_where_a_page_is_the_data():
    answer = http.Answer(status=200, content_type="text/html", head=CHALLENGE, html_expected=True)
    assert http.classify_answer(answer) is SourceBlocked
