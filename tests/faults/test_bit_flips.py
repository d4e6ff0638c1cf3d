"""One flipped bit in a file of a home: no night seals other values, and none is stopped for good.

A night reads the files, cuts the windows and forecasts. A damaged store or cache is made again; a
damaged model, record or chain is an error that says what to do, and the file put back ends it.
"""

import logging
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from compevo_core.errors import CompEvoError
from compevo_pipeline.config.settings import Settings
from compevo_pipeline.work.deployment import Deployment
from compevo_pipeline.work.ingest import ingest_dataset
from compevo_pipeline.work.next_day import forecast_day
from compevo_pipeline.work.stored_windows import cut_windows, write_windows
from tests.support.commands import invoke
from tests.support.window_samples import flip_a_bit

KINDS = {
    "state": "runs/*/daily/**/*",
    "series": "series/**/*",
    "tables": "tables/**/*",
    "windows": "windows/**/*",
    "receipts": "receipts/**/*",
    "raw": "raw/**/*",
    "chain": "forecasts/issued/*/chain.jsonl",
    "record": "forecasts/issued/*/*/*/*",
    "model": "runs/*/model/*",
}
SEALED = frozenset({"chain", "record", "model"})  # what no file brings again
FLIPS = 6
DAYS = 100
LOG = logging.getLogger("test")
NOW = datetime(2025, 6, 1, tzinfo=UTC)


def write_table(folder, days):
    rng = np.random.default_rng(7)
    start = datetime(2025, 1, 1)  # noqa: DTZ001 - of a file without offsets
    hours = [start + timedelta(hours=n) for n in range(24 * days)]
    load = [500 + 9 * (at.hour % 12) + rng.normal(0, 3) for at in hours]
    rows = [f"{at},{value:.2f}" for at, value in zip(hours, load, strict=True)]
    (folder / "load.csv").write_text("\n".join(["stamp,load_mw", *rows, ""]))
    warm = [f"{start + timedelta(days=n):%Y-%m-%d},{n % 9}" for n in range(days)]
    (folder / "warm.csv").write_text("\n".join(["day,warm", *warm, ""]))


def pass_night(folder):
    settings = Settings(home=folder / "home", datasets=folder)
    deployment = Deployment(settings=settings, clock=lambda: NOW)
    ingest_dataset(deployment, "load", log=LOG)
    write_windows(deployment, cut_windows(deployment, "load"))
    found = forecast_day(deployment, "load", None, None, log=LOG)
    return found.forecast.select_points("load_mw")["forecast"].tolist()


@pytest.fixture(scope="module")
def night(tmp_path_factory):
    """A home after a first night, the table of the second one, and what that one forecasts."""
    folder = tmp_path_factory.mktemp("night")
    write_table(folder, DAYS - 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPEVO_HOME", str(folder / "home"))
        patch.setenv("COMPEVO_DATASETS", str(folder))
        patch.delenv("DAGSTER_HOME", raising=False)
        invoke("init", folder / "load.csv", "--zone=UTC", "--covariates", folder / "warm.csv")
        invoke("fit", "load", "--method", "mixture")
    write_table(folder, DAYS - 1)
    pass_night(folder)
    write_table(folder, DAYS)
    second = shutil.copytree(folder, tmp_path_factory.mktemp("second") / "home")
    return folder, pass_night(second)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_seals_no_other_values(night, kind, tmp_path):
    home, expected = night
    rng = np.random.default_rng(sorted(KINDS).index(kind))
    for flip in range(FLIPS):
        folder = shutil.copytree(home, tmp_path / str(flip))
        files = sorted(path for path in folder.glob(f"home/*/{KINDS[kind]}") if path.is_file())
        sizes = np.array([path.stat().st_size for path in files])
        path = files[rng.choice(len(files), p=sizes / sizes.sum())]
        sound = path.read_bytes()
        flip_a_bit(path, rng)
        where = f"{path.relative_to(folder)}, flip {flip}"

        try:
            values = pass_night(folder)
        except CompEvoError as error:
            assert kind in SEALED, (where, error)
            path.write_bytes(sound)
            values = pass_night(folder)
        assert values == expected, where
        shutil.rmtree(folder)
