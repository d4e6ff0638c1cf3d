"""Commands as a user types them; no test lives here."""

from click.testing import CliRunner
from typer.main import get_command

from compevo_pipeline.cli.main import app

COMMAND = get_command(app)  # Typer's own runner builds it again for every call


def invoke(*words, home=None, mode="sample"):
    """Run ``compevo`` with words; return what it shows, or raise the error that it ends with.

    A ``home`` and its mode are in the environment of this command alone.
    """
    env = {} if home is None else {"COMPEVO_HOME": str(home), "COMPEVO_MODE": mode}
    given = [str(word) for word in words]
    result = CliRunner().invoke(COMMAND, given, env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
