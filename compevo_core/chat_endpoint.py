"""A chat endpoint as seen from the core: a function, and how a setting names one.

What belongs here: these two names, which need no heavy library. What does not: HTTP, retries and
keys (the pipeline's transport), what is asked (``agents.prompt_mutation``, ``lud.judge``).
"""

from collections.abc import Callable, Mapping
from typing import Any

ENDPOINT = "endpoint:"
"""What ``evolution.selector`` begins with where it names a model behind an endpoint."""

Transport = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends the JSON body of a chat completion and returns the JSON answer."""
