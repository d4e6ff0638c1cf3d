"""Commands as a user types them; no test lives here."""

from typer.testing import CliRunner

from compevo_pipeline.cli.main import app


def invoke(*words):
    """Run ``compevo`` with words; return what it shows, or raise the error that it ends with."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
