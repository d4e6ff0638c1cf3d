"""What the code gives for one tiny, made-up experiment, as plain values.

``python -m tests.golden.compute --write`` writes the values to ``tests/golden/files``. That is
only right when a number is meant to change: ``tests/test_golden.py`` says what to do otherwise.

Almost everything goes through the command line, so that names inside the packages may change.
All names of the project that this module needs are imported in one block below.
Legend: a value under the key ``float_bits`` is a hash that depends on the last bit of a float.
"""

import contextlib
import hashlib
import html
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from threadpoolctl import threadpool_limits
from typer.testing import CliRunner

# ---- every name of the project, and nowhere else ----
from compevo_core.baselines import fit_baseline
from compevo_core.data.build import build_windows
from compevo_core.data.datasets import ELECTRICITY
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.window import WindowSet
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_pipeline.cli.main import app
from compevo_pipeline.sources.common.base import Mode
from compevo_pipeline.sources.feeds import default_feeds
from compevo_pipeline.storage.code_versions import read_commit
from tests.support import population as small
from tests.support import report_samples as invented
from tests.support import window_samples as frames

# ---- end of the names ----

FILES = Path(__file__).with_name("files")
TIMINGS = frozenset({"seconds", "eta_seconds", "train_seconds", "peak_memory_gb"})
NOT_OF_THE_METHOD = frozenset({"seconds", "seconds_per_window", "commit", "device"})
OVER_FLOATS = frozenset({"artifact_hash", "data_hash"})
VIEWS = 3
EVALUATED = {"head": "test", "variant": "inference"}
"""Runs that ``evaluate`` scores, and on which split; with one seed, as when the files were made."""
LEFT_BY_EVALUATE = ("panels.jsonl", "predictions.parquet")
"""Files that ``evaluate`` adds to a run folder now; the report's numbers are without them."""
PACKAGES = ("torch", "numpy", "polars", "peft", "safetensors", "lightgbm", "transformers")
NUMBER = re.compile(
    r"(?<![\w.])[-+\u2212]?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?!\w)"
)
MOMENT = re.compile(
    r"\b(\d{1,2} [A-Z][a-z]{2} \d{4}|\d{4}-\d\d-\d\d),? ?(?:at )?\d\d:\d\d(?::\d\d)?"
)

Json = dict[str, Any]
Changes = dict[str, Any]

HEAD: Changes = {
    "forecast.prior": "calendar-ridge",
    "forecast.prior_folds": 3,
    "population.dropout": 0.1,
    "run.rounds": 4,
    "run.fixed_logics": 2,
    "grpo.iterations": 2,
    "population.members": [
        {"prior": "blend", "window_share": 0.7},
        {"prior": "calendar-ridge"},
        {"seed": 1},
    ],
    "news.form": "token",
    "news.dropout": 0.3,
    "selection.units": "spread",
    "selection.scope": "series",
    "calibration.blend": True,
    "objective.loss": "huber",
    "objective.lambda_own": 1.0,
    "optim.fusion_lr": 1e-2,
    "run.supervised_epochs": 1,
    "run.gradient": "by-agent",
}
VARIANT: Changes = {
    "forecast.prior": "gbm",
    "forecast.known_errors": "mean",
    "forecast.logic_in_prompt": False,
    "evolution.update": "simplified",
    "evolution.instruction": "paraphrased",
    "evolution.form": "slots",
    "evolution.every": 2,
    "forecast.layers": 1,
    "run.refit": True,
    "run.rounds": 2,
    "run.seed": 3,
}
TEXT: Changes = {
    "forecast.decoder": "text",
    "forecast.prior": "none",
    "population.agents": 2,
    "run.rounds": 1,
    "run.validate_every": 1,
    "run.validation_windows": 2,
    "run.fixed_logics": 1,
    "grpo.group_size": 2,
}


def compute() -> dict[str, Json]:
    """Everything, by the name of the file it is kept in."""
    with tempfile.TemporaryDirectory() as folder, one_thread():
        return dict(_parts(Path(folder)))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread for products: with more, the last bits of the ridge's weights are others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def _parts(root: Path) -> Iterator[tuple[str, Json]]:
    windows = write_inputs(root)
    yield "machine", {"float_fingerprint": fingerprint()}
    asked = {"default": (), "small": ("--backbone", "llama-3.1-8b", "--agents", "3", "--rank", "4")}
    yield "params", {k: json.loads(command("paper", "params", *v)) for k, v in asked.items()}
    later = {"hash": float_bits(electricity(news_cutoff="horizon-end").hash)}
    built = described(electricity()) | {"with_later_news": later}
    yield "windows", {"training": described(windows), "built": built}
    yield "baselines", baselines(windows)
    for name, changes in (("head", HEAD), ("variant", VARIANT), ("text", TEXT)):
        train(root, root / name, changes)
        yield f"run_{name}", finished(root, name) | forecasts(root, name, windows)
    yield "resumed", resumed(root)
    yield "predicted", predicted(root)
    yield "evaluated", evaluated(root)
    yield "lud", measured_lud(root)
    yield "report", reported(root)
    yield "samples", sample_sources()


