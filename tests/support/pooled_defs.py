"""A code location of one asset in a pool of one slot, for tests that kill runs."""

import os
import time
from pathlib import Path

import dagster as dg

from compevo_pipeline.config.settings import Settings
from compevo_pipeline.defs.loggers import progress_logger
from compevo_pipeline.defs.resources import Workspace
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.work.deployment import Deployment, utc_now

HOME = Path(os.environ["DAGSTER_HOME"])


@dg.asset(pool="gpu")
def pooled(context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Deployment]) -> None:
    """Write the step's process id, then work for so many seconds."""
    (HOME / "step.pid").write_text(str(os.getpid()))
    time.sleep(float(os.environ.get("WORK_SECONDS", "0")))


settings = Settings(home=HOME / "home", mode=Mode.SAMPLE)
defs = dg.Definitions(
    assets=[pooled],
    jobs=[dg.define_asset_job("full")],
    executor=dg.in_process_executor,
    loggers={"progress": progress_logger},
    resources={"workspace": Workspace(settings=settings, clock=utc_now)},
)
