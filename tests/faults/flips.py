"""One flipped bit in a file of a home, and what the next night makes of it.

A night reads the files, cuts the windows and forecasts. A damaged store or cache is made again; a
damaged model, record or chain is an error that says what to do, and the file put back ends it.
"""

import logging
import shutil
from datetime import UTC, datetime, timedelta

import numpy as np

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
DAYS = 100
LOG = logging.getLogger("test")
NOW = datetime(2025, 6, 1, tzinfo=UTC)


def write_table(folder, days):
    """Write hourly values and a column known ahead, as a user's export."""
    rng = np.random.default_rng(7)
    start = datetime(2025, 1, 1)  # noqa: DTZ001 - of a file without offsets
    hours = [start + timedelta(hours=n) for n in range(24 * days)]
    load = [500 + 9 * (at.hour % 12) + rng.normal(0, 3) for at in hours]
    rows = [f"{at},{value:.2f}" for at, value in zip(hours, load, strict=True)]
    (folder / "load.csv").write_text("\n".join(["stamp,load_mw", *rows, ""]))
    warm = [f"{start + timedelta(days=n):%Y-%m-%d},{n % 9}" for n in range(days)]
    (folder / "warm.csv").write_text("\n".join(["day,warm", *warm, ""]))


def pass_night(folder):
    """Read the files, cut the windows and forecast; return the values that are sealed."""
    deployment = Deployment(settings=Settings(home=folder / "home"), clock=lambda: NOW)
    ingest_dataset(deployment, "load", log=LOG)
    write_windows(deployment, cut_windows(deployment, "load"))
    found = forecast_day(deployment, "load", None, None, log=LOG)
    return found.forecast.select_points("load_mw")["forecast"].tolist()


def build_home(folder):
    """Make a home after a first night, with the table of the second one."""
    home, values, warm = folder / "home", folder / "load.csv", folder / "warm.csv"
    write_table(folder, DAYS - 7)
    invoke("init", values, "--zone=UTC", "--covariates", warm, home=home)
    # Copies of the home read their own tables.
    declared = home / "datasets" / "load.toml"
    declared.write_text(declared.read_text().replace(f"{folder}/", "../../"))
    invoke("fit", "load", "--method", "mixture", home=home)
    write_table(folder, DAYS - 1)
    pass_night(folder)
    write_table(folder, DAYS)


def flip(home, folder, kind, rng):
    """Flip a bit in a copy of a home and pass a night; return what is sealed, and any error.

    After an error the file is put back, and the night passed again.
    """
    shutil.copytree(home, folder)
    files = sorted(path for path in folder.glob(f"home/*/{KINDS[kind]}") if path.is_file())
    sizes = np.array([path.stat().st_size for path in files])
    path = files[rng.choice(len(files), p=sizes / sizes.sum())]
    sound = path.read_bytes()
    flip_a_bit(path, rng)

    message = ""
    try:
        values = pass_night(folder)
    except CompEvoError as error:
        message = f"{type(error).__name__}: {error}"
        path.write_bytes(sound)
        values = pass_night(folder)
    shutil.rmtree(folder)
    return values, message
