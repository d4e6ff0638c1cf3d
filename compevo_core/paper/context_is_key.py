"""Context-is-Key: public tasks whose text gives the answer, forecast without training.

What belongs here: the tasks, their official score, a forecast from only the numbers, and one that a
language model writes. What does not: HTTP (a transport is passed in), tables
(``paper.report.evidence_tables``).

Source: Williams et al., Context is Key: A Benchmark for Forecasting with Essential Textual
Information, ICML 2025; tasks, score and published rows as of its repository's commit 80d66355.

Shapes: T past steps, H horizon, S sampled paths, C steps with a cap.
"""

import gzip
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from compevo_core.data.arrays import FloatArray
from compevo_core.errors import DataError, SourceAbsent
from compevo_core.evaluation.result_rows import replace_own_rows
from compevo_core.lm.model_sources import Transport, read_content
from compevo_core.paper.declared import read_columns
from compevo_core.runtime.files import ask_once, hash_text
from compevo_core.runtime.seeding import derive_seed

if TYPE_CHECKING:
    from compevo_core.lm.grammar import GrammarTokenizer
    from compevo_core.lora.backbone import Backbone

FILE = "context_is_key/all_tasks.json.gz"
# Forecasts from only the numbers, as a language model writes them, and the paths of both.
NUMBERS, READER, BOTH = "numbers", "reader", "both"
ALL = "all"
# What the text of a task is about: the benchmark's key of a source, and its name.
SOURCES = {
    ALL: "all",
    "c_i": "process",
    "c_h": "history",
    "c_f": "future",
    "c_cov": "covariates",
    "c_causal": "causes",
}

