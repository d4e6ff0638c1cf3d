"""Traces of invented runs for the report's tests."""

from compevo_core.lm.encoder import HashingEncoder
from compevo_core.paper.report.inputs import read_inputs
from compevo_core.paper.run_traces import write_traces
from compevo_core.training.run_folder import RunFolder
from tests.support.report_samples import NOW, make_rounds

RUNS = (("compevo", 0, True), ("compevo", 1, True), ("mad-rl", 0, False))
"""Two seeds of a method that rewrites logics, and one of a method that does not."""


def make_traced_inputs(root):
    """Read the traces of the runs, which are left in ``root``."""
    for method, seed, evolved in RUNS:
        run = RunFolder(root / f"{method}-{seed}")
        run.path.mkdir(parents=True)
        for record in make_rounds(40, evolved=evolved):
            rewards = [reward - 0.01 * seed for reward in record.rewards]
            run.append_round(record.model_copy(update={"rewards": rewards}))
        facts = {"dataset": "electricity", "commit": "c0", "config_hash": "h0"}
        facts |= {"method": method, "budget": "small", "seed": seed}
        write_traces(root / "results", run.path, facts, HashingEncoder())
    return read_inputs(root / "results", [], mode="archive", generated_at=NOW)