def write_inputs(root: Path) -> WindowSet:
    """Windows of every split and the news they name, as folders that the commands read."""
    spans = (("train", 24, 0), ("val", 3, 40), ("test", 4, 60), ("inference", 2, 80))
    windows = small.join_windows(*spans)
    windows.write(root / "windows")
    small.news_pool().write(root / "news")
    return windows


def command(*words: object) -> str:
    """What one command of the command line prints; an error is raised, not printed."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    if result.exit_code:
        raise RuntimeError(f"{words[0]} ended with {result.exit_code}: {result.output}")
    return result.stdout


def data(root: Path) -> tuple[object, ...]:
    return "--windows", root / "windows", "--news", root / "news"


def train(root: Path, run: Path, changes: Changes) -> None:
    """One run by the command line; settings as ``--set section.setting=value``."""
    texts = [f"{key}={toml_of(value)}" for key, value in changes.items()]
    chosen = [word for text in texts for word in ("--set", text)]
    command("paper", "train", *data(root), "--out", run, "--preset", "tiny", *chosen)


def described(windows: WindowSet) -> Json:
    manifest = dict(windows.manifest)
    return {
        "hash": float_bits(manifest.pop("hash")),
        "manifest": json.loads(json.dumps(manifest, default=str)),
        "window_ids": [view.window_id for view in windows.views()],
        "input_means": [float(view.x.mean()) for view in windows.views()],
        "truth_means": [float(np.nanmean(row)) for row in windows.truth()],
    }


def electricity(**options: Any) -> WindowSet:
    """Windows cut out of short made-up series with weather, articles and published forecasts."""
    days = [date(2019, 11, 1) + i * frames.DAY for i in range(61)]
    days += [date(2020, 1, 1) + i * frames.DAY for i in range(22)]
    titles = [frames.from_nem(2019, 11, 2 + i, 9) for i in range(20)]
    return build_windows(
        ELECTRICITY,
        frames.make_electricity_series(),
        frames.make_covariates(days),
        frames.make_articles(titles),
        frames.make_published(frames.from_nem(2020, 12, 25), 20, "SA1"),
        frames.make_benchmark(date(2021, 1, 6)),
        **options,
    )


def baselines(windows: WindowSet) -> Json:
    found: Json = {"training": {}, "built": {}}
    wanted = ("persistence", "calendar-ridge", "gbm")
    for name, given in (("training", windows), ("built", electricity())):
        views = given.split("test").views()[:VIEWS]
        for method in wanted:
            fitted = fit_baseline(method, given.split("train"))
            found[name][method] = fitted.predict(views).tolist()
    return found


def finished(root: Path, name: str) -> Json:
    """What a run leaves behind: records, summary, logics, and the hashes of the sealed model."""
    folder = root / name
    lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    manifest = json.loads((folder / "model" / "manifest.json").read_text(encoding="utf-8"))
    forecaster = CompEvoForecaster.load(folder, NewsPool.read(root / "news"))
    return {
        "rounds": [without(json.loads(line), TIMINGS) for line in lines],
        "metrics": without(read(folder / "metrics.json"), TIMINGS),
        "config": read(folder / "model" / "config.json"),
        "inputs": read(folder / "model" / "inputs.json"),
        "logics": json.loads((folder / "model" / "logics.json").read_text(encoding="utf-8")),
        "seed": manifest["seed"],
        "artifact": float_bits(forecaster.artifact_hash),
        "files": {file: float_bits(digest) for file, digest in manifest["files"].items()},
    }


def forecasts(root: Path, name: str, windows: WindowSet) -> Json:
    """Forecasts of a few test views: the population's, each agent's, and what made them."""
    forecaster = CompEvoForecaster.load(root / name, NewsPool.read(root / "news"))
    found = forecaster.predict_by_agent(windows.split("test").views()[:VIEWS])
    return {
        "aggregate": found.aggregate.tolist(),
        "agents": found.agents.tolist(),
        "weights": found.weights.tolist(),
        "chosen": [[list(ids) for ids in agent] for agent in found.chosen_news],
        "prior": None if found.prior is None else found.prior.tolist(),
        "unread": found.n_unparsed,
    }


def resumed(root: Path) -> Json:
    """The head run again from its last checkpoint but one; must equal the straight run."""
    before = finished(root, "head")
    copy = root / "again" / "head"
    shutil.copytree(root / "head", copy)
    shutil.rmtree(copy / "model")
    (copy / "metrics.json").unlink()
    shutil.rmtree(max((copy / "checkpoints").glob("round_*")))
    shutil.copytree(root / "news", root / "again" / "news")
    train(root, copy, HEAD)
    after = finished(root / "again", "head")
    return {"differs_in": sorted(key for key in before if before[key] != after[key])}


def predicted(root: Path) -> Json:
    command("paper", "predict", root / "head", *data(root), "--out", root / "forecast.parquet")
    frame = pl.read_parquet(root / "forecast.parquet")
    values: dict[str, list[float]] = {}
    for name, value in frame.select("window_id", "value").iter_rows():
        values.setdefault(name, []).append(value)
    times = frame["start_utc"].dt.convert_time_zone("UTC")
    return {
        "columns": {name: str(kind) for name, kind in frame.schema.items()},
        "rows": frame.height,
        "first": times.min().isoformat(),
        "last": times.max().isoformat(),
        "others": sorted({f"{e} {u}" for e, u in frame.select("entity", "unit").iter_rows()}),
        "values": values,
    }


def evaluated(root: Path) -> Json:
    """Rows of ``evaluate`` for two runs, and the tables printed from them."""
    results = root / "results"
    printed = {}
    for name, split in EVALUATED.items():
        words = ("--results", results, "--experiment", name, "--split", split, "--seeds", 1)
        printed[name] = numbers(command("paper", "evaluate", root / name, *data(root), *words))
    rows = {}
    for file in sorted(results / f"{name}.csv" for name in EVALUATED):
        lines = pl.read_csv(file, infer_schema_length=None).to_dicts()
        rows[file.stem] = [without(line, NOT_OF_THE_METHOD) for line in lines]
    config_files = sorted(path.name for path in (results / "configs").glob("*.json"))
    table = numbers(command("paper", "table", "--results", results))
    return {"rows": rows, "printed": printed, "table": table, "kept_configs": config_files}


def measured_lud(root: Path) -> Json:
    command("paper", "lud", root / "head", "--judge", "local", "--pairs", "2")
    rows = pl.read_csv(root / "head" / "lud.csv", infer_schema_length=None).to_dicts()
    summary = without(read(root / "head" / "lud.json"), TIMINGS)
    for judge in summary["judges"]:
        # Added since; the gains of this tiny model are as small as the rounding of its forecasts.
        del judge["gains"]
    return {"summary": summary, "rows": rows}


def reported(root: Path) -> Json:
    """Numbers of the report in their order: of the runs made here, and of an invented one."""
    runs = [freeze_timings(root / name) for name in ("head", "variant", "text")]
    results = root / "still"
    results.mkdir()
    for file in (root / "results" / f"{name}.csv" for name in EVALUATED):
        lines = pl.read_csv(file, infer_schema=False)
        still = [pl.lit("1.0").alias(name) for name in ("seconds", "seconds_per_window")]
        lines.with_columns(still).write_csv(results / file.name)
    made_up = root / "invented"
    made_up.mkdir()
    invented.make_rows().write_csv(made_up / "main.csv")
    run = invented.write_run(root / "electricity")
    return {
        "runs": page_numbers(root, results, runs, "sample"),
        "invented": page_numbers(root, made_up, [run], "archive"),
        "invented_table": numbers(command("paper", "table", "--results", made_up)),
    }


def page_numbers(root: Path, results: Path, runs: list[Path], mode: str) -> list[str]:
    target = root / "report"
    command("paper", "report", results, *runs, "--out", target, "--mode", mode)
    return numbers(visible((target / "research.html").read_text(encoding="utf-8")))


def freeze_timings(run: Path) -> Path:
    """A copy of a run folder, next to it, whose timings are all one second."""
    copy = run.parent / "stills" / run.name
    shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*LEFT_BY_EVALUATE))
    lines = (copy / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    still = dict.fromkeys(TIMINGS - {"peak_memory_gb"}, 1.0)  # which only the summary has
    fixed = [json.dumps(json.loads(line) | still) for line in lines]
    (copy / "rounds.jsonl").write_text("".join(f"{line}\n" for line in fixed), encoding="utf-8")
    summary = read(copy / "metrics.json") | dict.fromkeys(TIMINGS, 1.0)
    (copy / "metrics.json").write_text(json.dumps(summary), encoding="utf-8")
    return copy


def visible(page: str) -> str:
    """Text that a reader of a page sees, without the moment it was made."""
    now = datetime.now(UTC)
    near = [now + timedelta(days=shift) for shift in (-1, 0, 1)]
    names = {form.format(day) for day in near for form in ("{:%d %b %Y}", "{:%Y-%m-%d}")}
    shown = re.sub(r"(?s)<(style|script|head)\b.*?</\1>|<!--.*?-->|<[^>]*>", " ", page)
    # A commit may read as a number, such as 51474210e952.
    shown = html.unescape(shown).replace(read_commit().rstrip("+"), " ")
    return MOMENT.sub(lambda m: " " if m[1] in names else m[0], shown)


def numbers(text: str) -> list[str]:
    """Every number of a text in its order, as printed."""
    return NUMBER.findall(text)


def sample_sources() -> Json:
    """Every frame of the sample mode: rows, columns, sums, and a hash over all values."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    found: Json = {}
    for dataset, feeds in default_feeds().items():
        for feed in (feed for feed in feeds if Mode.SAMPLE in feed.modes):
            raws = list(feed.read_files(Mode.SAMPLE, None, lambda: now))
            for kind, parse in feed.parsers.items():
                parsed = parse(raws)
                # Some parsers say in words what they left out.
                frame = parsed[0] if isinstance(parsed, tuple) else parsed
                found[f"{dataset} {feed.name} {kind}"] = summary(frame)
    return found


