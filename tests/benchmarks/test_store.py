"""The benchmark of the news store: steps on a small archive, growth, tables of committed rows."""

import pytest

from benchmarks.rows import RESULTS, read_rows
from benchmarks.store import STEPS, add_exponents, make_articles, measure
from compevo_core.data.news import validate_articles


@pytest.mark.slow
def test_every_step_runs_on_the_earlier_archive(tmp_path):
    for name in STEPS:
        (row,) = measure(f"300/{name}", tmp_path)
        assert (name == "none") != bool(row["seconds"])


def test_made_up_articles_have_ids_of_their_own():
    frame = validate_articles(make_articles(0, 50, 50))
    assert frame["article_id"].n_unique() == 50


def test_the_exponent_compares_processor_seconds_of_neighbouring_sizes():
    sizes = ((10, 1.0, "m"), (100, 10.0, "m"), (1000, 1000.0, "m"), (10_000, 1.0, "other"))
    names = ("articles", "cpu_seconds", "machine")
    rows = [dict(zip(names, size, strict=True)) | {"step": "a"} for size in sizes]
    exponents = [row["exponent"] for row in add_exponents(rows)]
    assert exponents == ["", pytest.approx(1.0), pytest.approx(2.0), ""]


def test_committed_rows_show_linear_growth_and_bounded_memory():
    rows = read_rows(RESULTS / "store.csv")
    for row, again in zip(rows, add_exponents(rows), strict=True):
        assert row["exponent"] == (f"{again['exponent']:.3g}" if again["exponent"] else "")
    largest = {row["step"] for row in rows if row["articles"] == "10000000"}
    assert {"upsert", "fill", "pool", "look-up", "candidates", "block"} <= largest
    for row in rows:
        if row["step"] in ("upsert", "append") and row["exponent"]:
            assert float(row["exponent"]) < 1.3
        assert int(row["peak_memory_mb"]) < 1000
        if row["step"] == "look-up":
            assert float(row["cpu_seconds"]) < 0.02
