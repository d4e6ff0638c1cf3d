"""Stands in for the training process: speaks Pipes, writes rounds, and ends as its job says.

The job's ``news`` field is the ending: ``fails``, ``killed``, or anything else for a good one.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from dagster_pipes import open_dagster_pipes

from compevo_core.training.run_folder import RunFolder
from tests.support.round_records import round_record

with open_dagster_pipes() as pipes:
    for path in sys.argv[1:]:
        job = json.loads(Path(path).read_text())
        run = RunFolder(job["out"])
        pipes.log.info(f"working in {run.name}")

        for n in range(3):
            record = round_record(n, seconds=0.1, eta_seconds=2 - n, rewards=[-0.5, -0.25])
            run.append_round(record)
            pipes.report_custom_message([job["out"], record.to_json_line()])
            time.sleep(0.05)

        match job["news"]:
            case "fails":
                sys.exit(3)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)

    pipes.report_asset_materialization(metadata={"rounds": 3})
