"""Reading result rows and selecting those of a table."""

import pytest

from compevo_core.errors import DataError
from compevo_core.report.rows import average_over_seeds, keep_latest, read_rows, select_pooled
from tests.support.report_samples import make_frame, make_row, make_rows


def test_rows_survive_writing_and_reading_csv(tmp_path):
    make_rows().write_csv(tmp_path / "main.csv")
    assert read_rows(tmp_path).equals(make_rows())


def test_a_missing_column_is_named_with_its_file(tmp_path):
    make_rows().drop("mase").write_csv(tmp_path / "main.csv")
    with pytest.raises(DataError, match=r"main\.csv.*mase"):
        read_rows(tmp_path)


def test_text_in_place_of_a_number_is_refused_with_the_file(tmp_path):
    text = make_frame(make_row("gbm", 1.0)).write_csv()
    (tmp_path / "main.csv").write_text(text.replace("12.5", "soon"))
    with pytest.raises(DataError, match=r"main\.csv"):
        read_rows(tmp_path)


def test_the_last_row_of_one_identity_is_kept():
    rows = make_frame(make_row("gbm", 1.0), make_row("gbm", 2.0), make_row("gbm", 3.0, seed=1))
    assert keep_latest(rows).get_column("mae").to_list() == [2.0, 3.0]


def test_a_row_without_a_subset_is_of_its_whole_split():
    rows = make_frame(
        make_row("gbm", 1.0, subset=""), make_row("gbm", 2.0, subset=None, split="val")
    )
    assert keep_latest(rows).get_column("subset").to_list() == ["test", "val"]


def test_seeds_of_one_configuration_become_one_row_though_their_hashes_differ():
    rows = make_frame(
        make_row("compevo", 180.0, seed=4, config_hash="b", seedless_hash="s"),
        make_row("compevo", 184.0, seed=7, config_hash="a", seedless_hash="s"),
        make_row("compevo", 199.0, seed=4, config_hash="c", seedless_hash="t"),
    )
    found = average_over_seeds(rows).select("config_hash", "mae", "seeds").rows()
    assert found == [("b", 182.0, 2), ("c", 199.0, 1)]


@pytest.mark.parametrize("unknown", [None, ""])
def test_rows_that_do_not_say_what_their_seeds_share_stand_by_their_own_hash(unknown):
    rows = make_frame(
        make_row("compevo", 180.0, config_hash="a", seedless_hash=unknown),
        make_row("compevo", 184.0, seed=1, config_hash="b", seedless_hash=unknown),
    )
    assert average_over_seeds(rows)["seeds"].to_list() == [1, 1]


def test_pooled_and_ablation_rows_do_not_mix():
    assert "no-grpo" not in select_pooled(make_rows()).get_column("method").to_list()
    ablation = select_pooled(make_rows(), ablation=True)
    assert set(ablation.get_column("experiment")) == {"ablation"}
