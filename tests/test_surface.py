"""Everything that a user has: commands, assets, settings, names, columns, tables, figures.

``tests/surface.json`` lists it, one line an entry, and a change of the code must not change the
list unnoticed. A wanted change is a reviewed one: ``python tests/test_surface.py --write``.
Help sentences are not part of the list; titles and captions of the report are a part of their own.
"""

import enum
import hashlib
import html
import importlib
import inspect
import json
import pkgutil
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property, partial
from pathlib import Path

import dagster as dg
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SURFACE = REPOSITORY / "tests" / "surface.json"
RESULTS = REPOSITORY / "results"


def list_commands() -> Iterator[str]:
    import typer.main

    from compevo_core.paper.report.markdown import app as readme
    from compevo_pipeline.cli.main import app

    def walk(command, path):
        yield path
        for parameter in command.params:
            kind = parameter.param_type_name
            names = " / ".join([*parameter.opts, *parameter.secondary_opts])
            values = getattr(parameter.type, "choices", None) or parameter.type.name
            values = "|".join(map(str, values)) if not isinstance(values, str) else values
            rule = "required" if parameter.required else f"default {show(parameter.default)}"
            many = " repeated" if parameter.multiple or parameter.nargs != 1 else ""
            yield f"{path} {kind} {names} ({values}{many}, {rule})"
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    yield from walk(typer.main.get_command(app), "compevo")
    yield from walk(typer.main.get_command(readme), "readme")


def list_dagster() -> Iterator[str]:
    from compevo_pipeline.config.settings import Settings
    from compevo_pipeline.definitions import build_defs
    from compevo_pipeline.paper.definitions import build_defs as build_research

    # Data sets that a user declared in the default folder are not part of the product.
    settings = Settings.from_environment({"COMPEVO_HOME": "no-such-folder"})
    for build in (build_defs, build_research):
        yield from list_location(build(settings))


def list_location(defs: dg.Definitions) -> Iterator[str]:
    repository = defs.get_repository_def()
    graph = repository.asset_graph

    for key in graph.executable_asset_keys:
        asset = graph.get(key)
        deps = ", ".join(sorted(parent.to_user_string() for parent in asset.parent_keys))
        partitions = type(asset.partitions_def).__name__ if asset.partitions_def else "none"
        pools = "".join(f", pool {pool}" for pool in sorted(asset.pools))
        name = key.to_user_string()
        place = f"group {asset.group_name}{pools}, partitions {partitions}"
        yield f"asset {name} in {place}, from [{deps}]"
    for check in graph.asset_check_keys:
        kind = "blocking check" if graph.get_check_spec(check).blocking else "check"
        yield f"{kind} {check.name} of {check.asset_key.to_user_string()}"

    configs = set()
    for job in repository.get_all_jobs():
        assets = sorted(k.to_user_string() for k in job.asset_layer.executable_asset_keys)
        # Dagster makes a job of all assets by itself.
        if not job.name.startswith("__"):
            yield f"job {job.name} with assets [{', '.join(assets)}]"
        for node in job.all_node_defs:
            settings = node.config_schema.config_type if node.config_schema else None
            for name, field in getattr(settings, "fields", {}).items():
                default = show(field.default_value) if field.default_provided else "none"
                configs.add(f"run config {node.name}.{name}, default {default}")
    yield from configs

    for schedule in repository.schedule_defs:
        cron = show(schedule.cron_schedule)
        zone, status = schedule.execution_timezone, schedule.default_status.value
        yield f"schedule {schedule.name} of {schedule.job_name} at {cron} {zone}, {status}"
    for sensor in repository.sensor_defs:
        yield f"sensor {sensor.name}"
    for kind in ("resources", "loggers"):
        yield from (f"{kind} {name}" for name in getattr(defs, kind))


def list_settings() -> Iterator[str]:
    from compevo_core.config.run import RunConfig, iterate_settings, list_presets
    from compevo_core.paper.agent_systems import known_architectures
    from compevo_pipeline.config.settings import NO_PROGRESS_BARS, PROCESS_VARIABLES, VARIABLES

    yield from (f"variable {name}" for name in VARIABLES)
    for name, value in (PROCESS_VARIABLES | NO_PROGRESS_BARS).items():
        yield f"variable {name} = {value} where a process sets it"

    config = RunConfig()
    for dotted, _ in iterate_settings():
        section, _, name = dotted.partition(".")
        yield f"setting {dotted} = {show(getattr(getattr(config, section), name))}"
    yield from (f"preset {name} with hash {RunConfig.preset(name).hash}" for name in list_presets())
    yield from (f"architecture {name}" for name in known_architectures())


