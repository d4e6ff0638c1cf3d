"""Write the reference pages that the code itself knows: ``python docs/generate.py [--check]``.

What belongs here: settings, commands, environment, run folder, round record, result rows, data
contracts and the index of decisions, each read from the code or from the pages. What does not: any
sentence that a person should write. Pages that users look up are committed, and ``--check`` fails
if one is out of date; the others are made when the site is built (``docs/hooks.py``).
"""

import inspect
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

import typer

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from compevo_core import errors  # noqa: E402
from compevo_core.config.run import RunConfig, iterate_settings, list_presets  # noqa: E402

DOCS = REPO / "docs"
SHARED = 3  # commands with the same option, from which on it is described once
NOTE = "<!-- made by `make docs`; change the code, not this page -->"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    for row in rows:
        cells = (" ".join(cell.split()).replace("|", "\\|") for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def settings_page() -> str:
    """Every setting of a run: type, default, bounds, meaning."""
    parts = [
        "# Settings",
        NOTE,
        "All settings of a training run, by section. A preset is a TOML file with these sections; "
        "`--set section.setting=value` changes one. The defaults come from the paper. Presets in "
        f"`compevo_core/config/presets`: {', '.join(f'`{name}`' for name in list_presets())}.",
    ]
    for section, info in RunConfig.model_fields.items():
        kind: Any = info.annotation
        fields = {
            dotted.partition(".")[2]: field
            for dotted, field in iterate_settings()
            if dotted.startswith(f"{section}.")
        }
        parts += [f"## [{section}]", inspect.getdoc(kind) or "", settings_table(fields)]
        for name, field in fields.items():
            if (entry := entry_of(field.annotation)) is not None:
                parts += [
                    f"### An entry of {section}.{name}",
                    f"{inspect.getdoc(entry)} In TOML: `[[{section}.{name}]]`.",
                    settings_table(entry.model_fields),
                ]

    return page(parts)


def settings_table(fields: Mapping[str, Any]) -> str:
    """Describe settings by name: type, default, bounds, meaning."""
    rows = [
        [
            f"`{name}`",
            type_text(field.annotation),
            f"`{list(field.default) if isinstance(field.default, tuple) else field.default!r}`",
            bounds(field),
            (field.description or "").replace("``", "`"),
        ]
        for name, field in fields.items()
    ]
    return table(("setting", "type", "default", "bounds", "meaning"), rows)


def entry_of(annotation: Any) -> Any:
    """Return the settings that every entry of a list has; None for what is not a list of tables."""
    return next((kind for kind in get_args(annotation) if hasattr(kind, "model_fields")), None)


def type_text(annotation: Any) -> str:
    """Name a setting's type, or list its choices."""
    choices = get_args(annotation)
    if entry_of(annotation) is not None:
        return "list of tables"
    if get_origin(annotation) is tuple:
        return f"list of {choices[0].__name__}"
    if get_origin(annotation) is UnionType:
        return " or ".join("none" if kind is NoneType else kind.__name__ for kind in choices)
    return ", ".join(f"`{choice}`" for choice in choices) if choices else annotation.__name__


def bounds(field: Any) -> str:
    """Format the bounds of a setting."""
    found = {type(bound).__name__: bound for bound in field.metadata}
    low = f"≥ {found['Ge'].ge:g}" if "Ge" in found else ""
    low = f"> {found['Gt'].gt:g}" if "Gt" in found else low
    high = f"≤ {found['Le'].le:g}" if "Le" in found else ""
    return ", ".join(text for text in (low, high) if text)


def cli_page() -> str:
    """Every command with its arguments and options."""
    from compevo_pipeline.cli.main import app

    commands = list(list_commands(typer.main.get_command(app)))
    entries = Counter(option_entry(option) for _, command in commands for option in command.params)
    by_name = {entry.split("`")[1]: entry for entry, _ in reversed(entries.most_common())}
    shared = [entry for entry in entries if entries[entry] >= SHARED and entry in by_name.values()]
    parts = [
        "# Command line",
        NOTE,
        "`compevo COMMAND --help` prints the same. The exit code is 0; 1 with one line that "
        "says what is wrong, where, and what to do; or 2 where the words of the command are wrong.",
        "## Options of several commands",
        "\n".join(shared),
    ]
    for name, command in commands:
        parts += [f"## compevo {name}", inspect.cleandoc(command.help or "")]
        listed = [option_entry(option) for option in command.params]
        if own := [entry for entry in listed if entry not in shared]:
            parts.append("\n".join(own))
        if common := [entry.split("`")[1] for entry in listed if entry in shared]:
            parts.append(f"Also: {', '.join(f'`{name}`' for name in common)}.")
    return page(parts)


def list_commands(group: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command with its name; the commands of a group follow it."""
    for name, command in group.commands.items():
        yield name, command
        for words, inner in list_commands(command) if hasattr(command, "commands") else ():
            yield f"{name} {words}", inner


def option_entry(option: Any) -> str:
    """Describe one parameter of a command."""
    is_argument = option.param_type_name == "argument"
    name = option.name.upper() if is_argument else ", ".join(option.opts)
    default = option.default
    if option.required:
        shown = " (required)"
    elif default is None or default == "" or default is False or callable(default):
        shown = ""
    else:
        shown = f" (default: `{default}`)"
    return f"- `{name}`{shown}: {' '.join((getattr(option, 'help', '') or '').split())}"


def environment_page() -> str:
    """Every environment variable, from the one module that reads them."""
    from compevo_pipeline.config.settings import VARIABLES

    rows = [[f"`{name}`", default, meaning] for name, (default, meaning) in VARIABLES.items()]
    return page(
        [
            "# Environment",
            NOTE,
            "Only `compevo_pipeline/config/settings.py` reads the environment.",
            table(("variable", "default", "meaning"), rows),
        ]
    )


def live_sources_page() -> str:
    """What live mode asks whom, what an answer means, and what a failure does."""
    from compevo_pipeline.sources.common import hosts, http

    known = [
        [
            f"`{name}`",
            host.publisher,
            f"{host.pause_s:g}",
            f"{host.throttled_s:g}" if host.throttled_s else "",
        ]
        for name, host in hosts.HOSTS.items()
    ]
    meanings = [(meaning.words, meaning.error) for meaning in http.MEANINGS]
    return page(
        [
            "# Live sources",
            NOTE,
            "Hosts of `COMPEVO_MODE=live`, the meaning of their answers, and the effect of "
            "failures. How to run it: [Fetch from the publishers](../how-to/live-mode.md).",
            "## Hosts",
            "No other host is asked, only over https, and redirects to other hosts are rejected. "
            "All processes of a home keep the pauses together. The last column is the pause after "
            "an answer that asks for fewer requests without stating a time; where it is empty, the "
            "step retries as after other transient failures.",
            table(
                ("host", "publisher", "seconds between requests", "seconds after a throttle"), known
            ),
            "## Answers",
            "The first matching row is used (`compevo_pipeline/sources/common/http.py`).",
            table(("answer", "error"), [[words, error_name(error)] for words, error in meanings]),
            "## Failures without an answer",
            table(
                ("what happened", "error"),
                [[words, error_name(error)] for words, error in FAILURES_WITHOUT_ANSWER],
            ),
            "## What an error does",
            errors_table(error for _, error in [*meanings, *FAILURES_WITHOUT_ANSWER]),
        ]
    )


FAILURES_WITHOUT_ANSWER = (
    (
        "no connection, a reset, a timeout, a body that is cut or takes too long",
        errors.SourceTransient,
    ),
    ("a zip without its end, an archive that does not unpack", errors.SourceTransient),
    ("a certificate that does not match", errors.SourceBlocked),
    ("a redirect to an unknown host, or one too many; a body over its cap", errors.SourceRejected),
    ("bytes that are not the format of the file's name; rejected by a parser", errors.SchemaDrift),
)


def error_name(error: type[errors.SourceError] | None) -> str:
    """Name an error; an answer without one is kept, parsed and stored."""
    return f"`{error.__name__}`" if error else "none: kept, parsed, stored"


def errors_table(kinds: Iterable[type[errors.SourceError] | None]) -> str:
    """Format what each error does to retries, and its remedy."""
    from compevo_pipeline import errors as failures

    rows = []
    for error in dict.fromkeys(kind for kind in kinds if kind):
        policy = failures.get_policy(error(""))
        retries = "none"
        if issubclass(error, errors.SourceAbsent):
            retries = "a file that never changes is requested again after growing pauses"
        if policy.retries:
            retries = (
                f"{failures.SHORT_RETRIES} times in the step, then {policy.retries} times by "
                f"Dagster, from {policy.first_wait_s:.0f} s on"
            )
        rows.append([f"`{error.__name__}`", retries, policy.remedy])
    return table(("error", "retries", "remedy"), rows)


def run_folder_page() -> str:
    """Every file of a run folder."""
    from compevo_core.training.run_folder import RunFolder

    folder = RunFolder("run")
    rows = [
        [f"`{getattr(folder, name).relative_to('run').as_posix()}`", first_sentence(value)]
        for name, value in vars(RunFolder).items()
        if isinstance(value, property) and isinstance(getattr(folder, name), Path)
    ]
    return page(
        [
            "# Run folder",
            NOTE,
            "Training writes one folder per run. `model/` is sealed: its manifest has the hash of "
            "every file, and the hash over those is the artifact hash in the result rows. From "
            "Python, `compevo_core.RunFolder` knows these names.",
            table(("file", "what it holds"), rows),
        ]
    )


def first_sentence(thing: Any) -> str:
    """Return the first line of a docstring without cross-reference markup."""
    text = (inspect.getdoc(thing) or "").split("\n\n")[0]
    return re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", text).replace("``", "`")


def round_record_page() -> str:
    """Every key of a line of rounds.jsonl."""
    from compevo_core.training.round_record import RoundRecord

    schema = RoundRecord.model_json_schema()
    required = set(schema.get("required", ()))
    rows = [
        [f"`{name}`", json_type(field), "" if name in required else "optional", plain(field)]
        for name, field in schema["properties"].items()
    ]
    return page(
        [
            "# Round record",
            NOTE,
            "`rounds.jsonl` holds one JSON object a round. Shapes: A agents, G sampled logics of "
            "an agent, K fixed logics of an agent. Errors and rewards are in scaled units. "
            "`compevo_core.RoundRecord` is its model; `RoundRecord.model_json_schema()` returns "
            "the JSON schema that this table is made from.",
            table(("key", "type", "", "meaning"), rows),
        ]
    )


def plain(field: Mapping[str, Any]) -> str:
    """Return a field's description with Markdown code quotes."""
    return str(field.get("description", "")).replace("``", "`")


def json_type(field: Mapping[str, Any]) -> str:
    """Name the JSON type of a field."""
    if "anyOf" in field:
        return " or ".join(json_type(option) for option in field["anyOf"])
    if field.get("type") == "array":
        return f"array of {json_type(field['items'])}"
    if "additionalProperties" in field:
        return "object"
    return str(field.get("type", "any"))


RESULT_COLUMNS = {
    "experiment": "name of the experiment: `test`, `ablation`, `leakage`, ...",
    "method": "`compevo`, a part of it (`compevo-equal`, `compevo-prior`, `compevo-agent-0`), a "
    "baseline, one with its known errors (`gbm-recalibrated`), or an ablation variant or control",
    "dataset": "data set",
    "split": "split of the windows",
    "subset": "named set of windows that was scored",
    "entity": "region, currency or sensor; `pooled` over all",
    "n_windows": "windows scored",
    "n_points": "observed target values scored",
    "n_masked": "target values left out because they were never observed",
    "seed": "seed of the method",
    "config_hash": "hash of the settings; `results/configs/<hash>.json` holds them",
    "data_hash": "hash of the windows",
    "artifact_hash": "hash of the sealed model",
    "commit": "commit of the code, with `+` where files differed from it",
    "device": "where the forecasts were computed",
    "seconds": "seconds to forecast all windows",
    "backbone": "language model",
    "knowledge_cutoff": "last date the language model may have read about",
    "possibly_memorised": "whether any window starts before that date",
    "leaky": "whether the windows copy a published prompt with news from after the origin",
    "synthetic": "whether the series is made up",
    "parse_failure_rate": "share of unreadable text answers, scored as the prior",
    "mape_skipped": "points left out of MAPE because the truth is below the threshold",
    "mape_threshold": "smallest absolute truth that MAPE counts, in the series' unit",
    "mae": "mean absolute error, in the series' unit",
    "mse": "mean squared error",
    "rmse": "root mean squared error",
    "mape_pct": "mean absolute percentage error",
    "wape_pct": "sum of absolute errors over sum of absolute truths, in percent",
    "mase": "MAE over the naive error on the train split",
    "unit": "unit of the series",
    "news_choice_share": "share of windows with more candidate articles than an agent reads",
    "refit": "whether the model was trained once more on train and validation",
    "seedless_hash": "hash of the settings without their seed, shared by rows of several seeds",
    "train_seconds": "seconds that a fit took; empty where it was not measured",
    "trainable_parameters": "weights that a fit changed; empty where they were not counted",
    "budget": "name of what a fit could spend; empty where that changes nothing",
    "learning_rate": "what a fit used; empty for methods without one",
    "seconds_per_window": "seconds of a forecast: `seconds` over the windows of the subset",
    "peak_memory_gb": "largest resident memory of the process in fit and forecasts, GB; empty "
    "where it was not measured",
    "chosen_round": "round of the agents that validation chose; 0 are untrained agents",
    "blend": "share of their corrections that calibration kept, mean over agents and steps",
    "pinball_10_50_90": "mean pinball loss of the quantiles at 0.1, 0.5 and 0.9, in the series' "
    "unit; this and the columns of quantiles below are empty for methods without them",
    "wql": "weighted quantile loss: twice the pinball losses over the absolute truths, mean over "
    "0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9 and 0.95",
    "coverage_80": "share of truths between the quantiles at 0.1 and 0.9",
    "width_80": "mean distance between them, in the series' unit",
    "coverage_95": "share of truths between the quantiles at 0.025 and 0.975",
    "width_95": "mean distance between them, in the series' unit",
}


def result_rows_page() -> str:
    """Every column of a result row."""
    from compevo_core.evaluation.metrics import BELOW_COLUMNS, PINBALL_COLUMNS
    from compevo_core.evaluation.result_rows import RESULT_SCHEMA

    meanings = {name: ([name], meaning) for name, meaning in RESULT_COLUMNS.items()}
    for columns, meaning in (
        (PINBALL_COLUMNS, "mean pinball loss of the quantile at"),
        (BELOW_COLUMNS, "share of truths at or below the quantile at"),
    ):
        levels = ", ".join(f"{level:g}" for level in columns)
        meanings[next(iter(columns.values()))] = (list(columns.values()), f"{meaning} {levels}")

    rows = [
        [", ".join(f"`{name}`" for name in names), str(RESULT_SCHEMA[first]), meaning]
        for first, (names, meaning) in meanings.items()
    ]
    return page(
        [
            "# Result rows",
            NOTE,
            "Every experiment writes CSV files with these columns. Errors are in the unit of the "
            "series, on the original truth. Every method has a row per entity and a pooled row.",
            table(("column", "type", "meaning"), rows),
        ]
    )


def data_contracts_page() -> str:
    """The frames that sources make and windows are built from."""
    from compevo_core.data.schemas import COLUMN_MEANINGS
    from compevo_core.paper.paper_windows import PAPER_SETS

    parts = [
        "# Data contracts",
        NOTE,
        "Polars frames that sources hand to the library. Every column must be there with exactly "
        "this type, and further columns are dropped; a frame that breaks its contract is refused "
        "by name.",
    ]
    for title, meaning, schema in contracts():
        rows = [[f"`{name}`", f"`{kind}`", COLUMN_MEANINGS[name]] for name, kind in schema.items()]
        parts += [f"## {title}", meaning, table(("column", "type", "meaning"), rows)]
    original, newer = (PAPER_SETS[name].file for name in ("paper-original", "paper-2026"))
    sources = {
        f"`{original}`": "order of `real_dataset_enhanced.json` and split of `dataset.py` in the "
        "paper's repository at e3204217; AEMO TOTALDEMAND, of Tasmania HISTDEMAND",
        f"`{newer}`": "`real_dataset_100_2026_test.json` there; AEMO operational demand, from "
        "which the paper's values differ by up to 160 MW",
    }
    parts += [
        "## Windows of the paper",
        "Tables with the columns `region`, `target_day` and, of the first, `split`, in the folder "
        "`compevo_paper` of an archive.",
        table(("file", "provenance"), list(sources.items())),
    ]
    return page(parts)


def contracts() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield the title, the meaning and the schema of every frame."""
    from compevo_core.data import schemas

    yield "Series", "One row per series, variable and interval start.", schemas.SERIES_SCHEMA
    yield (
        "Covariates",
        "Daily values that accompany a series, with the moment each became available.",
        schemas.COVARIATE_SCHEMA,
    )
    yield (
        "Published forecasts",
        "Forecasts that others published, with the moment they were issued.",
        schemas.PUBLISHED_SCHEMA,
    )
    yield "Benchmark records", "Windows of a published benchmark.", schemas.BENCHMARK_SCHEMA
    yield "Articles", "News, with the moment each article became available.", schemas.ARTICLE_SCHEMA


def decisions_page() -> str:
    """The index of decisions, from the pages."""
    rows = []
    for path in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        text = path.read_text("utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        sections = "; ".join(re.findall(r"^## (.+)$", text, re.M))
        rows.append([f"[{path.stem}]({path.name})", f"**{title}**. {sections}"])
    return page(
        [
            "# Decisions",
            NOTE,
            "What the paper leaves open and what is done here, and how the project is built. Code "
            'cites a page by its name: "decision 10-fitness".',
            table(("page", "subjects"), rows),
        ]
    )


def page(parts: Sequence[str]) -> str:
    """Join the parts of a page."""
    return "\n\n".join(parts) + "\n"


PAGES = {
    "reference/cli.md": cli_page,
    "reference/environment.md": environment_page,
}
#: Pages that only the built site has in full; the repository holds their first lines.
BUILT_PAGES = {
    "reference/configuration.md": settings_page,
    "reference/live-sources.md": live_sources_page,
    "reference/run-folder.md": run_folder_page,
    "reference/round-record.md": round_record_page,
    "reference/result-rows.md": result_rows_page,
    "reference/data-contracts.md": data_contracts_page,
    "decisions/index.md": decisions_page,
}


def main(
    check: Annotated[bool, typer.Option("--check", help="Compare, and write nothing.")] = False,
) -> None:
    """Write every page, or with --check fail where one is out of date."""
    stale = []
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        if check:
            is_current = path.is_file() and path.read_text(encoding="utf-8") == text
            stale += [] if is_current else [name]
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    if stale:
        typer.echo(f"out of date: {', '.join(stale)}; run: make docs", err=True)
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
