"""What had to change since the golden files were written, and why.

Change nothing here to make a test pass: a difference that has no reason is a fault in the code.
The golden files themselves stay as they are.
"""

from tests.golden.compare import ABSENT, Change

_OPEN_ENDED = "the inference span grows with the data; windows and their hash are what they were"
_DAY_LESS = "the made-up series ends a day earlier, with the last window that it had"
_QUANTILES = "rows say how good quantiles are; so few past windows give none"

CHANGED: dict[str, Change] = {
    **{
        f"evaluated/rows/*/{name}": Change(ABSENT, None, _QUANTILES)
        for name in ("pinball_*", "wql", "coverage_*", "width_*", "below_*")
    },
    "windows/built/manifest/spec/spans/4/last_day": Change("2026-03-30", "2099-12-31", _OPEN_ENDED),
    "windows/built/manifest/spec_hash": Change(
        "194db70dad49ec5e55b188445ee336fcfb55a6ca3e95dffb3cbe2ede30db6176",
        "1eeaee2725d00aca3c3aaf1981439607ea9b02cbdc852d6b473ba0faeaeae6c8",
        _OPEN_ENDED,
    ),
    "windows/built/manifest/dropped_origins/outside the split plan or in an embargo": Change(
        3, 2, _DAY_LESS
    ),
    "windows/built/manifest/series/AEMO/OPERATIONAL_DEMAND/NSW1/rows": Change(
        2016, 1968, _DAY_LESS
    ),
}
"""Values that are meant to differ, by path.

A path is the file's name and the keys below it, joined by "/"; ``*`` stands for anything. An entry
names the old value, the new one and the reason; ``ABSENT`` stands for a value that is not there:

    "run_head/metrics/config_hash": Change("436472635df6a050", "0123456789abcdef", "renamed keys")

An entry must hold for every value that its path matches, and must match at least one. Give the hash
itself for a hash over floats, and the whole list for a list of numbers.
"""

RENAMED_KEYS: dict[str, str] = {}
"""New names of keys in configurations, records and manifests, by old name.

The old name alone renames the key wherever it stands; a path, as above, only there:

    "*/config/run/rounds": "training_rounds"
"""
