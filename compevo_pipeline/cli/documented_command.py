"""A command of typer whose arguments keep their help text.

click 8.5 gave arguments a help text of its own, and its constructor clears the one that typer 0.25
has set just before. Without it neither ``--help`` nor the documentation says what an argument is.
"""

from typing import Any, get_type_hints

from typer.core import TyperCommand
from typer.models import ArgumentInfo


class DocumentedCommand(TyperCommand):
    """Give each argument the help text that its annotation has."""

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - typer's own
        super().__init__(*args, **options)
        hints = get_type_hints(self.callback, include_extras=True)

        for parameter in self.params:
            for note in getattr(hints.get(parameter.name or ""), "__metadata__", ()):
                if isinstance(note, ArgumentInfo):
                    parameter.help = note.help
