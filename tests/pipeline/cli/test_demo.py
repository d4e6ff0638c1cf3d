"""The whole demo, as `make demo` runs it: it ends by showing what a population is for."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LEAST_GAIN_MW = 25.0


@pytest.mark.slow
def test_the_demo_beats_the_best_numeric_method(tmp_path):
    shutil.copy(REPOSITORY / "dagster_home" / "dagster.yaml", tmp_path)
    folders = {"DAGSTER_HOME": str(tmp_path), "COMPEVO_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "compevo_pipeline.cli.main", "demo"]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "COMPEVO_MODE": "sample"}
    shown = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | folders | offline, capture_output=True, text=True
    )
    assert shown.returncode == 0, shown.stderr[-2000:]
    said = " ".join(shown.stdout.split())
    assert "all of it" in said
    assert said.endswith("Dagster UI: make ui Commands: source .venv/bin/activate; compevo --help")

    results = tmp_path / "home" / "sample" / "results"
    paired = pl.read_csv(results / "paired-electricity.csv")
    paired = paired.filter(dataset="electricity", subset="aemo-2021", method_a="compevo")
    numeric = paired.filter(~pl.col("method_b").str.starts_with("compevo"))
    assert numeric["mean_difference"].max() < -LEAST_GAIN_MW  # against the best of them
    assert numeric["interval_high"].max() < 0
    assert set(numeric["n"]) == {150}
    # The paper's own way of writing logics is run as well.
    ablation = pl.read_csv(results / "ablation-electricity.csv")
    assert "paper-method" in set(ablation["method"])

    # The last screen and the report's first sentence name the same difference.
    difference = re.search(r"All test days: .*?\(difference (-\d+\.\d)", said)[1]
    assert float(difference) < -LEAST_GAIN_MW
    report = (results.parent / "report" / "research.html").read_text("utf-8")
    summary = re.sub(r"<[^>]+>", " ", report[report.index('id="summary"') :])
    first = " ".join(summary.split())[:400]
    assert "better than" in first
    assert f"difference {difference}" in first
