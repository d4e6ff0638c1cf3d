"""A small part of the fuzzing campaign: parsers read or refuse what is damaged, none crashes."""

import pytest

from benchmarks.rows import read_rows
from tests.fuzz.answers import ANSWERS, check_answers
from tests.fuzz.run import RESULTS, fuzz
from tests.fuzz.seeds import make_seeds

CASES = 40
FIRST = 1_000_000
"""Beyond the cases of the campaign, so that the suite looks at others."""


@pytest.mark.parametrize("name", make_seeds())
def test_a_damaged_file_is_read_or_refused_by_name(name):
    seed = make_seeds()[name]
    seed.parse(seed.raw)  # undamaged, it is read: else nothing would be tested
    outcome = fuzz(name, range(FIRST, FIRST + CASES))
    assert outcome.crashes == []


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_was_made_up_has_its_class(name):
    check_answers(name, 100)


def test_the_committed_campaign_covers_every_parser_without_a_crash():
    rows = {row["parser"]: row for row in read_rows(RESULTS)}
    assert set(rows) == {*make_seeds(), *ANSWERS}
    assert {row["crashes"] for row in rows.values()} == {"0"}
    assert min(int(row["cases"]) for row in rows.values()) >= 10_000