def list_python() -> Iterator[str]:
    import compevo_core

    public = {name: getattr(compevo_core, name) for name in compevo_core.__all__}
    classes = public | {f"BASELINES[{name!r}]": kind for name, kind in public["BASELINES"].items()}
    for name, value in classes.items():
        if not inspect.isclass(value):
            yield f"{name}{show_parameters(value) if callable(value) else ''}"
            continue
        yield f"{name}{show_parameters(value)}"
        for member in dir(value):
            method = inspect.getattr_static(value, member)
            method = getattr(method, "__func__", method)
            if member.startswith("_"):
                continue
            if isinstance(method, property | cached_property):
                yield f"{name}.{member}"
            elif inspect.isfunction(method) and method.__module__.startswith("compevo"):
                yield f"{name}.{member}{show_parameters(method)}"


def list_research() -> Iterator[str]:
    from compevo_core.config.run import SYSTEM_SETTINGS
    from compevo_core.data.datasets import DATASETS
    from compevo_core.evaluation.scopes import TEST_SUBSETS
    from compevo_core.paper.changes import ABLATION, CHANGES, EXPERIMENTS, NEWS_CHANGES
    from compevo_core.paper.declared import BUDGETS
    from compevo_core.paper.method_table import METHODS
    from compevo_core.paper.networks import NETWORKS
    from compevo_core.paper.report.paper_tables import PAPER_TABLES
    from compevo_pipeline.sources.feeds import default_feeds

    for name, method in METHODS.items():
        yield f"method {name} of family {method.family}, seeds {method.seeds}"
    yield from (f"network {name}" for name in NETWORKS)
    yield from (f"budget {name}: {show(budget)}" for name, budget in BUDGETS.items())

    for change in CHANGES.values():
        if change.kind in ("variant", "control"):
            yield f"{change.kind} {change.name}: {show(change.settings)}"
    yield from (f"system {name}: {show(value)}" for name, value in SYSTEM_SETTINGS.items())
    yield from (f"train --variant {name}" for name in EXPERIMENTS[ABLATION].names)
    for name, sweep in EXPERIMENTS.items():
        trained = "trained" if sweep.trains else "scored"
        yield from (f"experiment {name}: {change}, {trained}" for change in sweep.names)
        yield f"experiment {name}: reference {sweep.reference}"
    yield from (f"news change {name}" for name in NEWS_CHANGES)
    yield from (f"table {name}" for name in PAPER_TABLES)

    for name, spec in DATASETS.items():
        yield f"data set {name}: {show(spec)}"
    yield from (f"test subset {name}: {show(subset)}" for name, subset in TEST_SUBSETS.items())
    for dataset, feeds in default_feeds().items():
        for feed in feeds:
            modes = sorted({*feed.modes} | ({"live"} if feed.fetch_live else set()))
            facts = {"modes": modes, "frames": sorted(map(str, feed.parsers))}
            facts |= {"optional": feed.is_optional, "whole": feed.is_whole}
            yield f"feed {feed.name} of {dataset}: {show(facts)}"


def list_result_files() -> Iterator[str]:
    import compevo_core
    from compevo_core.paper.report.inputs import CHECK_COLUMNS

    schemas = {"leakage checks": dict.fromkeys(CHECK_COLUMNS, "")}
    for module in pkgutil.walk_packages(compevo_core.__path__, "compevo_core."):
        named = vars(importlib.import_module(module.name))
        schemas |= {name: named[name] for name in named if re.fullmatch(r"[A-Z]\w*_SCHEMA", name)}
    for kind, schema in schemas.items():
        for place, (column, dtype) in enumerate(schema.items()):
            dtype = dtype() if inspect.isclass(dtype) else dtype
            yield f"{kind} column {place:02} {column} {dtype}".rstrip()

    for path in RESULTS.rglob("*.csv"):
        yield f"file {path.relative_to(REPOSITORY)}"


def list_documents() -> Iterator[str]:
    from compevo_core.paper.report.markdown import BLOCKS

    names = {block.start: re.match(r"<!-- ([\w-]+)", block.start)[1] for block in BLOCKS}
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        blocks = [name for start, name in names.items() if start in text]
        yield from (f"block {name} in {path.relative_to(REPOSITORY)}" for name in blocks)
    yield from (f"block {name}" for name in names.values())


