"""The code gives what it gave when the golden files were written.

The files in ``golden/files`` were made by ``golden/compute.py``. After a rename: correct the
imports at the top of ``golden/compute.py``. Where a value is meant to differ: write the files anew,
see in their difference that nothing else moved, and give the reason in the commit.
"""

import copy

import pytest
import torch

from tests.golden import compute
from tests.golden.compare import FLOAT_BITS, differences

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="the golden numbers are a processor's"),
]
PARTS = sorted(path.stem for path in compute.FILES.glob("*.json") if path.stem != "machine")
TREE = {
    "a": {
        "count": 3,
        "name": "x",
        "values": [8000.0, 1e-3],
        "printed": ["1.25", "7"],
        "bits": {FLOAT_BITS: "ff"},
        "rows": [{"loss": 0.5, "flag": True, "none": None}],
    }
}


@pytest.fixture(scope="module")
def golden():
    return {path.stem: compute.read(path) for path in compute.FILES.glob("*.json")}


@pytest.fixture(scope="module")
def found():
    return compute.plain(compute.compute())


@pytest.fixture(scope="module")
def same_machine(golden):
    return golden["machine"]["float_fingerprint"] == compute.fingerprint()


@pytest.mark.parametrize("part", PARTS)
def test_what_the_code_gives_is_what_was_kept(part, golden, found, same_machine):
    assert set(golden) == set(found)
    one = differences({part: golden[part]}, {part: found[part]}, same_machine=same_machine)
    assert one == [], f"{len(one)} value(s) differ"


def test_hashes_over_floats_were_compared(same_machine):
    if not same_machine:
        pytest.skip("floats or versions are not those of the golden files: hashes not compared")


def altered(path, value):
    tree = copy.deepcopy(TREE)
    inner = tree
    *way, last = path.split("/")
    for key in way:
        inner = inner[int(key) if isinstance(inner, list) else key]
    inner[int(last) if isinstance(inner, list) else last] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a/count", 4),
        ("a/count", "3"),
        ("a/name", "y"),
        ("a/values", [8000.0]),
        ("a/values", [8000.1, 1e-3]),
        ("a/values", [8000.0, 1.1e-3]),
        ("a/printed", ["7", "1.25"]),
        ("a/printed", ["1.26", "7"]),
        ("a/bits", {FLOAT_BITS: "fe"}),
        ("a/rows", []),
        ("a/rows/0/loss", 0.500001),
        ("a/rows/0/loss", None),
        ("a/rows/0/flag", 1),
        ("a/rows/0/new", 1),
    ],
)
def test_a_difference_would_be_found(path, value):
    assert differences(TREE, altered(path, value), same_machine=True)


def test_equal_trees_and_last_bits_agree():
    close = altered("a/values", [8000.0 * (1 + 1e-7), 1e-3])
    assert differences(TREE, close, same_machine=True) == []


def test_other_machines_may_change_hashes_and_digits():
    for path, value in (("a/bits", {FLOAT_BITS: "fe"}), ("a/printed", ["1.26", "7"])):
        assert differences(TREE, altered(path, value), same_machine=False) == []
    for value in (["1.27", "7"], ["1.25", "8"], ["1.25"]):
        assert differences(TREE, altered("a/printed", value), same_machine=False)


def test_only_trained_values_may_drift():
    drifted = altered("a/rows/0/loss", 0.5003)
    for part, is_same, found in (("run_head", False, 0), ("run_head", True, 1), ("a", False, 1)):
        was, now = {part: TREE["a"]}, {part: drifted["a"]}
        assert len(differences(was, now, same_machine=is_same)) == found
    far = altered("a/rows/0/loss", 0.501)

    assert differences({"run_head": TREE}, {"run_head": far}, same_machine=False)
