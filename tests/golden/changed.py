"""What had to change since the golden files were written, and why.

Change nothing here to make a test pass: a difference that has no reason is a fault in the code.
The golden files themselves stay as they are.
"""

from tests.golden.compare import ABSENT, Change, Edits

_PAPER_NOTES = (
    "the section of the paper's tables says once that intervals are 95 %; three notes on the "
    "paper's protocol stand under its tables of methods alone, no more under its tables of agents"
)
CHANGED: dict[str, Change | Edits] = {
    "report/runs": Edits(
        (
            (715, (), ("95",)),
            (1031, ("100",), ()),
            (1058, ("48", "13"), ()),
            (1100, ("0.06", "11", "14"), ()),
        ),
        _PAPER_NOTES,
    ),
    "report/invented": Edits(
        (
            (330, (), ("95",)),
            (650, ("100",), ()),
            (696, ("48", "13"), ()),
            (738, ("0.06", "11", "14"), ()),
        ),
        _PAPER_NOTES,
    ),
    "report/invented_table": Edits(
        ((43, ("100", "2021"), ()), (91, ("2026",), ())),
        "a summary follows its table and no longer repeats the table's name",
    ),
    "run_*/rounds/*/news_gains": Change(
        ABSENT,
        [],
        "a record says what the news of the played logics gained",
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