def list_page(page: str) -> dict[str, list[str]]:
    """List sections, charts, tables and figures of a report, and apart from them its titles."""
    entries, titles = [], []
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", page)
    for section in re.split(r"(?=<section\b)", page):
        named = re.match(r'<section id="([^"]+)"', section)
        place = f"#{named[1] if named else ''}"
        entries += [f"section {place}"] if named else []
        entries += [f"{place} chart {name}" for name in re.findall(r'data-figure="(.*?)"', section)]
        for figure in find_elements(section, "figure"):
            entries.append(f"{place} figure of {figure.count('<img')} images")
        for table in find_elements(section, "table"):
            header = " | ".join(map(read_text, find_elements(table, "th", ' scope="col"')))
            rows = [row for row in find_elements(table, "tr") if 'scope="col"' not in row]
            cells = " ".join(map(read_text, find_elements(table, "td")))
            numbers = " ".join(re.findall(r"\d[\d.,]*", cells))
            digest = hashlib.sha256(numbers.encode()).hexdigest()[:8]
            entries.append(f"{place} table [{header}]: {len(rows)} rows, numbers {digest}")
        for tag in ("caption", "figcaption", "summary", "dt", "h1", "h2", "h3", "h4"):
            titles += [f"{place} {tag}: {read_text(one)}" for one in find_elements(section, tag)]
    return {"entries": entries, "titles": titles}


def find_elements(page: str, tag: str, attributes: str = "") -> list[str]:
    """Return what the elements of a tag hold; none holds another of its kind."""
    return re.findall(rf"(?s)<{tag}\b[^>]*{attributes}[^>]*>(.*?)</{tag}>", page)


def read_text(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", markup)).split())


@cache
def parse_reports() -> dict[str, dict[str, list[str]]]:
    """Parse the pages of the committed rows, and those of an invented run and an issued day."""
    from compevo_core.paper.report.inputs import empty_rows, read_inputs
    from compevo_core.report.forecast_page import render_forecasts
    from tests.support.issued_samples import make_day
    from tests.support.report_samples import make_inputs, make_run, render_undrawn
    from tests.support.traced_samples import make_traced_inputs

    now = datetime(2026, 1, 1, tzinfo=UTC)
    committed = read_inputs(RESULTS, [], mode="archive", generated_at=now)

    with tempfile.TemporaryDirectory() as folder:
        traced = make_traced_inputs(Path(folder))
    stages = {"error_correlation": 0.5, "gain_over_best": 1.0, "effective_agents": 1.5}
    run = make_run()
    names = ["supervised" if record.round < 8 else "evolution" for record in run.rounds]
    rounds = [
        record.model_copy(update=stages | {"stage": name})
        for record, name in zip(run.rounds, names, strict=True)
    ]
    sample = make_inputs(
        rows=empty_rows(),
        runs=(replace(run, rounds=rounds),),
        traces=traced.traces,
        logics=traced.logics,
    )

    # Images are counted and not looked at.
    return {
        "committed": list_page(render_undrawn(committed)),
        "forecasts": list_page(render_forecasts([make_day()], mode=sample.mode, generated_at=now)),
        "sample": list_page(render_undrawn(sample)),
    }


def list_report(kind: str) -> Iterator[str]:
    for name, page in parse_reports().items():
        yield from (f"{name} {entry}" for entry in page[kind])


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "commands": list_commands,
    "dagster": list_dagster,
    "settings": list_settings,
    "python": list_python,
    "research": list_research,
    "result files": list_result_files,
    "documents": list_documents,
    "report": partial(list_report, "entries"),
    "report titles": partial(list_report, "titles"),
}


def show(value: object) -> str:
    """Return a value as text that is the same in every process and on every machine."""
    return json.dumps(value, sort_keys=True, default=show_other, ensure_ascii=False)


def show_other(value: object) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Path | enum.Enum | date | timedelta):
        return str(value)
    return type(value).__name__


def show_parameters(function: Callable) -> str:
    """Return the parameters without types, and without the values of their defaults."""
    if inspect.isclass(function) and issubclass(function, Exception):
        return ""
    names = [
        re.split("[:=]", str(parameter))[0].strip()
        + ("" if parameter.default is parameter.empty else "=")
        + (" keyword" if parameter.kind is parameter.KEYWORD_ONLY else "")
        for parameter in inspect.signature(function).parameters.values()
    ]
    return f"({', '.join(names)})"


@pytest.mark.parametrize("part", PARTS)
def test_nothing_a_user_has_is_lost(part: str) -> None:
    listed, present = Counter(json.loads(SURFACE.read_text())[part]), Counter(PARTS[part]())
    missing = [f"  missing: {entry}" for entry in sorted((listed - present).elements())]
    new = [f"  new: {entry}" for entry in sorted((present - listed).elements())]
    if missing or new:
        heading = f"{part}: not as {SURFACE.name} lists them; a wanted change is written by --write"
        pytest.fail("\n".join([heading, *missing, *new]), pytrace=False)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    surface = {part: sorted(list_entries()) for part, list_entries in PARTS.items()}
    SURFACE.write_text(json.dumps(surface, indent=1, ensure_ascii=False) + "\n")
