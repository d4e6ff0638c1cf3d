"""What was made from what: so that what would come out the same is not made again.

What belongs here: one small file for each product, with a hash of all that it was made of. What
does not: what a product is made of (whoever makes it says so). A receipt that is lost or torn costs
the work once more, and nothing else: the folder may be removed at any time.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compevo_core.runtime.files import hash_text, write_json


def hash_parts(parts: Iterable[object]) -> str:
    """Return a hash of what something is made of; the order counts."""
    return hash_text(json.dumps([str(part) for part in parts]))


@dataclass(frozen=True, slots=True)
class Receipts:
    """Receipts in a folder, one file a product."""

    folder: Path

    def find(self, name: str, made_of: str) -> Any | None:  # noqa: ANN401 - as it was kept
        """Return what was kept of a product, or None where it was made of something else."""
        try:
            receipt = json.loads(self._file(name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return receipt["kept"] if receipt["made_of"] == made_of else None

    def keep(self, name: str, made_of: str, kept: object = True) -> None:
        """Keep what a product was made of, and what its maker wants to find again."""
        write_json(self._file(name), {"made_of": made_of, "kept": kept})

    def _file(self, name: str) -> Path:
        return self.folder / f"{name.replace('/', '__')}.json"
