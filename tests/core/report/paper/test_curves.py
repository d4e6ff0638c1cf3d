"""Curves of the experiments in the report."""

import pytest

from compevo_core.report.page import render_page
from compevo_core.report.paper.curves import plot_sweep, show_curves
from compevo_core.report.paper.scores import collect_scores
from tests.support.report_samples import make_frame, make_inputs, make_row


def sweep_rows(name="tau", values=("0.1", "0.5", "1")):
    return make_frame(
        *(
            make_row(
                f"{name}={value}",
                200.0 + seed + place,
                seed=seed,
                experiment=f"experiment-{name}",
                config_hash=f"{value}",
            )
            for place, value in enumerate(values)
            for seed in (0, 1)
        ),
        make_row("compevo", 200.0),
    )


def test_a_curve_holds_own_errors_with_their_spread_and_the_papers():
    scores = collect_scores(
        sweep_rows().filter(sweep_rows()["method"] != "compevo"), "electricity", "n2f-test-100"
    )
    axis = plot_sweep("tau", "electricity", dict(sorted(scores.items()))).axes[0]
    own = axis.containers[0]
    assert list(own.lines[0].get_ydata()) == [
        score.mean["rmse"] for _, score in sorted(scores.items())
    ]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.1", "0.5", "1"]
    paper = axis.get_lines()[-1]
    assert list(paper.get_ydata()) == [378.5, 354.18, 372.0]


def test_a_thousandth_of_the_error_looks_like_nothing():
    rows = make_frame(make_row("beta=0", 200.0), make_row("beta=0.9", 200.001))
    scores = collect_scores(rows, "electricity", "n2f-test-100")
    figure = plot_sweep("beta", "electricity", scores)
    low, high = figure.axes[0].get_ylim()
    rmse = scores["beta=0"].mean["rmse"]
    assert (high - low) / rmse == pytest.approx(0.02, rel=1e-3)
    assert low < rmse < high
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["here, one seed"]


def test_an_experiment_with_one_change_has_no_curve_and_others_stand_on_the_page():
    assert show_curves(make_inputs(rows=sweep_rows(values=("0.1",)))) == []
    inputs = make_inputs(rows=sweep_rows("agents", ("1", "2")))
    assert len(show_curves(inputs)) == 1
    assert "number of agents" in render_page(inputs)
