import dagster as dg
import pytest

from compevo_core import errors
from compevo_pipeline.failures import (
    POLICIES,
    RetryDecision,
    Throttled,
    classify_response,
    classify_status,
    get_policy,
    to_dagster,
    translate_errors,
)
from compevo_pipeline.sources.common.articles import EmptyNewsAnswer


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, None),
        (206, None),
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
    assert classify_status(status) is expected


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
    assert classify_response(status, kind, content, html_expected=html_expected) is expected


def test_every_source_error_of_the_family_has_a_policy():
    family = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CompEvoError)
    ]
    assert len(family) > 8
    assert all(get_policy(kind("x")).decision in RetryDecision for kind in family)


def test_only_transient_errors_are_retried():
    retried = [kind for kind, policy in POLICIES if policy.retries]
    assert retried == [errors.SourceTransient]
    assert isinstance(to_dagster(EmptyNewsAnswer("x")), dg.RetryRequested)


def test_waits_double_and_a_publishers_own_wish_is_honoured():
    waits = [
        to_dagster(errors.SourceTransient("x"), attempt=attempt).seconds_to_wait
        for attempt in range(3)
    ]
    assert waits == [60, 120, 240]
    assert to_dagster(Throttled("slow down", 900)).seconds_to_wait == 900
    assert to_dagster(Throttled("slow down", 1)).seconds_to_wait == 60


def test_a_transient_error_out_of_tries_is_final_and_says_so():
    failure = to_dagster(errors.SourceTransient("timeout at x"), attempt=3)
    assert isinstance(failure, dg.Failure)
    assert failure.allow_retries is False
    assert failure.description == "SourceTransient: timeout at x (given up after 3 retries)"


def test_a_torn_file_on_disk_is_not_retried():
    assert isinstance(to_dagster(errors.SourceTransient("truncated"), retry=False), dg.Failure)


@pytest.mark.parametrize(
    "kind", [errors.SourceAbsent, errors.SourceRejected, errors.SourceBlocked, errors.SchemaDrift]
)
def test_a_permanent_error_stops_at_once_with_a_remedy(kind):
    with pytest.raises(dg.Failure) as caught, translate_errors():
        raise kind("the file, line 3")
    assert caught.value.allow_retries is False
    assert "the file, line 3" in caught.value.description
    assert caught.value.metadata["remedy"].value
    assert isinstance(caught.value.__cause__, kind)


def test_errors_that_are_not_ours_are_left_alone():
    with pytest.raises(ZeroDivisionError), translate_errors():
        1 / 0  # noqa: B018 -- raises


def test_dagster_runs_a_permanently_failing_asset_exactly_once():
    tries = []

    @dg.asset(retry_policy=dg.RetryPolicy(max_retries=5))
    def broken():
        tries.append(1)
        with translate_errors():
            raise errors.SourceRejected("405")

    assert not dg.materialize([broken], raise_on_error=False).success
    assert len(tries) == 1
