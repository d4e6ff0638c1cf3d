"""Arguments that several commands share, and reading them.

What belongs here: annotated argument types, ``--set`` and the choice of windows. What does not:
what a command does. Functions import heavy modules, so that ``compevo --help`` answers at once.
"""

import inspect
import logging
import re
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand
from typer.models import ArgumentInfo

from compevo_core.errors import ConfigError

if TYPE_CHECKING:
    from compevo_core.config.run import RunConfig
    from compevo_pipeline.work.deployment import Deployment

# Named by what they are: a command's signature reads like its help.
Every = Annotated[int, typer.Option(min=1, help="Score every n-th origin.")]
PRESETS = (
    "paper, paper-small, full, default, own-news, specialists, operational, operational-agents, "
    "evidence, tiny, demo, or a path to a .toml file"
)
OptionalPreset = Annotated[
    str | None, typer.Option(help=f"Of the method compevo: {PRESETS} (default: default).")
]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Change one setting: population.agents=3, or "
        "'population.members=[{prior = \"gbm\"}, {seed = 1}]'.",
    ),
]
OptionalResults = Annotated[
    Path | None, typer.Option(help="Results folder (default: the one in the deployment).")
]
Restart = Annotated[bool, typer.Option("--restart", help="Start over instead of resuming.")]
Split = Annotated[str, typer.Option(help="Split to use: val, test or inference.")]
BaselineSeeds = Annotated[
    int, typer.Option(min=1, help="Number of seeds for baselines that use random numbers.")
]
Subset = Annotated[str, typer.Option(help="Named subset to use instead of the whole split.")]


class DocumentedCommand(TyperCommand):
    """A command whose arguments keep their help text, and whose paragraphs fill the terminal.

    click 8.5 clears the text that typer 0.25 sets; an older click does not fit check-jsonschema.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(*args, **options)
        # typer would keep the line breaks of the source in all paragraphs but the first.
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(self.help or ""))
        hints = get_type_hints(self.callback, include_extras=True)

        for parameter in self.params:
            for note in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(note, ArgumentInfo):
                    parameter.help = note.help


def parse_changes(changes: Sequence[str]) -> dict[str, Any]:
    """Return the settings that ``--set`` changes, by dotted name.

    ``population.agents=3`` becomes ``{"population.agents": 3}``. A value is read as TOML; what is
    not TOML is text, so that names need no quotes.
    """
    parsed: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not name:
            raise ConfigError(
                f"--set {change!r} is not section.setting=value, for example population.agents=3"
            )

        try:
            parsed[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError as error:
            # A value that begins like a list or table is meant as one: as text it would be refused
            # later, with a message about its type.
            if text.startswith(("[", "{")):
                raise ConfigError(
                    f"--set {name}: {text} is not TOML ({error}); put texts in double quotes and "
                    "the whole change in single ones: "
                    "'population.members=[{prior = \"gbm\"}, {}]'"
                ) from error
            parsed[name] = text
    return parsed


def resolve_config(preset: str, changes: Sequence[str] | None) -> "RunConfig":
    """Return a preset with the settings that ``--set`` changes.

    Commands ask before anything is loaded: a misspelt setting ends at once.
    """
    from compevo_core.config.run import RunConfig

    return RunConfig.preset(preset).with_overrides(parse_changes(changes or []))


def show_progress(text: str, *, err: bool = False) -> None:
    """Show how far a command is: on one rewritten line of a terminal, otherwise line by line.

    An empty text ends the line. With ``err`` standard output is kept for the command's result.
    """
    stream = sys.stderr if err else sys.stdout
    if not stream.isatty():
        typer.echo(text, nl=bool(text), err=err)
    else:
        typer.echo(f"\r\x1b[2K{text}", nl=False, err=err)


def show_counts(counts: Mapping[str, Mapping[str, int]]) -> None:
    """Print the counts of each feed that gave something, one line per feed."""
    for feed, kinds in counts.items():
        found = [f"{count:,} {what}" for what, count in kinds.items() if count]
        typer.echo(f"{feed}: {', '.join(found)}")


def show_steps(text: str) -> None:
    """Show progress on standard error if that is a terminal."""
    if sys.stderr.isatty():
        show_progress(text, err=True)


class ProgressLines(logging.Handler):
    """Shows what is logged as progress, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show a line in place of the previous one."""
        show_progress(record.getMessage(), err=True)


def log_progress(log: logging.Logger) -> Callable[[str], None]:
    """Show the lines of a logger as progress, and return what writes one."""
    if not any(isinstance(handler, ProgressLines) for handler in log.handlers):
        log.addHandler(ProgressLines())
    log.setLevel(logging.INFO)
    log.propagate = False
    return log.info


def open_deployment() -> "Deployment":
    """Return the deployment that the environment describes."""
    from compevo_pipeline.config.settings import Settings
    from compevo_pipeline.work.deployment import Deployment

    return Deployment(settings=Settings.from_environment())
