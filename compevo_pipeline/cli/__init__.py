"""The command line: a module for each command, and the demo."""

import sys

from compevo_core.errors import PackageMissing


def run() -> None:
    """Run ``compevo``; a package that no install brought ends it as one line and exit code 1."""
    try:
        from compevo_pipeline.cli import main

        main.run()
    except ModuleNotFoundError as error:
        sys.exit(f"compevo: {PackageMissing((error.name or str(error)).partition('.')[0])}")
