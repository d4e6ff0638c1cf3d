"""Language models and where they come from: by name, in a Python wheel, behind an endpoint.

What belongs here: the sizes in an architecture's ``config.json``, the folder of an installed wheel,
how a setting names an endpoint or a server, reading an answer. What does not: loading a model
(``lm.backbone``, ``lm.encoder``), HTTP and keys (the pipeline). No import of torch.
"""

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Self

from compevo_core.errors import CompEvoError, ConfigError

SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)

DEFAULT_CACHE = Path.home() / ".cache" / "compevo"

ENDPOINT = "endpoint:"
"""What ``evolution.selector`` begins with where it names a model behind an endpoint."""

Transport = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends the JSON body of a chat completion and returns the JSON answer."""

SERVER = "server:"
"""What ``evolution.writer`` begins with where it names the backbone at a server."""

Server = Callable[[str, Mapping[str, Any] | None], Mapping[str, Any]]
"""Sends a JSON body to a route of a server, or nothing, and returns the JSON answer.

It is empty where the server answers in words. SourceRejected if the server refuses."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The published sizes of a decoder-only language model, named as in its ``config.json``."""

    name: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    tie_word_embeddings: bool

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], *, name: str) -> Self:
        """Build one from a preset or ``config.json``; ConfigError if that is wrong."""
        # Models from before grouped-query attention state no key/value heads: one for each head.
        filled = {"num_key_value_heads": values.get("num_attention_heads"), **values}

        # type() rather than isinstance(): true is an integer in Python.
        bad = [key for key in SIZES if type(filled.get(key)) is not int or filled[key] < 1]
        if bad or not isinstance(filled.get("model_type"), str):
            raise ConfigError(
                f"architecture {name}: {', '.join(bad) or 'model_type'} missing or not a positive "
                "integer; give the model's config.json as published"
            )

        # Some models (Gemma 2) have heads of another width than hidden size over heads.
        head_dim = filled.get("head_dim") or filled["hidden_size"] // filled["num_attention_heads"]
        return cls(
            name=str(filled.get("name", name)),
            model_type=filled["model_type"],
            head_dim=int(head_dim),
            tie_word_embeddings=bool(filled.get("tie_word_embeddings", False)),
            **{key: filled[key] for key in SIZES},
        )

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (in, out) of the seven linear layers of one block."""
        # Fewer key/value heads than query heads: grouped-query attention.
        hidden = self.hidden_size
        inner = self.intermediate_size
        query = self.num_attention_heads * self.head_dim
        key_value = self.num_key_value_heads * self.head_dim

        return {
            "q_proj": (hidden, query),
            "k_proj": (hidden, key_value),
            "v_proj": (hidden, key_value),
            "o_proj": (query, hidden),
            "gate_proj": (hidden, inner),
            "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }

    def adapter_parameters(self, rank: int) -> int:
        """Return the parameters of one LoRA adapter on the seven linear layers of every block."""
        # A is (rank, in) and B is (out, rank), without bias.
        widths = sum(inputs + outputs for inputs, outputs in self.linear_shapes().values())
        return self.num_hidden_layers * rank * widths


def known_architectures() -> list[str]:
    """List the names of the architectures in ``presets/architectures``."""
    return sorted(
        path.name.removesuffix(".json")
        for path in _preset_folder().iterdir()
        if path.name.endswith(".json")
    )


def load_architecture(backbone: str) -> Architecture:
    """Load an architecture: a preset's name in any case, a ``.json`` file, or a model folder.

    ConfigError if nothing is there, or it is not a model's ``config.json``.
    """
    # A name with a suffix or a folder is a path; all else is the name of a preset.
    path = Path(backbone)
    source: Traversable = path / "config.json" if path.is_dir() else path
    if not backbone.endswith(".json") and not path.is_dir():
        source = _preset_folder() / f"{backbone.lower()}.json"
    if not source.is_file():
        raise ConfigError(
            f"no architecture {backbone!r}; known: {', '.join(known_architectures())}; "
            "or give a config.json or a model folder"
        )

    try:
        values = json.loads(source.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{source} is not JSON (line {error.lineno}): give the model's config.json"
        ) from error

    # Every model's file is called config.json: its folder tells which model it is.
    name = path.parent.name if path.name == "config.json" else path.stem
    return Architecture.from_mapping(values, name=name)


def _preset_folder() -> Traversable:
    return resources.files("compevo_core.config") / "presets" / "architectures"


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