def summary(frame: pl.DataFrame) -> Json:
    sums = {name: frame[name].sum() for name, kind in frame.schema.items() if kind.is_numeric()}
    return {
        "rows": frame.height,
        "columns": {name: str(kind) for name, kind in frame.schema.items()},
        "sums": {name: float(value) for name, value in sums.items()},
        "values": float_bits(hashlib.sha256(frame.write_ndjson().encode()).hexdigest()),
    }


@one_thread()
def fingerprint() -> str:
    """Hash of the bytes of a few fixed results and of the versions that made them.

    Where it is equal, hashes that depend on the last bit of a float must be equal too.
    """
    generator = torch.Generator().manual_seed(11)
    left, right = (torch.randn(64, 96, generator=generator) for _ in range(2))
    product = left @ right.T
    layer = torch.nn.functional.linear(left, right, left.new_ones(64))
    given = np.random.default_rng(12).normal(size=512)
    table = np.random.default_rng(13).normal(size=(1024, 128))
    gram = table.T @ table
    solved = np.linalg.solve(gram + np.eye(128), gram[:, :48])
    results = [product, product.softmax(-1), left.exp(), layer, torch.nn.functional.silu(left)]
    arrays = [one.numpy() for one in results] + [np.sin(given), np.exp(given), gram, solved]
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(" ".join(metadata.version(name) for name in PACKAGES).encode())
    return digest.hexdigest()


