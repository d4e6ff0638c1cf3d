"""The measured memory of a split backbone: what the committed table says and how it is made."""

from benchmarks.sharded_backbone import compare


def test_memory_is_compared_without_what_python_had_before():
    one = {"held_gb": 2.0, "baseline_gb": 1.0, "resident_gb": 5.0, "state_norm": 4.0}
    two = {"held_gb": 1.0, "baseline_gb": 1.0, "resident_gb": 3.0, "state_norm": 5.0}
    _, compared = compare([row | {"gradient_norm": 2.0} for row in (one, two)])
    assert compared["held_ratio"] == compared["resident_ratio"] == 0.5
    assert compared["state_difference"] == 0.25 and compared["gradient_difference"] == 0.0
