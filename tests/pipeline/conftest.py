"""What every test of the pipeline leaves behind as it found it: the handler of SIGTERM."""

import signal

import pytest

AT_THE_START = signal.getsignal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def sigterm_as_before():
    """Undoes what a run in the tests' own process does to SIGTERM.

    Dagster leaves it with SIGINT's handler after a run. Where the tests were started in the
    background, that is to ignore it, and every process that they start would inherit that.
    """
    yield
    signal.signal(signal.SIGTERM, AT_THE_START)
