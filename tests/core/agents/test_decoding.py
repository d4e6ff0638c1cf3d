"""One parser for answers: whatever a model writes gives 48 finite numbers or a typed failure."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compevo_core.agents.decoding import format_answer, has_all_numbers, parse_answer
from compevo_core.errors import ForecastParseError


@given(st.lists(st.floats(-1e6, 1e6), min_size=48, max_size=48))
def test_what_is_formatted_is_read_back(values: list[float]) -> None:
    assert np.allclose(parse_answer(format_answer(values, "MW")), values, atol=5.1e-2)


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("MW", "0.7, 1.0"), ("USD/AUD", "0.66667, 1.00000"), ("fraction", "0.6667, 1.0000")],
)
def test_the_decimals_of_an_answer_are_those_of_its_unit(unit: str, expected: str) -> None:
    assert format_answer([2 / 3, 1.0], unit) == expected


@settings(max_examples=300)
@given(
    st.one_of(
        st.text(max_size=400),
        st.lists(
            st.one_of(
                st.floats().map(str), st.sampled_from(["nan", "1e999", "--", "12.", "1,2", ""])
            ),
            max_size=60,
        ).map(", ".join),
    )
)
@example(", ".join(["1"] * 48))
@example("1e400, " * 48)
@example("٣, " * 48)
def test_any_text_gives_48_finite_numbers_or_a_typed_failure(text: str) -> None:
    try:
        values = parse_answer(text)
    except ForecastParseError:
        return
    assert values.shape == (48,)
    assert np.isfinite(values).all()


@pytest.mark.parametrize(
    "text", ["", "1, 2, 3", ", ".join(["1"] * 49), ", ".join(["x"] * 48), "nan, " * 48]
)
def test_short_long_and_wordy_answers_are_refused(text: str) -> None:
    with pytest.raises(ForecastParseError):
        parse_answer(text)


def test_a_remark_on_the_next_line_is_ignored() -> None:
    assert parse_answer(", ".join(["1.5"] * 48) + "\nThis is my forecast.").tolist() == [1.5] * 48


@pytest.mark.parametrize(
    ("text", "is_over"),
    [
        (" " + "1.5, " * 47, False),
        (" " + "1.5, " * 47 + "1", False),  # may still become 1.5
        (" " + "1.5, " * 47 + "1.5", False),
        (" " + "1.5, " * 47 + "1.5,", True),
        ("1.5\n" * 48, True),
        ("", False),
        (", " * 60, False),
    ],
)
def test_an_answer_is_over_with_the_separator_after_its_last_number(
    text: str, is_over: bool
) -> None:
    assert has_all_numbers(text) is is_over
    if is_over:
        assert parse_answer(text.replace("\n", " ")).shape == (48,)
