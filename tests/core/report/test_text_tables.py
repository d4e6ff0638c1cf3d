"""The table of worded data."""

from compevo_core.report.text_tables import format_text, judge_text, list_texts, text_table


def _row(arm: str, mae: float, seed: int | None = None, **changes) -> dict:
    low, high = mae - 2.2, mae - 1.8
    return {
        "dataset": "captions",
        "foresight": True,
        "seed": seed,
        "arm": arm,
        "n_windows": 364,
        "mae": mae,
        "difference": mae - 2.0,
        "interval_low": low,
        "interval_high": high,
        "unit": "°C",
    } | changes


ROWS = [
    _row("prior", 2.0),
    _row("ridge", 1.6),
    _row("ridge-swapped", 2.2),
    *(
        _row(arm, mae + 0.1 * seed, seed)
        for seed in (0, 1)
        for arm, mae in (
            ("evolved", 1.7),
            ("swapped-news", 2.1),
            ("hand-temperature", 1.5),
            ("hand-sky", 1.9),
            ("seed-logics", 1.8),
        )
    ),
]


def test_a_line_an_arm_gives_means_over_seeds_and_shares_of_the_ridge() -> None:
    table = text_table(ROWS)
    lines = {row[0]: row for row in table.rows}
    assert tuple(lines["evolved logics"][1:5]) == ("yes", "2", "1.75 ± 0.071", "-12.5 %")
    assert lines["calendar ridge alone"][4] == "n/a"
    assert "-0.6 to -0.2" in lines["ridge by part of the day and number"][5]


def test_the_verdict_names_the_best_of_the_logics_by_hand() -> None:
    verdict = judge_text(ROWS)
    for share in ("-20.0 %", "+10.0 %", "-12.5 %", "-22.5 %", "-7.5 %"):
        assert share in verdict
    assert "-22.5 %" not in judge_text(ROWS[:3])


def test_every_data_set_has_its_table_and_foresight_stands_above_it() -> None:
    other = [row | {"dataset": "other", "foresight": False} for row in ROWS[:3]]
    assert [len(rows) for rows in list_texts([*ROWS, *other])] == [len(ROWS), 3]
    first, second = format_text([*ROWS, *other]).split("**Other")
    assert "foresight:" in first and "foresight:" not in second
    assert "compevo experiment text" in format_text([])
