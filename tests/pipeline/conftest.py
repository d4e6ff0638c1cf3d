"""What tests of the pipeline share: one materialised home, and the handler of SIGTERM."""

import signal

import pytest

from tests.support.deployment import deploy

AT_THE_START = signal.getsignal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def sigterm_as_before():
    """Undoes what a run in the tests' own process does to SIGTERM.

    Dagster leaves it with SIGINT's handler after a run. Where the tests were started in the
    background, that is to ignore it, and every process that they start would inherit that.
    """
    yield
    signal.signal(signal.SIGTERM, AT_THE_START)


@pytest.fixture(scope="session")
def defs(tmp_path_factory):
    """The definitions of a deployment in sample mode, of which nothing is materialized."""
    return deploy(tmp_path_factory.mktemp("home")).defs


@pytest.fixture(scope="session")
def graph(defs):
    return defs.resolve_asset_graph()


@pytest.fixture(scope="session")
def sample_home(tmp_path_factory):
    """Sample data of exchange rates and news with their windows; a test that writes copies it."""
    home = deploy(tmp_path_factory.mktemp("sample_home"))
    home.materialize("series/exchange", "news/articles", "windows/exchange")
    return home
