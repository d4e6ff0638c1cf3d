"""What tests of the pipeline share: one materialised home, and the handler of SIGTERM."""

import functools
import logging
import signal

import dagster as dg
import pytest
from alembic.script import ScriptDirectory
from alembic.util import coerce_resource_to_filename

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


@pytest.fixture(scope="session", autouse=True)
def migrations_are_read_once():
    """Every instance of Dagster reads 89 files of its database's history, always the same ones."""
    read = functools.cache(ScriptDirectory)

    def read_once(config):
        return read(coerce_resource_to_filename(config.get_main_option("script_location")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", read_once)
        yield


@pytest.fixture(scope="session")
def unmade(tmp_path_factory):
    """A deployment in sample mode, of which nothing is materialized."""
    return deploy(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def defs(unmade):
    return unmade.defs


@pytest.fixture(scope="session")
def research(unmade):
    return unmade.research


@pytest.fixture(scope="session")
def both(defs, research):
    """The assets of both code locations, as the UI shows them."""
    assets, checks = [*defs.assets, *research.assets], defs.asset_checks
    return dg.Definitions(assets, asset_checks=checks, resources=defs.resources)


@pytest.fixture(scope="session")
def graph(both):
    return both.resolve_asset_graph()


@pytest.fixture(scope="session")
def sample_home(tmp_path_factory):
    """Sample data of traffic and news with their windows; a test that writes copies it."""
    home = deploy(tmp_path_factory.mktemp("sample_home"))
    assets = dg.AssetSelection.assets("series/traffic", "news/articles", "windows/traffic")
    job = dg.define_asset_job("made", assets.without_checks(), executor_def=dg.in_process_executor)
    defs = dg.Definitions.merge(home.defs, dg.Definitions(jobs=[job]))
    defs.resolve_job_def("made").execute_in_process(instance=home.instance)
    return home


@pytest.fixture(autouse=True)
def quiet_log():
    """The command line sets the root logger up; other tests see it as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
