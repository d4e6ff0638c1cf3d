"""The configurations that result rows were made with, kept next to the rows.

What belongs here: ``results/configs/<hash>.json``, its writer and its reader, what rows of several
seeds share. What does not: the settings themselves (``config``), result rows
(``evaluation.result_rows``).

A row names its configuration by hash alone. With the file, whoever has the results folder and not
the run folder can still tell what the row's method was.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compevo_core.config import RunConfig
from compevo_core.data.files import write_text
from compevo_core.errors import DataError

CONFIGS_FOLDER = "configs"


def hash_without_seed(config: RunConfig) -> str:
    """Return what the hashes of a configuration under several seeds have in common."""
    # Under one seed all of them are the same configuration, and hash alike.
    return config.with_overrides({"run.seed": 0}).hash


def write_config(results: Path, config: RunConfig) -> Path:
    """Write a configuration into a results folder, named by the hash that rows carry."""
    path = results / CONFIGS_FOLDER / f"{config.hash}.json"
    return write_text(path, json.dumps(config.to_dict(), indent=1, sort_keys=True) + "\n")


def read_configs(results: Path) -> dict[str, Mapping[str, Any]]:
    """Return the configurations of a results folder by the hash that rows carry.

    Raises:
        DataError: a file is not JSON, or no JSON object.
        ConfigError: a file holds a setting that no version knows.
    """
    # The key is the file's name, not the hash of what is read: a configuration written before a
    # setting was renamed hashes differently today, and rows carry the old hash.
    paths = sorted((results / CONFIGS_FOLDER).glob("*.json"))
    return {path.stem: _read_config(path) for path in paths}


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read as JSON ({error}); restore the file or evaluate the run again"
        ) from error
    if not isinstance(settings, dict):
        raise DataError(
            f"{path}: holds a {type(settings).__name__}, not an object; evaluate the run again"
        )

    return RunConfig.from_mapping(settings).to_dict()
