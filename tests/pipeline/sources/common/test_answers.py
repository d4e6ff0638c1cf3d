"""What an HTTP answer means."""

import pytest

from compevo_core import errors
from compevo_pipeline.sources.common.answers import MEANINGS, Answer, classify_answer


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, None),
        (203, None),
        (204, errors.SourceTransient),
        (206, errors.SourceRejected),
        (304, errors.SourceRejected),
        (400, errors.SourceRejected),
        (401, errors.SourceBlocked),
        (403, errors.SourceBlocked),
        (404, errors.SourceAbsent),
        (405, errors.SourceRejected),
        (408, errors.SourceTransient),
        (410, errors.SourceAbsent),
        (418, errors.SourceRejected),
        (429, errors.SourceTransient),
        (500, errors.SourceTransient),
        (503, errors.SourceTransient),
        (599, errors.SourceTransient),
    ],
)
def test_every_status_has_one_class(status, expected):
    head = b"" if status == 204 else b"a,b"
    answer = Answer(status=status, content_type="", head=head, html_expected=False)
    assert classify_answer(answer) is expected


CHALLENGE = b"<!DOCTYPE html><title>Just a moment...</title>"


@pytest.mark.parametrize(
    ("status", "kind", "content", "html_expected", "expected"),
    [
        (200, "text/csv", b"a,b\n", False, None),
        (200, "text/html; charset=utf-8", b"<html>hello</html>", True, None),
        (200, "text/csv", b"<!doctype html><p>sorry</p>", False, errors.SchemaDrift),
        (200, "text/csv", b" \n", False, errors.SourceTransient),
        (200, "text/html", CHALLENGE, True, errors.SourceBlocked),
        (503, "text/html", CHALLENGE, False, errors.SourceBlocked),
        (503, "text/html", b"<html>down</html>", False, errors.SourceTransient),
        (404, "text/html", b"<html>gone</html>", False, errors.SourceAbsent),
    ],
)
def test_an_answer_is_judged_by_its_content_too(status, kind, content, html_expected, expected):
    answer = Answer(status=status, content_type=kind, head=content, html_expected=html_expected)
    assert classify_answer(answer) is expected


def test_every_row_of_the_table_is_reached_by_some_answer():
    bodies = (b"", b"a,b", b"<html>x", CHALLENGE)
    reached = {
        next(row.words for row in MEANINGS if row.fits(answer))
        for status in (200, 304, 400, 403, 404, 429, 500)
        for answer in (
            Answer(status=status, content_type="", head=body, html_expected=False)
            for body in bodies
        )
    }
    assert reached == {row.words for row in MEANINGS}
