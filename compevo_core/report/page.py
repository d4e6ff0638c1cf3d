"""The report: one page with its style, images and charts inside, so that nothing is fetched.

What belongs here: the frame of the page, the note on the kind of data, writing the file. What does
not: sections (``report.sections``), markup (``templates/page.html``).
"""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from compevo_core.data.files import write_text
from compevo_core.report.inputs import ReportInputs
from compevo_core.report.rendering import read_scripts, render
from compevo_core.report.sections import build_sections
from compevo_core.report.theme import DARK_COLOURS
from compevo_core.report.wording import format_moment

# A reader must learn before any number whether the data is real.
BANNERS = {
    "sample": "Sample data. Demand, traffic, bitcoin and news are synthetic, made in the "
    "publishers' formats so that everything runs without a network; exchange rates are real ECB "
    "reference rates. Errors on this page show that the system works, not how well it forecasts "
    "the world.",
    "archive": "Archive data: real files as their publishers or the published benchmarks ship "
    "them.",
    "live": "Live data: fetched from the publishers.",
}
MIXED = (
    " Some rows below come from synthetic data; they are marked under 'Where the numbers come "
    "from'."
)

SCRIPTS_MARK = "<!-- scripts -->"
"""Where the page's template wants its scripts."""


def write_report(inputs: ReportInputs, path: Path) -> Path:
    """Write the page in one step, so that a reader never sees half of it."""
    return write_text(path, render_page(inputs))


def render_page(inputs: ReportInputs) -> str:
    """Return the page as HTML; equal inputs give equal text."""
    # The samples of real exchange rates stand among synthetic series, so sample mode always warns.
    has_synthetic = inputs.is_synthetic or inputs.mode == "sample"
    has_charts = bool(inputs.days) or not inputs.logics.is_empty()
    scripts = read_scripts() if has_charts else ()
    page = render(
        "page.html",
        has_charts=has_charts,
        script_policy=_allow_scripts(scripts),
        dark_colours=DARK_COLOURS,
        banner=_describe_data(inputs),
        banner_class="synthetic" if has_synthetic else "real",
        made=format_moment(inputs.generated_at),
        sections=build_sections(inputs),
    )
    # After the rendering, which would escape them. No text of the data can hold this mark: there
    # its first character is escaped.
    return page.replace(SCRIPTS_MARK, "\n".join(f"<script>{one}</script>" for one in scripts))


def _allow_scripts(scripts: Sequence[str]) -> str:
    """Return the page's policy for scripts: these to the letter, and no other."""
    if not scripts:
        return ""
    hashes = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts)
    return "; script-src " + " ".join(f"'sha256-{one}'" for one in hashes)


def _describe_data(inputs: ReportInputs) -> str:
    text = BANNERS.get(inputs.mode, f"Data mode: {inputs.mode}.")
    return text + MIXED if inputs.is_synthetic and inputs.mode != "sample" else text
