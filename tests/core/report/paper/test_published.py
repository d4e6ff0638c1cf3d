"""The published figures as the paper prints them, and what they say of each other."""

import pytest

from compevo_core.report.paper.published import (
    DATASETS,
    MAIN,
    PARAMETERS,
    find_published,
    implied_level,
    list_contradictions,
    list_subjects,
    read_published,
)


def test_a_figure_is_its_digits_times_its_power_of_ten():
    figure = find_published(MAIN, "exchange", "compevo", "mae")
    assert figure is not None
    assert (figure.printed, figure.spread, figure.value) == ("4.35", "0.08", pytest.approx(0.00435))


def test_the_main_table_has_ten_methods_on_four_data_sets_with_four_metrics():
    assert len(list_subjects(MAIN)) == 10
    figures = [key for key in read_published() if key[0] == MAIN]
    assert len(figures) == 10 * 4 * 4
    assert {key[1] for key in figures} == set(DATASETS)


def test_the_counts_of_weights_are_the_papers():
    counts = {
        name: figure.value
        for name in list_subjects(PARAMETERS)
        if (figure := find_published(PARAMETERS, "all", name, "trainable_parameters"))
    }
    assert counts["mad-rl"] == pytest.approx(1258.4e6)
    # "26.7 % fewer trainable parameters than MAD-RL and 2.20 times as many as MAEL"
    assert 1 - counts["compevo"] / counts["mad-rl"] == pytest.approx(0.267, abs=5e-4)
    assert counts["compevo"] / counts["mael"] == pytest.approx(2.20, abs=5e-3)


def test_a_printed_mse_that_is_no_square_of_its_rmse_is_named():
    assert list_contradictions(MAIN) == [
        "exchange, dlinear: the printed MSE is 0.1 times the square of the printed RMSE."
    ]


def test_what_is_said_of_bitcoins_powers_of_ten_is_so():
    def ratio(dataset: str, method: str) -> float:
        rmse, mae = (find_published(MAIN, dataset, method, metric) for metric in ("rmse", "mae"))
        assert rmse is not None
        assert mae is not None
        return rmse.value / mae.value

    assert all(11 < ratio("bitcoin", method) < 14 for method in list_subjects(MAIN))
    # CompEvo's own, as other methods have contradictions of their own.
    assert all(ratio(dataset, "compevo") < 2.1 for dataset in DATASETS[:3])


def test_mae_over_mape_tells_megawatts_from_scaled_values():
    assert implied_level("electricity") == pytest.approx(3413, abs=1)
    assert implied_level("bitcoin") < 1