CONTEXT_SCHEMA = read_columns("context")
PATHS = 25  # sampled paths of the forecast from only the numbers, as in the published rows
MOST_SHOWN = 72  # past values that a prompt shows, the newest ones
FEWEST_FOR_CHANGES = 12  # fewer past values have no changes worth sampling
_WORST, _VIOLATION_WEIGHT = 5.0, 10.0
_DIGITS = 3
_DIGIT_SIGNS = "0123456789"
_LONGEST_NUMBER = 8  # signs of a number that a local model may write
_TOKENS_PER_VALUE = 11  # with its comma and space
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
# Answers every prompt ``count`` times with at least so many numbers.
Write = Callable[[Sequence[str], int, int], list[list[str]]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ContextTask:
    """One instance of a task."""

    name: str
    seed: int
    sources: tuple[str, ...]  # keys of what its text is about
    weight: float  # in the average; instances and variants of a task share one
    text: str  # background, scenario and constraints
    stamps: tuple[str, ...]  # of all T + H steps
    past_T: FloatArray
    truth_H: FloatArray
    season: int  # steps of a season; -1 where there is none
    scale: float  # makes scores of different tasks comparable
    region: tuple[int, ...]  # steps that the text is about; they count half of the score
    lowest: float  # value that the text allows
    highest: float
    caps: Mapping[int, float]  # highest value of single steps


def read_tasks(archive: Path) -> list[ContextTask]:
    """Read all tasks of an archive, task by task; SourceAbsent if it does not hold them."""
    path = archive / FILE
    if not path.is_file():
        raise SourceAbsent(f"{archive} has no {FILE}: name an archive that holds it")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [_read_task(json.loads(line)) for line in lines]


def _read_task(entry: dict[str, Any]) -> ContextTask:
    *_, past = json.loads(entry["past_time"]).values()
    *_, future = json.loads(entry["future_time"]).values()
    lowest, highest = entry["constraint_min"], entry["constraint_max"]
    caps = (entry["constraint_variable_max_index"], entry["constraint_variable_max_values"])
    texts = (entry["background"], entry["scenario"], entry["constraints"])
    return ContextTask(
        name=entry["name"],
        seed=entry["seed"],
        sources=tuple(entry["context_sources"]),
        weight=float(Fraction(entry["weight"])),
        text="\n".join(filter(None, texts)),
        stamps=(*past, *future),
        past_T=np.array(list(past.values()), dtype=float),
        truth_H=np.array(list(future.values()), dtype=float),
        season=entry["seasonal_period"],
        scale=entry["metric_scaling"],
        region=tuple(entry["region_of_interest"] or ()),
        lowest=-np.inf if lowest is None else lowest,
        highest=np.inf if highest is None else highest,
        caps=dict(zip(*caps, strict=True)),
    )


def score_paths(task: ContextTask, paths_SH: FloatArray) -> float:
    """Return the RCRPS of sampled paths: scaled CRPS, half of it in the region, and violations."""
    crps_H = measure_crps(task.truth_H, paths_SH)
    is_inside_H = np.isin(np.arange(len(crps_H)), task.region)
    crps = crps_H.mean()
    if is_inside_H.any():
        crps = (crps_H[is_inside_H].mean() + crps_H[~is_inside_H].mean()) / 2

    outside_S = np.maximum(task.lowest - paths_SH, 0).mean(1)
    outside_S += np.maximum(paths_SH - task.highest, 0).mean(1)
    if task.caps:
        above_SC = paths_SH[:, list(task.caps)] - list(task.caps.values())
        outside_S += np.maximum(above_SC, 0).mean(1)
    penalty_S1 = _VIOLATION_WEIGHT * task.scale * outside_S[:, None]
    violation = measure_crps(np.zeros(1), penalty_S1)[0]
    return float(min(task.scale * crps + violation, _WORST))


def measure_crps(truth_H: FloatArray, paths_SH: FloatArray) -> FloatArray:
    """Return the CRPS of each step (H,), without bias for few samples; at least two are needed."""
    samples = len(paths_SH)
    rank_S1 = np.arange(samples)[:, None]
    # The mean distance of two different samples, from their order.
    spread_H = (np.sort(paths_SH, 0) * (2 * rank_S1 - samples + 1)).sum(0)
    spread_H = spread_H / (samples * (samples - 1))
    return np.asarray(np.abs(paths_SH - truth_H).mean(0) - spread_H)


def sample_from_numbers(task: ContextTask, count: int, rng: np.random.Generator) -> FloatArray:
    """Sample paths (S, H) from only the past.

    After two seasons or more, a path is the mean season plus the remainder of a past stretch.
    Otherwise it is the last value plus past changes, or any of the values if these are few.
    """
    past_T, horizon = task.past_T, len(task.truth_H)
    ahead_H = np.arange(1, horizon + 1)
    if task.season > 1 and len(past_T) >= 2 * task.season:
        phase_T = (np.arange(len(past_T)) - len(past_T)) % task.season
        profile = np.array([past_T[phase_T == p].mean() for p in range(task.season)])
        left_T = past_T - profile[phase_T]
        starts = task.season * rng.integers(0, len(past_T) // task.season, count)
        left_SH = left_T[(starts[:, None] + ahead_H - 1) % len(past_T)]
        return np.asarray(profile[(ahead_H - 1) % task.season] + left_SH)

    if len(past_T) < FEWEST_FOR_CHANGES:
        return rng.choice(past_T, size=(count, horizon))

    # No change spans more than half of the past: the few longer ones all start early.
    span_H = np.minimum(ahead_H, len(past_T) // 2)
    starts = (rng.random(count)[:, None] * (len(past_T) - span_H)).astype(int)
    return np.asarray(past_T[-1] + past_T[starts + span_H] - past_T[starts])


def write_prompt(task: ContextTask) -> str:
    """Return what a language model is asked: the text, the newest values, the steps ahead."""
    past, horizon = task.past_T[-MOST_SHOWN:], len(task.truth_H)
    first, last = task.stamps[len(task.past_T) - len(past)], task.stamps[len(task.past_T) - 1]
    values = ", ".join(
        np.format_float_positional(value, precision=_DIGITS, fractional=False, trim="-")
        for value in past
    )
    ahead, end = task.stamps[len(task.past_T)], task.stamps[-1]
    return (
        f"{task.text}\n\n"
        f"Values are in equal steps. Continue with {horizon} values, numbers only.\n\n"
        f"Values from {first} to {last}:\n{values}\n\n"
        f"Values from {ahead} to {end}:\n"
    )


def read_answer(text: str, horizon: int) -> FloatArray | None:
    """Return the first H numbers of an answer, or None if it holds fewer."""
    numbers = [float(number) for number in _NUMBER.findall(text)[:horizon]]
    return np.array(numbers) if len(numbers) == horizon and np.isfinite(numbers).all() else None


class NumberGrammar:
    """A line of numbers with a comma after each, and the end of the text after the last."""

    def __init__(self, tokenizer: "GrammarTokenizer", count: int, end: int) -> None:
        self._count = count
        self._end = end
        # Every vocabulary has these signs, besides any longer tokens.
        self._tokens = {
            sign: tokenizer.encode(f"1{sign}", add_special_tokens=False)[-1]
            for sign in (*_DIGIT_SIGNS, *"-., ")
        }
        self._signs = {token: sign for sign, token in self._tokens.items()}

    def allowed(self, ids: tuple[int, ...]) -> list[int]:
        """Return the tokens that may follow those written so far."""
        text = "".join(self._signs[token] for token in ids)
        number = text.rpartition(" ")[2]
        if text.count(",") == self._count:
            return [self._end]
        if number.endswith(","):
            return [self._tokens[" "]]

        signs = ""
        if len(number) < _LONGEST_NUMBER or not number[-1].isdigit():
            signs += _DIGIT_SIGNS
        if not number:
            signs += "-"
        elif number[-1].isdigit():
            signs += "," if "." in number else ".,"
        return [self._tokens[sign] for sign in signs]


def write_by_backbone(backbone: "Backbone", seed: int) -> Write:
    """Return a writer that answers a call's prompts together, only in numbers, by a local model.

    A backbone serves one such writer: load it again for another seed.
    """
    # They import torch, which is not needed to read the names in this module.
    import torch

    from compevo_core.lm.grammar import sample_under_grammar
    from compevo_core.lora import LoraShape, Population, PromptGroup, SamplingSettings

    reader = Population(backbone, LoraShape(adapters=1), torch.Generator())

    def write(prompts: Sequence[str], count: int, horizon: int) -> list[list[str]]:
        tokenizer = backbone.tokenizer
        groups = [PromptGroup(tokenizer(prompt)["input_ids"]) for prompt in prompts]
        # Each call has a random stream of its own: a run may start at any call.
        generator = torch.Generator(backbone.device)
        generator.manual_seed(derive_seed(seed, "context", *prompts))
        with torch.no_grad(), reader.use_adapters(None):
            ids_1MT, mask_1MT = sample_under_grammar(
                reader,
                reader.prefill(reader.pack([groups])),
                NumberGrammar(tokenizer, horizon, tokenizer.eos_token_id),
                SamplingSettings(
                    samples=count,
                    max_new_tokens=_TOKENS_PER_VALUE * horizon,
                    temperature=1.0,
                    stop_tokens=[tokenizer.eos_token_id],
                    generators=[generator],
                ),
            )
        texts = [
            tokenizer.decode(ids_T[mask_T.bool()], skip_special_tokens=True)
            for ids_T, mask_T in zip(ids_1MT[0], mask_1MT[0], strict=True)
        ]
        return [texts[start : start + count] for start in range(0, len(texts), count)]

    return write


def write_by_endpoint(transport: Transport, model: str) -> Write:
    """Return a writer that sends one request per answer to an OpenAI-compatible endpoint."""

    def ask(prompt: str, horizon: int) -> str:
        answer = transport(
            {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "temperature": 1.0,
                "max_tokens": _TOKENS_PER_VALUE * horizon,
            }
        )
        return str(read_content(answer, f"endpoint:{model}", DataError) or "")

    def write(prompts: Sequence[str], count: int, horizon: int) -> list[list[str]]:
        return [[ask(prompt, horizon) for _ in range(count)] for prompt in prompts]

    return write


def keep_answers(write: Write, file: Path) -> Write:
    """Return a writer that answers as ``write`` does, and keeps the answers in a file."""

    def ask(prompts: Sequence[str], count: int, horizon: int) -> list[list[str]]:
        question = hash_text(json.dumps([list(prompts), count, horizon]))
        kept = ask_once(file, [question], lambda _: [write(prompts, count, horizon)])
        return list(kept[question])

    return ask


def run_context(
    tasks: Sequence[ContextTask],
    write: Write | None,
    *,
    model: str = "",
    samples: int = 5,
    seed: int = 0,
    facts: Mapping[str, Any],
    log: logging.Logger,
) -> pl.DataFrame:
    """Score the forecast from numbers, the reader, and the paths of both, by source of the text.

    An answer that cannot be read is replaced by a path from the numbers, as a forecaster would do.
    ``tasks`` are the instances of a task one after the other. ``write`` answers each prompt with at
    least two ``samples`` by ``model``; without it only the forecast from numbers is scored.
    ``facts`` are further columns. DataError if an endpoint's reply holds no answer.
    """
    scores: dict[str, list[float]] = {NUMBERS: [], READER: [], BOTH: []}
    unread: list[float] = []
    for name, group in groupby(tasks, key=lambda task: task.name):
        instances = list(group)
        answers: Sequence[Sequence[str]] = [()] * len(instances)
        if write:
            horizon = max(len(task.truth_H) for task in instances)
            answers = write(list(map(write_prompt, instances)), samples, horizon)
        for task, texts in zip(instances, answers, strict=True):
            rng = np.random.default_rng(derive_seed(seed, "numbers", name, task.seed))
            numbers_SH = sample_from_numbers(task, PATHS, rng)
            scores[NUMBERS].append(score_paths(task, numbers_SH))
            if write:
                read = [read_answer(text, len(task.truth_H)) for text in texts]
                pairs = zip(numbers_SH, read, strict=False)
                reader_SH = np.stack([path if answer is None else answer for path, answer in pairs])
                both_SH = np.concatenate([reader_SH, numbers_SH[-samples:]])
                scores[READER].append(score_paths(task, reader_SH))
                scores[BOTH].append(score_paths(task, both_SH))
                unread.append(float(np.mean([answer is None for answer in read])))
        log.info(f"{len(scores[NUMBERS])} of {len(tasks)} tasks: {name}")

    shared = dict(facts) | {"seed": seed}
    numeric = shared | {"arm": NUMBERS, "model": "", "samples": PATHS}
    rows = _average_by_source(tasks, scores[NUMBERS], None, numeric)
    for arm in (READER, BOTH) if write else ():
        of_arm = shared | {"arm": arm, "model": model, "samples": samples}
        rows += _average_by_source(tasks, scores[arm], unread, of_arm)
    return pl.DataFrame(rows, schema=CONTEXT_SCHEMA)


def _average_by_source(
    tasks: Sequence[ContextTask],
    scores: Sequence[float],
    unread: Sequence[float] | None,
    facts: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Return a row for each source that a task has: mean score, share of unread answers."""
    rows = []
    for source in SOURCES:
        chosen = [n for n, task in enumerate(tasks) if source in (ALL, *task.sources)]
        if not chosen:
            continue

        weights = [tasks[n].weight for n in chosen]
        measured = {
            "source": source,
            "n_tasks": len(chosen),
            "unread": None if unread is None else float(np.mean([unread[n] for n in chosen])),
            "score": float(np.average([scores[n] for n in chosen], weights=weights)),
        }
        rows.append(dict(facts) | measured)
    return rows


def write_context(results: Path, rows: pl.DataFrame) -> Path:
    """Write rows to ``context-is-key.csv``; they replace rows of the same arm, model and seed."""
    path = results / "context-is-key.csv"
    replace_own_rows(path, rows, ["arm", "model", "seed"])
    return path