def read(path: Path) -> Json:
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def without(record: Json, keys: frozenset[str]) -> Json:
    """A record without some keys, with its hashes over floats marked as such."""
    return {
        key: float_bits(value) if key in OVER_FLOATS and value else value
        for key, value in record.items()
        if key not in keys
    }


def float_bits(digest: str) -> Json:
    return {"float_bits": digest}


def plain(value: Any) -> Any:
    """A value as JSON keeps it: a float that is not finite becomes text."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def toml_of(value: Any) -> str:
    """A value as ``--set`` takes it."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_of(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    return json.dumps(value)


def text_of(value: Any, depth: int = 0) -> str:
    """JSON with one line for a list of plain values."""
    pad = " " * (depth + 1)
    if isinstance(value, dict) and value and set(value) != {"float_bits"}:
        inner = [f"{pad}{json.dumps(k)}: {text_of(v, depth + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        inner = [pad + text_of(one, depth + 1) for one in value]
        return "[\n" + ",\n".join(inner) + "\n" + " " * depth + "]"
    return json.dumps(value, ensure_ascii=False)


def write() -> None:
    FILES.mkdir(exist_ok=True)
    for name, value in compute().items():
        path = FILES / f"{name}.json"
        path.write_text(text_of(plain(value)) + "\n", encoding="utf-8")
        sys.stdout.write(f"{path.name}: {path.stat().st_size} bytes\n")


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    write()
