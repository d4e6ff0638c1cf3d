"""Stands in for the training process: speaks Pipes, writes rounds, and ends as its job's ``news`` field says."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from dagster_pipes import open_dagster_pipes

with open_dagster_pipes() as pipes:
    for path in sys.argv[1:]:
        job = json.loads(Path(path).read_text())
        pipes.log.info(f"working in {Path(job['out']).name}")
        with (Path(job["out"]) / "rounds.jsonl").open("a") as stream:
            for number in range(3):
                record = {
                    "round": number,
                    "loss": 1.0 / (number + 1),
                    "seconds": 0.1,
                    "eta_seconds": 2 - number,
                }
                stream.write(json.dumps(record | {"rewards": [-0.5, -0.25]}) + "\n")
                stream.flush()
                time.sleep(0.05)
        match job["news"]:
            case "fails":
                sys.exit(3)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
    pipes.report_asset_materialization(metadata={"rounds": 3})
