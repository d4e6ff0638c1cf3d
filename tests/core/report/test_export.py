"""Files for public benchmarks: what they hold, and that fev's own leaderboard reads them."""

import polars as pl
import pytest

from compevo_core.errors import DataError
from compevo_core.report.export import FEV, GIFT_EVAL, export_rows
from compevo_core.report.paper.tables import collect_scores, list_tasks, skill_score, win_rate
from tests.support.report_samples import make_frame, make_row, make_rows

GIFT_EVAL_METRICS = (
    *("MSE[mean]", "MSE[0.5]", "MAE[0.5]", "MASE[0.5]", "MAPE[0.5]", "sMAPE[0.5]", "MSIS"),
    *("RMSE[mean]", "NRMSE[mean]", "ND[0.5]", "mean_weighted_sum_quantile_loss"),
)


def test_a_series_and_method_is_one_row_with_the_mean_over_seeds(tmp_path):
    rows = make_frame(
        *(
            make_row("gbm", mae, entity=entity, seed=seed)
            for entity in ("NSW1", "SA1")
            for seed, mae in enumerate((10.0, 14.0))
        ),
        *(make_row("persistence", 24.0, entity=entity) for entity in ("NSW1", "SA1")),
        make_row("gbm", 12.0),
    )
    (path,) = export_rows(rows, FEV, "electricity", tmp_path)
    made = pl.read_csv(path)
    assert made.select("model_name", "dataset_config", "test_error").rows() == [
        ("gbm", "n2f-test-100/NSW1", 12.0),
        ("gbm", "n2f-test-100/SA1", 12.0),
        ("seasonal_naive", "n2f-test-100/NSW1", 24.0),
        ("seasonal_naive", "n2f-test-100/SA1", 24.0),
    ]
    assert made["seasonality"].unique().to_list() == [48]


def test_fevs_leaderboard_reads_the_file_and_finds_our_own_win_rate_and_skill(tmp_path):
    fev = pytest.importorskip(
        "fev", reason="fev asks for an older `datasets` than trl: see the how-to"
    )
    rows = make_rows().filter(pl.col("subset") == "n2f-test-100")
    (path,) = export_rows(rows, FEV, "electricity", tmp_path)
    board = fev.leaderboard(str(path))

    tasks = list_tasks(collect_scores(rows, "electricity", "n2f-test-100"))
    for name in ("compevo", "gbm", "calendar-ridge"):
        assert board.loc[name, "win_rate"] == pytest.approx(win_rate(name, tasks))
        assert board.loc[name, "skill_score"] == pytest.approx(skill_score(name, tasks))


def test_gift_eval_gets_a_folder_a_method_in_its_own_columns(tmp_path):
    paths = export_rows(make_rows(), GIFT_EVAL, "electricity", tmp_path)
    assert tmp_path / "compevo" / "all_results.csv" in paths
    made = pl.read_csv(tmp_path / "compevo" / "all_results.csv")
    metrics = [f"eval_metrics/{metric}" for metric in GIFT_EVAL_METRICS]
    assert made.columns == ["dataset", "model", *metrics, "domain", "num_variates"]
    assert made["dataset"][0] == "electricity-n2f-test-100-NSW1/30T/short"
    # A metric that rows do not hold is empty, not zero.
    assert made["eval_metrics/MSIS"].null_count() == made.height
    row = make_rows().filter((pl.col("method") == "compevo") & (pl.col("entity") == "NSW1"))
    assert made["eval_metrics/ND[0.5]"][0] == pytest.approx(row["wape_pct"][0] / 100)


def test_a_data_set_without_rows_is_refused_with_the_command_that_makes_them(tmp_path):
    with pytest.raises(DataError, match="compevo evaluate traffic"):
        export_rows(make_rows(), FEV, "traffic", tmp_path)
