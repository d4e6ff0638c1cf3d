"""Chat endpoints and servers as seen from the core: functions, and how a setting names one.

What belongs here: these names and reading an answer, which need no heavy library. What does not:
HTTP, retries and keys (the pipeline's transports), the questions (``agents.remote_writers``,
``paper.lud_judges``).
"""

from collections.abc import Callable, Mapping
from typing import Any

from compevo_core.errors import CompEvoError

ENDPOINT = "endpoint:"
"""What ``evolution.selector`` begins with where it names a model behind an endpoint."""

Transport = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends the JSON body of a chat completion and returns the JSON answer."""

SERVER = "server:"
"""What ``evolution.writer`` begins with where it names the backbone at a server."""

Server = Callable[[str, Mapping[str, Any] | None], Mapping[str, Any]]
"""Sends a JSON body to a route of a server, or nothing, and returns the JSON answer.

It is empty where the server answers in words. SourceRejected if the server refuses."""


def read_content(answer: Mapping[str, Any], name: str, failure: type[CompEvoError]) -> object:
    """Return the content of an answer's first message; null where the model refused.

    The given kind of error, which names the endpoint, is raised if the answer has another form.
    """
    try:
        return answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise failure(
            f"{name}: no choices[0].message.content in {str(answer)[:200]!r}; is this an "
            "OpenAI-compatible endpoint?"
        ) from error
