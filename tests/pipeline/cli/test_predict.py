"""``compevo predict``: the same forecasts from one process and from several."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError
from tests.support.commands import invoke
from tests.support.population import news_pool, windows

REPO = Path(__file__).resolve().parents[3]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@pytest.fixture
def places(tmp_path, tiny_run):
    """Copy a small run; return the options that name it and what to forecast."""
    inference = windows("inference", 2, first_day=40)
    WindowSet(list(inference), dataset="electricity").write(tmp_path / "windows")
    news_pool().write(tmp_path / "news")
    shutil.copytree(tiny_run, tmp_path / "run")
    named = {name: str(tmp_path / name) for name in ("windows", "news")}
    return [str(tmp_path / "run")] + [
        part for name, path in named.items() for part in (f"--{name}", path)
    ]


@pytest.mark.slow
def test_processes_that_hold_a_backbone_together_forecast_what_one_forecasts(places, tmp_path):
    alone, together = tmp_path / "alone.parquet", tmp_path / "together.parquet"
    invoke("predict", *places, "--out", alone)

    command = ["compevo_pipeline.cli.main", "predict", *places, "--out", str(together)]
    done = subprocess.run(
        [sys.executable, *TORCHRUN, "-m", *command, "--shard-backbone"],
        env=os.environ | {"PYTHONPATH": str(REPO), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("windows, ") == 1, "the first process alone prints"
    forecast, expected = pl.read_parquet(together), pl.read_parquet(alone)
    assert forecast["value"].is_not_null().all()
    assert_frame_equal(forecast, expected, rel_tol=1e-5, abs_tol=1e-4)


def test_one_process_cannot_hold_a_part_of_a_backbone(places, tmp_path):
    out = tmp_path / "forecast.parquet"
    with pytest.raises(ConfigError, match="there is one: start several"):
        invoke("predict", *places, "--out", out, "--shard-backbone")
    assert not out.exists()
