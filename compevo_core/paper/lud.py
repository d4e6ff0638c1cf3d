"""Logic Update Degree (LUD): how much an agent's logic really changed, and what that gained.

What belongs here: the paper's prompt of a judge, the verdict and its parser, the kinds of judges
(a local language model, a remote endpoint, a rule for slots), all at temperature 0 (paper F.5,
F.6), and the file that keeps verdicts; the magnitude Delta, the rubric score RIUS and the gate
between them (paper F.2), the gain of every update by LUD, the agreement of two judges (paper F.4),
measuring a finished run and its rows (paper 5.6). What does not: HTTP (a transport is passed in).

A judge sees a pair of logics and nothing else: no method, agent, round or score. It is never asked
twice about the same pair: endpoints cost money, and measuring a run again must give the same
numbers. An embedding moves even if a text is merely reworded, so its distance counts only if a
judge marks at least one structural change.

The paper correlates the LUD of an update with the error that it saves. Here both logics of an
update are scored on the same validation windows: different windows would compare days, not logics.
The round's own windows would not do, since there the new logic is the best of its group. Updates
that keep the text have no LUD and no gain and are left out of the correlation. With them, and with
gains on the round's own windows, it is "significant" in three of four runs of equally good logics.

Shapes: N logic pairs, T texts or tokens of the longest verdict, D embedding size, V the four
possible verdicts, W vocabulary.
"""

import dataclasses
import functools
import itertools
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from compevo_core.agents.logics import SlotLogic, read_slots
from compevo_core.agents.prompts import clean_text, open_chat
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import BackboneConfig
from compevo_core.data.arrays import FloatArray
from compevo_core.errors import CompEvoError, DataError
from compevo_core.evaluation.result_rows import replace_own_rows
from compevo_core.lm.encoder import Encoder
from compevo_core.lm.model_sources import Transport, read_content
from compevo_core.paper.declared import read_columns, read_declared
from compevo_core.runtime.files import ask_once, hash_text, write_atomically, write_text
from compevo_core.training.round_record import RoundRecord
from compevo_core.training.run_folder import RunFolder

if TYPE_CHECKING:
    from compevo_core.lora.backbone import Backbone

log = logging.getLogger(__name__)
SYSTEM_PROMPT, USER_PROMPT = (read_declared("judge_prompt")[turn] for turn in ("system", "user"))
LOGIC_CHARACTERS = 4000  # longest logic that a judge is shown; a longer one is cut
LogicPair = tuple[str, str]  # an agent's logic in the round before, and its logic now
# Identifies the prompt in result files.
PROMPT_HASH = hash_text(f"{SYSTEM_PROMPT}\n{USER_PROMPT}")[:16]


class JudgeReplyError(CompEvoError):
    """A judge's answer is not the JSON object that the prompt asks for."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class JudgeVerdict:
    """Two binary indicators of one logic pair (paper F.3); JudgeReplyError for another number."""

    strategy_shift: int  # 1 if the reasoning or the choice of news changed
    evidence_recombination: int  # 1 if causes are new or put together in another way

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # Not isinstance: JSON's true is an int to Python, and no answer to the prompt.
            if type(value) is not int or value not in (0, 1):
                raise JudgeReplyError(
                    f"{field.name} is {value!r}, not 0 or 1: the judge did not follow its prompt"
                )

    @property
    def rius(self) -> int:
        """The rubric score, s_1 + s_2 (appendix F.2)."""
        return self.strategy_shift + self.evidence_recombination

    def to_json(self) -> str:
        """Return the answer as the prompt shows it."""
        return json.dumps(dataclasses.asdict(self), indent=2)


# All possible answers; ties go to the first, which claims the least.
ANSWERS = tuple(JudgeVerdict(shift, evidence) for shift in (0, 1) for evidence in (0, 1))


class Judge(Protocol):
    """Gives one verdict on one logic pair."""

    @property
    def name(self) -> str:
        """Identifies model and settings in result rows and in the cache."""

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the verdict on the update from ``previous`` to ``current``."""


