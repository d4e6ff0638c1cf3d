"""A code location of one asset in a pool of one slot, for tests that kill runs."""

import os
import time
from pathlib import Path

import dagster as dg

from compevo_pipeline.launchers.executor import watch_dead_runs
from compevo_pipeline.resources import Workspace
from compevo_pipeline.settings import Settings
from compevo_pipeline.sources.common.base import Mode

HOME = Path(os.environ["DAGSTER_HOME"])


@dg.asset(pool="gpu")
def pooled(context: dg.AssetExecutionContext, workspace: Workspace) -> None:
    """Write the step's process id, then work for so many seconds."""
    (HOME / "step.pid").write_text(str(os.getpid()))
    time.sleep(float(os.environ.get("WORK_SECONDS", "0")))


settings = Settings(home=HOME / "home", mode=Mode.SAMPLE)
everything = dg.define_asset_job(
    "everything", executor_def=watch_dead_runs(dg.multiprocess_executor)
)
defs = dg.Definitions(
    assets=[pooled],
    jobs=[everything],
    executor=watch_dead_runs(dg.multiprocess_executor),
    resources={"workspace": Workspace(settings=settings)},
)
