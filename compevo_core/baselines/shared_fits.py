"""Fits that several users share: each baseline is fitted once for equal windows and seed.

Boosted trees take seconds to minutes; the table of baselines, the leakage check and the priors of
six ablation variants ask for the same trees. What is read back forecasts the same bits.
"""

import contextlib
import logging
from pathlib import Path
from typing import Protocol

from compevo_core.baselines import Baseline, fit_baseline, load_baseline
from compevo_core.baselines.base import BASELINE_FILE
from compevo_core.baselines.blend import Blend
from compevo_core.baselines.gbm import BoostedTrees
from compevo_core.baselines.ridge import CalendarRidge
from compevo_core.baselines.zero_shot import make_folder_name
from compevo_core.data.window import WindowSet

_HASH_CHARACTERS = 16


class FitBaseline(Protocol):
    """Fits a baseline by name: :func:`compevo_core.baselines.fit_baseline` or a shared one."""

    def __call__(self, name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
        """Return the baseline, fitted on train windows."""


class SharedFits:
    """Fits each baseline once for equal windows and seed; call it as ``fit_baseline``.

    Fits are kept in memory, and in ``folder`` for other processes. The folder must be one of this
    version of the code: a fit is known by its windows, not by what fitted it.
    """

    def __init__(self, folder: Path | None = None, log: logging.Logger | None = None) -> None:
        """Keep fits in a folder as well, if one is given; ``log`` gets a line a fit."""
        self._folder = folder
        self._log = log
        self._fitted: dict[str, Baseline] = {}

    def __call__(self, name: str, train: WindowSet, *, seed: int = 0) -> Baseline:
        """Return the baseline, fitted on train windows now or earlier."""
        key = f"{make_folder_name(name)}-seed{seed}-{train.hash[:_HASH_CHARACTERS]}"
        if key not in self._fitted:
            self._fitted[key] = self._find_or_fit(key, name, train, seed)
        return self._fitted[key]

    def _find_or_fit(self, key: str, name: str, train: WindowSet, seed: int) -> Baseline:
        # Its parts are baselines of their own, which others ask for as well.
        if name == Blend.name:
            ridge = self(CalendarRidge.name, train, seed=seed)
            trees = self(BoostedTrees.name, train, seed=seed)
            if isinstance(ridge, CalendarRidge) and isinstance(trees, BoostedTrees):
                return Blend(ridge, trees)

        stored = self._folder / key if self._folder else None
        # A baseline's own file is the last one written: a folder that has it is complete.
        if stored is not None and (stored / BASELINE_FILE).is_file():
            # What was used of late is not cleaned away.
            with contextlib.suppress(PermissionError):
                (stored / BASELINE_FILE).touch()
            return load_baseline(stored)

        if self._log is not None:
            self._log.info(f"fitting {name} on {len(train):,} windows")
        fitted = fit_baseline(name, train, seed=seed)
        if stored is not None:
            fitted.save(stored)
        return fitted
