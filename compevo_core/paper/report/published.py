"""The figures that the paper prints, and the checks of them that need none of its data.

A figure is kept as printed, with the power of ten that its table prints next to the metric.
"""

import csv
import functools
import math
from importlib import resources
from typing import NamedTuple

MAIN = "tab:comparison_results"

AGENTS = "tab:simple_avg_results"

PARAMETERS = "tab:baseline_configuration_main"

BACKBONES = "tab:model_generalization_summary"

VARIANTS = "tab:ablation"

EFFICIENCY = "tab:efficiency_comparison_main"

LEAKAGE = "tab:memorization_risk_2026"

LAMBDA_PG = "tab:lambda_sensitivity"

TAU = "tab:tau_impact_data"

JUDGE_FIGURES = "tab:judge_robustness"

GAIN_FIGURES = "tab:lud_error_correlation"

CONTEXT = "context-is-key"  # of the benchmark's own table, not the paper's

DATASETS = ("electricity", "exchange", "traffic", "bitcoin")
"""The paper's data sets, in the order of its tables."""

PAPER_SUBSETS = {"electricity": "paper-original"}
"""The subset with the paper's own test windows, by data set: its figures are printed there."""

ROUNDING = 0.05
"""Share by which a printed MSE may differ from the square of its RMSE: both have three digits."""


class Published(NamedTuple):
    """One printed figure."""

    printed: str  # its digits, as in the table
    spread: str  # printed deviation over runs; empty where there is none
    scale: float  # power of ten that the table prints next to the metric

    @property
    def value(self) -> float:
        """The figure without its power of ten."""
        return float(self.printed) * self.scale

    @property
    def text(self) -> str:
        """The figure in the unit of the series, with its spread."""
        # 35.0e-6 with one digit is 0.000035: more digits would claim what was not printed.
        shift = round(math.log10(self.scale))
        decimals = max(len(self.printed.partition(".")[2]) - shift, 0)
        figures = (self.printed, self.spread)
        return " ± ".join(f"{float(x) * 10.0**shift:,.{decimals}f}" for x in figures if x)


@functools.cache
def read_published() -> dict[tuple[str, str, str, str], Published]:
    """Return every figure by (label of the table, data set, subject, metric)."""
    file = resources.files("compevo_core.paper.report") / "published.csv"
    return {
        (row["label"], row["dataset"], row["subject"], row["metric"]): Published(
            row["value"], row["spread"], float(row["scale"])
        )
        for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    }


def find_published(label: str, dataset: str, subject: str, metric: str) -> Published | None:
    """Return one figure; None if the paper prints none."""
    return read_published().get((label, dataset, subject, metric))


def list_subjects(label: str) -> list[str]:
    """Return the subjects of a table (methods, variants, settings) in its order."""
    return list(dict.fromkeys(key[2] for key in read_published() if key[0] == label))


def list_contradictions(label: str, dataset: str) -> list[str]:
    """Return sentences on figures of a data set in one table that cannot all be right."""
    sentences = []
    for subject in list_subjects(label):
        mse, rmse = (find_published(label, dataset, subject, key) for key in ("mse", "rmse"))
        # Digits must agree to the last; a larger difference is not rounding.
        if mse and rmse and abs((ratio := mse.value / rmse.value**2) - 1) > ROUNDING:
            sentences.append(
                f"{dataset}, {subject}: the printed MSE is {ratio:.2g} times the square of the "
                "printed RMSE."
            )
    return sentences
