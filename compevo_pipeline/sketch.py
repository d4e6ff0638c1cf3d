"""Small line drawings that the UI shows without a click, also of a training that still runs.

What belongs here: lines as a drawing of less text than the UI hides. What does not: plots with axes
(``assets.metadata``).
"""

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from compevo_core.training.round_record import RoundRecord
from compevo_pipeline.markdown import escape_markdown

_SHOWN_AT_ONCE = 1000  # characters of Markdown; the UI hides a longer text behind a click
_SIZE = (240, 60)
_MOST_POINTS = 60
_INKS = (("blue", "#06c"), ("grey", "#999"), ("red", "#c30"))


def render_sketch(lines: Mapping[str, Sequence[float | None]]) -> dg.MetadataValue[Any]:
    """Return up to three lines as a small drawing, which the UI shows without a click.

    Args:
        lines: values at equal steps, by what they are; missing ones are left out.
    """
    known = {
        name: [v for v in values if v is not None and not math.isnan(v)]
        for name, values in lines.items()
    }
    values = [value for line in known.values() for value in line]
    named = ", ".join(
        f"{escape_markdown(name)} ({colour})"
        for name, (colour, _) in zip(known, _INKS, strict=False)
    )
    scale = f"{min(values):.4g} to {max(values):.4g}" if values else "no values yet"

    text = f"{named}; {scale}"
    # The UI hides a longer text behind a click: the drawing takes as many points as fit.
    for points in range(_MOST_POINTS, 1, -1):
        encoded = base64.b64encode(_draw_svg(known, points).encode()).decode("ascii")
        drawn = f"![{named}](data:image/svg+xml;base64,{encoded})\n\n{text}"
        if len(drawn) < _SHOWN_AT_ONCE:
            return dg.MetadataValue.md(drawn)
    return dg.MetadataValue.md(text)


def _draw_svg(lines: Mapping[str, Sequence[float]], points: int) -> str:
    """Return lines as SVG: each thinned to so many points, all on one scale."""
    width, height = _SIZE
    values = [value for line in lines.values() for value in line]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    scale = (height - 4) / ((high - low) or 1.0)

    paths = []
    for (_, colour), line in zip(_INKS, lines.values(), strict=False):
        count = min(points, len(line))
        picked = [line[round(i * (len(line) - 1) / max(1, count - 1))] for i in range(count)]
        corners = [
            f"{round(i * width / max(1, count - 1))},{round(height - 2 - (value - low) * scale)}"
            for i, value in enumerate(picked)
        ]
        paths.append(f'<polyline stroke="{colour}" points="{" ".join(corners)}"/>')

    box = f'viewBox="0 0 {width} {height}" width="360"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} fill="none">{"".join(paths)}</svg>'


def sketch_validation(records: Sequence[RoundRecord]) -> dg.MetadataValue[Any]:
    """Return the scaled validation MAE by round, with that of the prior, as a drawing."""
    return render_sketch(
        {
            "population": [record.val_mae_scaled for record in records],
            "prior": [record.val_prior_mae_scaled for record in records],
        }
    )
