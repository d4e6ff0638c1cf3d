"""The control as a sentence, a table and a picture."""

from compevo_core.paper.planted_news import CONTROL_SCHEMA
from compevo_core.report.evidence_tables import (
    NO_ROWS,
    control_table,
    format_control,
    format_text,
    judge_control,
    judge_text,
    list_texts,
    search_table,
    show_control,
    summarize_evidence,
    text_table,
)

SLOPES = {"seed-logics": 0.1, "evolved": 0.5, "oracle-logics": 0.6, "swapped-news": 0.0}


def _make_rows():
    rows = []
    for effect in (0.0, 2.0):
        for seed in (0, 1):
            for arm, slope in {"prior": 0.0, **SLOPES}.items():
                found = {
                    "recovered": slope + 0.1,
                    "recovered_low": slope,
                    "recovered_high": slope + 0.2,
                    "slope": slope + 0.2 * seed,
                }
                rows.append(
                    dict.fromkeys(CONTROL_SCHEMA)
                    | {"dataset": "electricity", "world": "plain", "effect": effect}
                    | {"seed": seed, "arm": arm}
                    | {"mae": 100.0 - 10 * seed, "unit": "MW", "precision": 0.75, "recall": 0.5}
                    | (found if effect else {})
                )
    return rows


ROUNDS = [
    {"dataset": "electricity", "world": "plain", "effect": 2.0, "seed": seed}
    | {"arm": "evolved", "rewriting": number}
    | {"precision": number / 2, "recall": number / 4, "news_gain": None}
    for seed in (0, 1)
    for number in (0, 1, 2)
]


def test_the_verdict_compares_means_over_seeds_with_the_right_logics_and_the_seeds():
    assert judge_control(_make_rows()) == (
        "At effect 2 the evolved logics hold 0.60 of it, where logics that name the acting topics "
        "hold 0.70 and seed logics 0.20; 75.0 % of the topics that they name act."
    )


def test_the_table_has_a_line_for_each_effect_and_arm_and_no_share_of_nothing():
    table = control_table(_make_rows())
    cells = {(row[0], row[1]): row for row in table.rows}
    assert len(cells) == 2 * 5
    line = cells["2", "evolved logics"]
    shares = ["60.0 % (50.0 % to 70.0 %)", "0.60 ± 0.14", "75.0 %", "50.0 %"]
    assert list(line[2:]) == ["2", "95.00", *shares]
    assert list(cells["0", "evolved logics"][4:6]) == ["n/a", "n/a"]
    assert list(cells["2", "calendar ridge alone"][4:]) == ["n/a"] * 4


def test_the_picture_has_a_line_for_each_arm_with_rows_and_each_share():
    dose, named = show_control(_make_rows(), ROUNDS).plots
    lines = {line.get_label(): list(line.get_ydata()) for line in dose.draw().lines}
    assert lines["evolved logics"] == [0.6]
    assert "all articles, no choice" not in lines
    shares = {line.get_label(): list(line.get_ydata()) for line in named.draw().lines}
    assert shares == {"precision, effect 2": [0.0, 0.5, 1.0], "recall, effect 2": [0.0, 0.25, 0.5]}


def test_ways_to_write_logics_are_compared_by_seed_with_flat_draws_and_parts_with_the_whole():
    slopes = {("flat", 0): 0.2, ("flat", 1): 0.4, ("policy", 0): 0.3, ("policy", 1): 0.7}
    slopes |= {("no-grpo", 0): 0.2, ("no-grpo", 1): 0.6, ("crossed", 0): 0.5, ("crossed", 1): 0.7}
    found = {"effect": 2.0, "mae": 100.0, "unit": "MW", "precision": 0.5, "recall": 0.5}
    rows = [
        dict.fromkeys(CONTROL_SCHEMA)
        | {"dataset": "electricity", "world": "many-topics", "seed": seed, "arm": arm}
        | {**found, "slope": slope}
        for (arm, seed), slope in slopes.items()
    ]
    flat, crossed, policy, no_grpo = search_table(rows).rows
    assert tuple(flat[5:8]) == ("0.30 ± 0.14", "n/a", "n/a")
    assert tuple(policy[5:8]) == ("0.50 ± 0.28", "+0.20 ± 1.27", "n/a")
    assert tuple(crossed[6:8]) == ("+0.30 ± 0.00", "n/a")
    assert tuple(no_grpo[6:8]) == ("+0.10 ± 1.27", "-0.10 ± 0.00")


def test_documents_get_verdict_table_and_pictures_or_the_command():
    text = format_control(_make_rows(), ROUNDS)
    assert text.count("data:image/svg+xml") == 2 and "| evolved logics |" in text
    assert format_control([], []) == NO_ROWS


def _make_text_row(arm, mae, seed=None, **changes):
    low, high = mae - 2.2, mae - 1.8
    return {
        "dataset": "captions",
        "split": "test",
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


TEXT_ROWS = [
    _make_text_row("prior", 2.0),
    _make_text_row("ridge", 1.6),
    _make_text_row("ridge-swapped", 2.2),
    *(
        _make_text_row(arm, mae + 0.1 * seed, seed)
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


def test_a_line_an_arm_gives_means_over_seeds_and_shares_of_the_ridge():
    table = text_table(TEXT_ROWS)
    lines = {row[0]: row for row in table.rows}
    assert tuple(lines["evolved logics"][1:5]) == ("yes", "2", "1.75", "-12.5 % ± 3.5")
    assert lines["calendar ridge alone"][4] == "n/a"
    assert "-0.6 to -0.2" in lines["ridge by part of the day and number"][5]


def test_the_verdict_names_the_best_of_the_logics_by_hand():
    verdict = judge_text(TEXT_ROWS)
    for share in ("-20.0 %", "+10.0 %", "-12.5 %", "-22.5 %", "-7.5 %"):
        assert share in verdict
    assert "-22.5 %" not in judge_text(TEXT_ROWS[:3])


def test_the_section_is_found_in_two_sentences_however_many_tables_it_has():
    other = [row | {"world": "home"} for row in _make_rows() if row["arm"] != "oracle-logics"]
    chance = [row | {"interval_high": 0.1} for row in TEXT_ROWS]
    found = summarize_evidence([_make_rows(), other], [TEXT_ROWS, chance, TEXT_ROWS[:1]])
    assert "85.7 % to 85.7 % of what logics that name the planted effect" in found
    assert "in 1 world(s)" in found and "in 1 of 2 sets of worded data" in found
    assert summarize_evidence([], []) == "No world and no words have all arms yet."


def test_every_data_set_has_its_table_and_foresight_stands_above_it():
    other = [row | {"dataset": "other", "foresight": False} for row in TEXT_ROWS[:3]]
    assert [len(rows) for rows in list_texts([*TEXT_ROWS, *other])] == [len(TEXT_ROWS), 3]
    first, second = format_text([*TEXT_ROWS, *other]).split("**Other")
    assert "foresight:" in first and "foresight:" not in second
    assert "compevo experiment text" in format_text([])
