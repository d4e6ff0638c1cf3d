"""Accounts at publishers, and what is asked for with them.

What belongs here: values that must reach a publisher and nothing else. What does not: where they
come from (``compevo_pipeline.settings``), sending them (a source's own ``live`` module).
"""

from dataclasses import dataclass, field
from typing import AnyStr

PEMS_DISTRICT = 4
"""The San Francisco Bay Area."""

PEMS_FILES = ("station_hour",)
"""Kinds of files that are fetched unless a deployment names others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryKey:
    """A key that a publisher wants in the address; its value is in no text.

    Attributes:
        name: the parameter.
        value: the key.
    """

    name: str
    value: str = field(repr=False)

    def hide(self, text: AnyStr) -> AnyStr:
        """Return a text or bytes in which the key is three asterisks."""
        if isinstance(text, bytes):
            return text.replace(self.value.encode("ascii"), b"***")
        return text.replace(self.value, "***")


@dataclass(frozen=True, slots=True, kw_only=True)
class PemsAccess:
    """A PeMS account; neither name nor password is in its text.

    Attributes:
        user: account name.
        password: its password.
        district: Caltrans district, 3 to 12.
        files: kinds of files, ``station_hour`` and ``station_5min``.
    """

    user: str = field(repr=False)
    password: str = field(repr=False)
    district: int = PEMS_DISTRICT
    files: tuple[str, ...] = PEMS_FILES
