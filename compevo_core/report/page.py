"""The one static page: sections in a frame, style inlined, nothing fetched.

What belongs here: the frame, the contents list, the banner that says what kind of data this is, writing the file.
What does not: sections and plots.
"""

import html
import os
import tempfile
from importlib import resources
from pathlib import Path
from string import Template

from compevo_core.report.inputs import ReportInputs
from compevo_core.report.sections import Section, all_sections
from compevo_core.report.wording import stamp

BANNERS = {
    "sample": "Sample data. Demand, traffic, bitcoin and news here are synthetic, made in the publishers' formats so "
    "that everything runs without a network; exchange rates are real ECB reference rates. Errors on this page show "
    "that the system works, not how well it forecasts the world.",
    "archive": "Archive data: real files as their publishers or the published benchmarks ship them.",
    "live": "Live data: fetched from the publishers.",
}
MIXED = " Some rows below come from synthetic data; they are marked so under 'Where the numbers come from'."


def write_report(inputs: ReportInputs, path: Path) -> Path:
    """Write the page to ``path`` in one step: a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(render_page(inputs))
    Path(partial).chmod(0o644)
    return Path(partial).replace(path)


def render_page(inputs: ReportInputs) -> str:
    """The whole page as HTML; the same inputs give the same text."""
    sections = all_sections(inputs)
    templates = resources.files("compevo_core.report") / "templates"
    frame = Template((templates / "page.html").read_text(encoding="utf-8"))
    return frame.substitute(
        style=(templates / "report.css").read_text(encoding="utf-8"),
        banner=_banner(inputs),
        made=html.escape(stamp(inputs.generated_at)),
        contents="".join(
            f'<li><a href="#{part.anchor}">{html.escape(part.title)}</a></li>' for part in sections
        ),
        sections="".join(map(_section, sections)),
    )


def _section(part: Section) -> str:
    return f'<section id="{part.anchor}"><h2>{html.escape(part.title)}</h2>{part.body}</section>'


def _banner(inputs: ReportInputs) -> str:
    text = BANNERS.get(inputs.mode, f"Data mode: {inputs.mode}.")
    if inputs.synthetic and inputs.mode != "sample":
        text += MIXED
    kind = "synthetic" if inputs.synthetic or inputs.mode == "sample" else "real"
    return f'<p class="banner {kind}" role="note">{html.escape(text)}</p>'
