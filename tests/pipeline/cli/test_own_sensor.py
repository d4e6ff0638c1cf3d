"""A public series that is not ours, as a new user would try it: one PeMS sensor, hour by hour."""

import gzip

import pytest
from typer.testing import CliRunner

from compevo_pipeline.cli.main import app

ROWS = 150 * 24  # from January 2015 on, over the night in which clocks went forward


@pytest.mark.slow
def test_a_sensor_that_keeps_standard_time_is_declared_trained_forecast_and_scored(
    archive_dir, tmp_path
):
    lines = gzip.decompress((archive_dir / "traffic" / "traffic.csv.gz").read_bytes()).splitlines()
    file = tmp_path / "sensor.csv"
    file.write_bytes(b"\n".join(lines[: ROWS + 1]))

    def run(*arguments):
        env = {"COMPEVO_HOME": str(tmp_path / "home"), "COMPEVO_MODE": "sample"}
        return CliRunner().invoke(app, list(arguments), env=env)

    declare = ["init", str(file), "--time", "Date", "--value", "0", "--unit", "share"]
    refused = run(*declare, "--zone", "America/Los_Angeles")
    said = str(refused.exception)
    # The remedy that is named is the one that helps.
    assert "'2015-03-08 02:00:00' does not exist in America/Los_Angeles" in said
    assert "compevo init --zone=-08:00" in said

    declared = run(*declare, "--zone=-08:00")
    assert declared.exit_code == 0, declared.output
    assert "3,600 steps of 1h from 2015-01-01 08:00 to 2015-05-31 07:00 UTC" in declared.output
    assert "Etc/GMT+8" in declared.output

    fitted = run("fit", "sensor", "--preset", "tiny")
    assert fitted.exit_code == 0, fitted.output

    forecast = run("forecast", "sensor")
    assert "sensor, Sunday 31 May 2015, share, times in UTC-8" in forecast.output
    assert "80 % band" in forecast.output and "31 May 15:00" in forecast.output

    scored = run("evaluate", "sensor", "--every", "10", "--seeds", "1")
    assert "windows; MAE and RMSE in share" in scored.output
    assert "compevo" in scored.output and "persistence" in scored.output