def build_judge_messages(previous: str, current: str) -> list[dict[str, str]]:
    """Return the chat of paper F.6 for one pair."""
    # Logics are written by a model: its special tokens could end the turn and start another.
    user = USER_PROMPT.format(
        logic_prev=clean_text(previous, LOGIC_CHARACTERS),
        logic_curr=clean_text(current, LOGIC_CHARACTERS),
    )
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": user}]


def parse_verdict(reply: str) -> JudgeVerdict:
    """Read a JSON object with exactly the two indicators; JudgeReplyError for anything else."""
    text = reply.strip()
    # Many models put JSON into a code fence even so: the answer is still whole.
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        text = text[text.index("\n") : -3].strip()

    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:  # a thousand brackets exhaust the parser's stack
        raise JudgeReplyError(
            f"not JSON: {reply[:200]!r}; choose a judge that answers in JSON"
        ) from error

    names = {field.name for field in dataclasses.fields(JudgeVerdict)}
    if not isinstance(values, dict) or set(values) != names:
        raise JudgeReplyError(
            f"expected an object with {sorted(names)}, got {reply[:200]!r}; choose another judge"
        )
    return JudgeVerdict(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EndpointJudge:
    """Any OpenAI-compatible chat endpoint."""

    model: str  # name of the model, as the endpoint knows it
    transport: Transport  # sends the request, with its key and retries

    @property
    def name(self) -> str:
        """``endpoint:<model>``."""
        return f"endpoint:{self.model}"

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Ask once, at temperature 0; JudgeReplyError if the answer holds no verdict."""
        # Temperature 0: the same pair gets the same verdict (paper F.5).
        body: dict[str, Any] = {
            "model": self.model,
            "temperature": 0,
            "messages": build_judge_messages(previous, current),
            "response_format": {"type": "json_object"},
        }
        answer = self.transport(body)
        reply = read_content(answer, self.name, JudgeReplyError)

        # A refusal comes as null, tool calls as a list: neither is a verdict.
        if not isinstance(reply, str):
            raise JudgeReplyError(
                f"{self.name}: the message holds no text (a refusal?): {str(answer)[:200]!r}"
            )
        return parse_verdict(reply)


@dataclasses.dataclass(frozen=True)
class LocalJudge:
    """A run's own frozen backbone, without adapters, loaded at the first question.

    It picks the likeliest of the four answers, so it always replies. A small model leans towards
    one answer for every pair (the prompt shows one): report its agreement with a second judge next
    to any LUD made with it.
    """

    config: BackboneConfig  # the backbone section of the run's configuration

    @property
    def name(self) -> str:
        """``local:<model>/<dtype>``."""
        return f"local:{self.config.name_or_path}/{self.config.dtype}"

    @functools.cached_property
    def backbone(self) -> "Backbone":
        """The model and its tokenizer."""
        # Loading takes gigabytes; a second measurement finds every verdict in the cache.
        from compevo_core.lm.backbone import load_backbone

        return load_backbone(self.config)

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the likeliest of the four answers; DataError if the pair exceeds the context."""
        scores = self.log_likelihoods(previous, current)
        return max(ANSWERS, key=lambda verdict: scores[verdict])

    def log_likelihoods(self, previous: str, current: str) -> dict[JudgeVerdict, float]:
        """Return the summed log-probability of every answer's tokens after the prompt, in nats."""
        import torch

        model, tokenizer = self.backbone.model, self.backbone.tokenizer
        system, user = (turn["content"] for turn in build_judge_messages(previous, current))
        # A template has written the special tokens already.
        prompt_ids = tokenizer(
            open_chat(system, user, tokenizer, gap="\n\n"),
            add_special_tokens=not getattr(tokenizer, "chat_template", None),
        )["input_ids"]
        answer_ids = [
            tokenizer(answer.to_json(), add_special_tokens=False)["input_ids"] for answer in ANSWERS
        ]
        longest = max(map(len, answer_ids))
        room = getattr(model.config, "max_position_embeddings", None)
        if room is not None and (n_tokens := len(prompt_ids) + longest) > room:
            raise DataError(
                f"{self.name}: a pair needs {n_tokens} tokens, the model holds {room}: "
                "choose a judge with a longer context"
            )

        # Padding is to the right of every scored token, so that a causal model never sees it.
        device = model.device
        answers_VT = torch.tensor(
            [ids + [0] * (longest - len(ids)) for ids in answer_ids], device=device
        )
        is_scored_VT = torch.tensor(
            [[1.0] * len(ids) + [0.0] * (longest - len(ids)) for ids in answer_ids], device=device
        )

        with torch.no_grad():
            # The prompt is read once; its cache is shared by the four answers.
            prompt = model(
                torch.tensor([prompt_ids], device=device), use_cache=True, logits_to_keep=1
            )
            cache = prompt.past_key_values
            cache.batch_repeat_interleave(len(ANSWERS))
            rest = model(answers_VT[:, :-1], past_key_values=cache, use_cache=True)

        # The prompt's last position predicts the first token, each answer token the next one.
        first_V1W = prompt.logits[:, -1:].expand(len(ANSWERS), -1, -1)
        logits_VTW = torch.cat([first_V1W, rest.logits], dim=1).float()
        picked_VT = logits_VTW.log_softmax(-1).gather(-1, answers_VT[..., None]).squeeze(-1)
        return dict(zip(ANSWERS, (picked_VT * is_scored_VT).sum(-1).tolist(), strict=True))


class SlotJudge:
    """Compares two logics with slots by rule: which slots changed (the rubric of appendix F).

    Such a logic states which news it looks for and what they would mean, so no opinion is needed.

    The strategy shifts with a topic, the region, the time of day or the sign; another verb is a
    rewording. Evidence is recombined by a topic that the logic did not name before.
    """

    name = "rule:slots"

    def judge(self, previous: str, current: str) -> JudgeVerdict:
        """Return the verdict on an update; JudgeReplyError if a logic is free text."""
        before, after = _read_slots(previous), _read_slots(current)
        return JudgeVerdict(
            strategy_shift=int(before[1:] != after[1:]),
            evidence_recombination=int(not set(after.topics) <= set(before.topics)),
        )


def _read_slots(logic: str) -> SlotLogic:
    slots = read_slots(logic)
    if slots is None:
        raise JudgeReplyError(
            f"no slots in {logic[:80]!r}: a logic in free text needs a language model as judge"
        )
    return slots


def hash_question(name: str, previous: str, current: str) -> str:
    """Return a judge's name and the sha256 of the exact messages that it gets."""
    # The messages, not the two logics: an old verdict is no answer to a new prompt.
    messages = json.dumps(build_judge_messages(previous, current), sort_keys=True)
    return f"{name} {hash_text(messages)}"


def judge_pairs(judge: Judge, pairs: Sequence[LogicPair], cache: Path) -> list[JudgeVerdict | None]:
    """Return verdicts for (previous, current) pairs, in order; DataError if the cache is torn.

    ``cache`` is the file of a run's verdicts: what it holds is not asked again. A reply without a
    verdict gives None, and its pair is asked again the next time. Any other error ends the work.
    """
    by_question = {hash_question(judge.name, *pair): pair for pair in pairs}

    def ask(questions: list[str]) -> list[dict[str, int] | None]:
        (question,) = questions
        try:
            return [dataclasses.asdict(judge.judge(*by_question[question]))]
        except JudgeReplyError as error:
            log.warning("%s gave no verdict, which is counted: %s", judge.name, error)
            return [None]

    answers = ask_once(cache, by_question, ask)
    try:
        known = {key: value and parse_verdict(json.dumps(value)) for key, value in answers.items()}
    except JudgeReplyError as error:
        raise DataError(f"{cache}: {error}; delete it, and its pairs are judged again") from error
    return [known[hash_question(judge.name, *pair)] for pair in pairs]


def build_judges(config: RunConfig, endpoint: EndpointJudge | None) -> list[Judge]:
    """Return every judge that a run can have: its backbone, the rule for slots, the endpoint."""
    # Agents that read with a ridge have no backbone that could judge them.
    has_backbone = config.forecast.decoder != "linear"
    judges: list[Judge] = [LocalJudge(config.backbone)] if has_backbone else []
    if config.evolution.form == "slots":
        judges.append(SlotJudge())
    if endpoint is not None:
        judges.append(endpoint)
    return judges


LUD_SCHEMA = read_columns("lud_of_run")
# The paper prints regime averages 0.09, 0.44 and 0.76 but no edges; these are the midpoints.
REGIME_EDGES = (0.265, 0.60)
GAIN_SCHEMA = read_columns("lud_gains")
DEFAULT_PAIRS = 8  # updates of an agent that a judge sees, unless another number is asked for
Logics = Sequence[Sequence[str]]  # logics by round and agent
JUDGES, GAINS = "judges", "gains"
LUD_RESULT_SCHEMA = read_columns("lud")
WINDOWS = "validation"  # that gains are measured on; older rows have the reward windows
Vectors = Mapping[str, FloatArray]  # embeddings (D,) by text
# Returns the rewards (A, 2) of each agent's old and new logic on windows that chose neither, while
# all agents use the logics of the first argument (``CompEvoForecaster.score_logics``).
ScoreLogics = Callable[[Sequence[str], Sequence[LogicPair]], FloatArray]


def embed_texts(texts: Iterable[str], encoder: Encoder) -> dict[str, FloatArray]:
    """Return the embedding of every distinct text: most logics occur in many rounds."""
    distinct = sorted(set(texts))
    vectors_TD = np.asarray(encoder.encode(distinct), dtype=np.float64)
    return dict(zip(distinct, vectors_TD, strict=True))


def update_magnitude(previous: npt.ArrayLike, current: npt.ArrayLike) -> FloatArray:
    """Return Delta = 1 - cosine of two embeddings (N, D), (N,) in [0, 2] (appendix F.2).

    DataError if an embedding is zero or not finite.
    """
    before_ND = np.asarray(previous, dtype=np.float64)
    after_ND = np.asarray(current, dtype=np.float64)
    norms_N = np.linalg.norm(before_ND, axis=1) * np.linalg.norm(after_ND, axis=1)
    if not np.isfinite(norms_N).all() or (norms_N == 0).any():
        raise DataError(
            "an embedding is zero or not finite: a logic was empty or its encoder failed"
        )

    # Clipped: rounding can push the cosine of two equal vectors past 1, and Delta below 0.
    cosine_N = (before_ND * after_ND).sum(axis=1) / norms_N
    return np.asarray(np.clip(1.0 - cosine_N, 0.0, 2.0))


def logic_update_degree(delta: npt.ArrayLike, rius: npt.ArrayLike) -> FloatArray:
    """Return LUD = Delta where RIUS >= 1, else 0, for N magnitudes and scores (appendix F.2)."""
    magnitude, score = np.asarray(delta, dtype=np.float64), np.asarray(rius)
    return np.asarray(np.where(score >= 1, magnitude, 0.0))


def build_lud_table(
    logics: Sequence[Sequence[str]],
    vectors: Vectors,
    judge: Callable[[list[LogicPair]], Sequence[JudgeVerdict | None]],
    *,
    judged_rounds: Collection[int] | None = None,
) -> pl.DataFrame:
    """Return the LUD of every agent's every update, as rows of ``LUD_SCHEMA``.

    ``logics`` are by round and agent; the row of a round compares it with the round before.
    ``judge`` returns the verdict on each pair of the ``judged_rounds`` (None: all), if any. An
    unchanged text is not sent to the judge, flagged ``unchanged_text``, and has Delta and LUD 0.
    Rows that are not judged, or have no verdict, have only a Delta; the rest is null.
    """
    if len({len(row) for row in logics}) > 1:
        raise DataError(
            "rounds have different numbers of agents: give one logic per agent and round"
        )
    keys = [(t, i) for t in range(1, len(logics)) for i in range(len(logics[t]))]
    if not keys:
        return pl.DataFrame(schema=LUD_SCHEMA)

    pairs = [(logics[t - 1][i], logics[t][i]) for t, i in keys]
    is_unchanged = [previous == current for previous, current in pairs]
    delta_N = update_magnitude([vectors[a] for a, _ in pairs], [vectors[b] for _, b in pairs])
    delta_N[is_unchanged] = 0.0  # exactly: the encoder's rounding is not a change

    # One call for all changed pairs: a judge can then ask about each distinct one once.
    is_judged = [judged_rounds is None or t in judged_rounds for t, _ in keys]
    known = list(zip(pairs, is_unchanged, is_judged, strict=True))
    answers = iter(judge([pair for pair, unchanged, judged in known if judged and not unchanged]))

    rows: list[dict[str, Any]] = []
    for (t, i), delta, unchanged, judged in zip(
        keys, delta_N.tolist(), is_unchanged, is_judged, strict=True
    ):
        rows.append({"round": t, "agent": i, "delta": delta, "unchanged_text": unchanged})
        # Without a verdict the rest is null: it must not turn into a zero.
        verdict = (JudgeVerdict(0, 0) if unchanged else next(answers)) if judged else None
        if verdict is not None:
            lud = float(logic_update_degree(delta, verdict.rius))
            rows[-1] |= dataclasses.asdict(verdict) | {"rius": verdict.rius, "lud": lud}
    return pl.DataFrame(rows, schema=LUD_SCHEMA)


def measure_gains(
    rounds: Sequence[RoundRecord], updates: Iterable[int], score: ScoreLogics
) -> pl.DataFrame:
    """Return the scaled error saved by the updates to some rounds, as rows of ``GAIN_SCHEMA``."""
    rows = []
    for number in updates:
        old, new = rounds[number - 1].logics, rounds[number].logics
        reward_A2 = score(old, list(zip(old, new, strict=True)))
        gain_A = np.diff(reward_A2, axis=1)[:, 0]
        # Equal texts have equal rewards, but for rounding.
        rows += [(number, a, gain if old[a] != new[a] else 0.0) for a, gain in enumerate(gain_A)]
    return pl.DataFrame(rows, schema=GAIN_SCHEMA, orient="row")


def summarize_gains(table: pl.DataFrame, gains: pl.DataFrame) -> dict[str, Any]:
    """Return how one judge's LUD and the gains correlate, as plain values for ``lud.json``.

    A regime is [its edge, the next edge); an empty one has no means. Updates that did not change
    the text do not enter the correlation.
    """
    # By round and agent, not by position: a judge has not scored every update.
    both = table.drop_nulls("lud").join(gains, on=["round", "agent"], maintain_order="left")
    lud_N, gain_N = both["lud"].to_numpy(), both["gain"].to_numpy()
    is_changed_N = ~both["unchanged_text"].fill_null(value=False).to_numpy()
    r, p = pearson(lud_N[is_changed_N], gain_N[is_changed_N])

    bounds = (0.0, *REGIME_EDGES, math.inf)
    # Half open, so that every update falls into exactly one regime.
    members = [(lud_N >= low) & (lud_N < high) for low, high in itertools.pairwise(bounds)]
    return {
        "n": both.height,
        "n_changed": int(is_changed_N.sum()),
        "pearson_r": r,
        "pearson_p": p,
        "regimes": ["low", "medium", "high"],
        "regime_edges": list(REGIME_EDGES),
        "n_by_regime": [int(is_inside.sum()) for is_inside in members],
        "mean_lud_by_regime": [float(lud_N[m].mean()) if m.any() else None for m in members],
        "mean_gain_by_regime": [float(gain_N[m].mean()) if m.any() else None for m in members],
    }


def measure_agreement(table: pl.DataFrame, other: pl.DataFrame) -> dict[str, Any]:
    """Return how far two judges agree on the changed updates that both scored (appendix F.4).

    The numbers are Cohen's kappa of the gate RIUS >= 1 and of both indicators, and Pearson's r of
    the two LUD.
    """
    # Unchanged texts are not a judgement: both tables hold the same zeros for them.
    both = table.join(other, on=["round", "agent"], suffix="_other", maintain_order="left").filter(
        ~pl.col("unchanged_text")
        & pl.col("rius").is_not_null()
        & pl.col("rius_other").is_not_null()
    )

    return {
        "n": both.height,
        "kappa_gate": cohens_kappa(both["rius"] >= 1, both["rius_other"] >= 1),
        **{
            f"kappa_{name}": cohens_kappa(both[name], both[f"{name}_other"])
            for name in ("strategy_shift", "evidence_recombination")
        },
        # The magnitudes are the same for both, so that only the gates can make a difference.
        "pearson_lud": pearson(both["lud"], both["lud_other"])[0],
    }


def pearson(first: npt.ArrayLike, second: npt.ArrayLike) -> tuple[float | None, float | None]:
    """Return Pearson's r of two samples (N,) and its two-sided p-value; None where undefined."""
    from scipy.stats import pearsonr

    x = np.asarray(first, dtype=np.float64)
    y = np.asarray(second, dtype=np.float64)
    # Two points are always on a line, and a constant has no direction to agree with.
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None, None
    result = pearsonr(x, y)
    return float(result.statistic), float(result.pvalue)


def cohens_kappa(first: npt.ArrayLike, second: npt.ArrayLike) -> float | None:
    """Return Cohen's kappa (1: agree, 0: chance) of labels (N,); None if both give one label."""
    from sklearn.metrics import cohen_kappa_score  # takes a second to import

    # With a single label scikit-learn would divide by zero and warn.
    if len(np.union1d(first, second)) < 2:
        return None
    return float(cohen_kappa_score(first, second))


def measure_lud(
    run: Path,
    judges: Sequence[Judge],
    encoder: Encoder,
    *,
    pairs: int = DEFAULT_PAIRS,
    score: ScoreLogics | None = None,
) -> dict[str, Any]:
    """Measure how much each agent's logic changed; write ``lud.json`` and ``lud.csv``.

    An update is the step from a round that rewrote logics to the next one; rounds that rewrote
    nothing have no row. Every update has a Delta. Each judge sees the same updates of an agent, at
    most ``pairs``, evenly spaced over the rounds. Verdicts are kept in ``verdicts.json``: a second
    call asks nothing. Gains need ``score``.

    Returns the content of ``lud.json``; numbers that do not exist are None. DataError if there is
    no finished run in ``run``; CheckpointMismatch if its model was altered.
    """
    # torch, only when a run is measured
    from compevo_core.training.ensemble import read_config, read_model_manifest

    folder = RunFolder(run)
    rounds = folder.read_rounds()
    logics = [record.logics for record in rounds]
    # What a round wrote is used from the next round on, whose row describes the update.
    updates = [t for t in range(1, len(rounds)) if rounds[t - 1].evolved]
    # The same rounds for every judge and agent: means over different rounds cannot be compared.
    judged_rounds = [updates[number - 1] for number in space_rounds(len(updates), pairs)]
    vectors = embed_texts((text for row in logics for text in row), encoder)

    tables = [
        build_lud_table(
            logics,
            vectors,
            functools.partial(judge_pairs, judge, cache=folder.verdicts_file),
            judged_rounds=judged_rounds,
        ).filter(pl.col("round").is_in(updates))
        for judge in judges
    ]

    gains = pl.DataFrame(schema=GAIN_SCHEMA)
    if score is not None:
        gains = measure_gains(rounds, judged_rounds, score)
    played = [logics[t] for t in (0, *updates)]
    names = [judge.name for judge in judges]
    summary = {
        "run": folder.name,
        "config_hash": read_config(run).hash,
        "artifact_hash": read_model_manifest(run)["hash"],
        "encoder": encoder.name,
        "prompt_hash": PROMPT_HASH,
        "rounds": len(logics),
        "updates_an_agent": len(updates),
        "judged_rounds": judged_rounds,
        "agents": [_summarize_agent(agent, played, vectors) for agent in range(len(logics[0]))],
        "judges": [
            _summarize_judge(name, table, judged_rounds) | {"gains": summarize_gains(table, gains)}
            for name, table in zip(names, tables, strict=True)
        ],
        "agreement": [
            {"first": names[a], "second": names[b]} | measure_agreement(tables[a], tables[b])
            for a, b in itertools.combinations(range(len(judges)), 2)
        ],
    }

    # Every row names what made it: rows of several runs are read together.
    about = {"run": folder.name, "encoder": encoder.name, "prompt_hash": PROMPT_HASH}
    rows = [
        table.with_columns(
            judge=pl.lit(name), **{key: pl.lit(value) for key, value in about.items()}
        )
        for name, table in zip(names, tables, strict=True)
    ]
    # The summary last: if it exists, so do the rows.
    write_atomically(folder.lud_rows_file, pl.concat(rows).write_csv)
    write_text(folder.lud_summary_file, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def space_rounds(updates: int, count: int) -> list[int]:
    """Return at most ``count`` of the numbers 1 to ``updates``, evenly spaced; one is the last."""
    if count >= updates:
        return list(range(1, updates + 1))

    # From the last to the first, so that ties round as they always did: otherwise other rounds
    # would be judged, and cached verdicts of earlier measurements would be useless.
    return sorted({round(x) for x in np.linspace(updates, 1, count).tolist()})


def measure_change(before: str, after: str, vectors: Vectors) -> float:
    """Return Delta of one update; equal texts have exactly 0, even if the encoder rounds."""
    if before == after:
        return 0.0
    return float(update_magnitude([vectors[before]], [vectors[after]])[0])


def _summarize_agent(agent: int, logics: Logics, vectors: Vectors) -> dict[str, Any]:
    """Measure one agent's Delta from its first logic to its last, and from update to update."""
    texts = [row[agent] for row in logics]
    steps = list(itertools.pairwise(texts))
    deltas = [measure_change(before, after, vectors) for before, after in steps]
    return {
        "agent": agent,
        "first_to_last": measure_change(texts[0], texts[-1], vectors),
        "mean_delta": float(np.mean(deltas)) if deltas else None,
        "unchanged": sum(before == after for before, after in steps),
    }


def _summarize_judge(
    name: str, table: pl.DataFrame, judged_rounds: Sequence[int]
) -> dict[str, Any]:
    judged = table.filter(pl.col("round").is_in(list(judged_rounds)))
    asked = judged.filter(~pl.col("unchanged_text"))

    # Failed replies are counted and left out of the means: as zeros they would lower every LUD.
    by_agent = (
        judged.drop_nulls("rius")
        .group_by("agent")
        .agg(
            pl.len().alias("pairs"),
            pl.col("unchanged_text").sum().alias("unchanged"),
            pl.col("strategy_shift", "evidence_recombination", "rius", "lud")
            .mean()
            .name.prefix("mean_"),
        )
        .sort("agent")
    )
    return {
        "name": name,
        "asked": asked.height,
        "failures": asked.get_column("rius").null_count(),
        "agents": by_agent.to_dicts(),
    }


def write_lud_rows(results: Path, summary: Mapping[str, Any], dataset: str) -> Path:
    """Write the rows of ``lud.json`` to ``lud-<dataset>.csv``, in place of its model's."""
    facts = {
        "dataset": dataset,
        "windows": WINDOWS,
        **{name: summary[name] for name in ("encoder", "config_hash", "artifact_hash")},
    }

    rows: list[dict[str, Any]] = [
        {
            "table": JUDGES,
            "subject": f"{pair['first']} / {pair['second']}",
            "n": pair["n"],
            "kappa": pair["kappa_gate"],
            "pearson_r": pair["pearson_lud"],
        }
        for pair in summary["agreement"]
    ]

    for judge in summary["judges"]:
        gains, of_judge = judge["gains"], {"table": GAINS, "judge": judge["name"]}
        by_regime = ("regimes", "n_by_regime", "mean_lud_by_regime", "mean_gain_by_regime")
        for values in zip(*(gains[name] for name in by_regime), strict=True):
            row = dict(zip(("subject", "n", "mean_lud", "error_gain"), values, strict=True))
            rows.append(of_judge | row)
        overall = {
            "n": gains["n_changed"],
            "pearson_r": gains["pearson_r"],
            "p_value": gains["pearson_p"],
        }
        rows.append(of_judge | {"subject": "changed"} | overall)

    path = results / f"lud-{dataset}.csv"
    frame = pl.DataFrame([row | facts for row in rows], schema=LUD_RESULT_SCHEMA)
    replace_own_rows(path, frame, ["artifact_hash"])
    return path
