"""Read news linearly: a ridge from what a logic retrieves to what the agent's base misses.

A language model tuned for a few hundred rounds learns less from the embedding of a sentence than a
ridge in closed form does. So the ridge reads first, and the adapters correct its residuals. It is
refitted for every logic that an agent tries, on all train windows.

Each part of the day that articles name has weights of its own, which vary with the season if train
covers a whole year. Embeddings contain little of numbers, so the numbers of a text are separate
features, by entity and by the word before or after.

What belongs here: these fits and their reading of a window. What does not: which articles a logic
retrieves (``agents.retrieval``).

The reading of a train window is held out: it comes from a fit on other parts of train. The articles
of a part of the day are averaged and centred, and a window without articles is read as zero.

Shapes: N train windows, A agents, M articles, G parts of the day, E article embedding, F numbers, X
all that a window says (G blocks of E, then F), Z the same with the blocks by season (3 x G blocks
of E, then F), K components, H horizon.
"""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from compevo_core.agents.decoders import ForecastExample, RetrievedArticle, mix_bases
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.ridge import PENALTIES, RidgeFit, fit_ridge, measure_later
from compevo_core.config.sections import MemberConfig
from compevo_core.data.arrays import BoolArray, FloatArray, IntArray, mean_known
from compevo_core.data.splits import leave_out_blocks
from compevo_core.data.view import DEFAULT_STEPS, WindowView

FOLDS = 5  # consecutive parts of train, each of which is read by a fit on the others

PARTS = ("", "morning", "afternoon", "evening", "night")
"""Parts of the day as articles name them; "" is for an article that names none."""

MOST_NUMBERS = 32  # columns of numbers that a fit reads at most, those found in most windows

_SYNONYMS = {"overnight": "night", "noon": "afternoon", "midday": "afternoon", "tonight": "night"}
_PART = re.compile(rf"\b({'|'.join([*PARTS[1:], *_SYNONYMS])})\b")
# A number and the words around it in the same sentence: "chance of rain: 60 % in the east". A
# hyphen within a word is not a minus.
_NUMBER = re.compile(
    r"(?:([a-z]+)[^a-z0-9.;]*?)?(?<![\d.,])((?:(?<!\S)-)?\d+(?:\.\d+)?)(?:\s*[%°]?\s*([a-z]+))?"
)

# Principal components of the embeddings that are read: for all articles, for those of a part of the
# day, and for what changes with the season. The others have almost no variance.
_COMPONENTS, _COMPONENTS_OF_PART, _COMPONENTS_OF_SEASON = 128, 64, 16
_SEASONAL = 0.5  # scale of seasonal columns relative to the others, chosen on held-out windows
_LEAST_SHARE = 0.1  # of the windows with articles that must have a number for it to be read
_MOST_DRIFT = 0.8  # rank correlation with time above which a number is not read
_MOST_DISTINCT = 0.9  # different values per article above which a number hardly ever repeats
_MONTHS, _DAYS_OF_YEAR = 12, 365.25
_LEAST_KNOWN = 0.5  # share of known steps in a window to be fitted on; the rest is interpolated


_Made = TypeVar("_Made")

_Columns = tuple[int, FloatArray, FloatArray]
"""What is fitted of a block of Z: its start, basis (E, K) and values (N, K)."""


class Words(NamedTuple):
    """What the words of a title state."""

    part: int  # of the day, a position in :data:`PARTS`
    numbers: tuple[tuple[int, float], ...]  # each by its key


class Evidence(NamedTuple):
    """What a logic retrieved for N windows, by window; NaN where there are no articles."""

    parts_P: npt.NDArray[np.intp]  # of the day that articles name; the first stands for all
    words_NPE: FloatArray  # means or sums of embeddings
    numbers: Sequence[Mapping[int, float]]  # of each window, by key


@lru_cache(maxsize=100_000)  # titles, each as one entity reads it
def read_words(title: str, entity: str) -> Words:
    """Return the first part of the day that a title names, and its numbers.

    A number's key is a hash of entity (a hot day moves one series and not another), part, side and
    the word on that side. It is the same in every process, so that a fit can be sealed.
    """
    text = title.lower()
    match = _PART.search(text)
    part = PARTS.index(_SYNONYMS.get(match[1], match[1])) if match else 0
    numbers = []
    for before, value, after in _NUMBER.findall(text):
        for side, word in (("before", before), ("after", after)):
            if word:
                digest = hashlib.sha256(f"{entity} {part} {side} {word}".encode()).digest()
                numbers.append((int.from_bytes(digest[:7]) + 1, float(value)))  # 0 is no key
    return Words(part, tuple(numbers))


def gather_evidence(
    words: Sequence[Sequence[Words]], embeddings_ME: npt.NDArray[np.float32], *, adds: bool = False
) -> Evidence:
    """Return the means of articles by window, part of the day and number; with ``adds`` their sums.

    ``embeddings_ME`` holds the articles of all windows, one window after the other.
    """
    counts_N = np.array([len(of_window) for of_window in words])
    starts_N = counts_N.cumsum() - counts_N
    window_M = np.repeat(np.arange(len(words)), counts_N)
    parts_M = np.array([article.part for of_window in words for article in of_window], dtype=int)
    parts_P = np.union1d([0], parts_M).astype(int)
    unite = np.sum if adds else np.mean

    words_NPE = np.full((len(words), len(parts_P), embeddings_ME.shape[1]), np.nan)
    # The first part holds all articles, the others only those of a part of the day.
    for count in set(counts_N.tolist()) - {0}:
        windows = np.flatnonzero(counts_N == count)
        rows = starts_N[windows][:, None] + np.arange(count)
        words_NPE[windows, 0] = unite(embeddings_ME[rows], axis=1)
    for place, part in enumerate(parts_P[1:], 1):
        for n, rows in groupby(np.flatnonzero(parts_M == part), window_M.__getitem__):
            words_NPE[n, place] = unite(embeddings_ME[list(rows)], axis=0)

    numbers: list[dict[int, float]] = []  # the mean of each key
    for of_window in words:
        values: dict[int, list[float]] = {}
        for key, value in chain.from_iterable(article.numbers for article in of_window):
            values.setdefault(key, []).append(value)
        numbers.append({key: sum(of_key) / len(of_key) for key, of_key in values.items()})
    return Evidence(parts_P, words_NPE, numbers)


@dataclasses.dataclass(frozen=True, eq=False)
class Design:
    """What a logic retrieves for N train windows, as columns that a ridge reads."""

    keys_F: IntArray  # zero where there are fewer numbers
    bounds_2F: FloatArray  # lowest and highest number of each key
    mean_X: FloatArray
    is_read_N: BoolArray  # whether there are articles
    bases: Sequence[tuple[int, FloatArray]]  # of each block of columns: its start in Z, (E, K)
    x_NK: FloatArray  # zero in windows without articles


@dataclasses.dataclass(frozen=True, eq=False)
class LinearFit:
    """How an agent reads what one logic retrieves; zero where there is no evidence."""

    keys_F: IntArray  # zero where there are fewer numbers
    bounds_2F: FloatArray  # lowest and highest number of train
    mean_X: FloatArray
    weights_ZH: npt.NDArray[np.float32]
    member: MemberConfig
    # (H,) by train window; a window without articles is absent
    held_out: Mapping[str, FloatArray] = dataclasses.field(default_factory=dict)

    def read(self, view: WindowView, articles: Sequence[RetrievedArticle]) -> FloatArray:
        """Return the scaled reading (H,) of a window's articles, held out for train windows."""
        held_out_H = self.held_out.get(view.window_id)
        return self.predict(view, articles) if held_out_H is None else held_out_H

    def predict(self, view: WindowView, articles: Sequence[RetrievedArticle]) -> FloatArray:
        """Return the scaled reading (H,) by the fit on all of train; missing evidence is 0."""
        words = [read_words(article.title, view.entity) for article in articles]
        embeddings_ME = np.stack([article.embedding for article in articles])
        adds = self.member.reads == "everything"
        evidence = gather_evidence([words], embeddings_ME, adds=adds)
        values_X = np.full_like(self.mean_X, np.nan)
        by_part_GE = values_X[:-MOST_NUMBERS].reshape(len(PARTS), -1)
        by_part_GE[evidence.parts_P] = evidence.words_NPE[0]
        # Nothing was learnt outside the range of train.
        numbers_F = _list_numbers(evidence.numbers, self.keys_F)[0]
        values_X[-MOST_NUMBERS:] = np.clip(numbers_F, *self.bounds_2F)
        words_W, numbers_F = np.split(np.nan_to_num(values_X - self.mean_X), [-MOST_NUMBERS])
        offset_Z = np.concatenate([*(wave * words_W for wave in _list_waves([view])), numbers_F])
        return np.asarray(offset_Z @ self.weights_ZH)


class LinearReader(Protocol):
    """Finds the fit of a logic."""

    def find(self, agent: int, logic: str) -> LinearFit:
        """Return how an agent reads what a logic retrieves."""


class SealedReadings:
    """The fits of the logics that the agents of a sealed model play, in ``arrays`` by stored name.

    ``members`` are the settings of each local agent, by its number.
    """

    def __init__(
        self,
        members: Mapping[int, MemberConfig],
        article_size: int,
        horizon: int = DEFAULT_STEPS,
    ) -> None:
        self._members = members
        agents, words = len(members), len(PARTS) * article_size
        rows = 3 * words + MOST_NUMBERS
        self.arrays: dict[str, npt.NDArray[Any]] = {
            "keys_AF": np.zeros((agents, MOST_NUMBERS), dtype=np.int64),
            "bounds_A2F": np.zeros((agents, 2, MOST_NUMBERS)),
            "mean_AX": np.zeros((agents, words + MOST_NUMBERS), dtype=np.float32),
            "weights_AZH": np.zeros((agents, rows, horizon), dtype=np.float32),
        }

    def find(self, agent: int, logic: str) -> LinearFit:
        """Return the agent's fit; it has only one logic."""
        del logic
        row = list(self._members).index(agent)
        keys_F, bounds_2F, mean_X, weights_ZH = (array[row] for array in self.arrays.values())
        member, mean_X = self._members[agent], mean_X.astype(np.float64)
        return LinearFit(keys_F, bounds_2F, mean_X, weights_ZH, member)

    def store(self, reader: LinearReader, logics: Sequence[str]) -> None:
        """Take over the fits of the logics that the local agents play."""
        for row, (agent, logic) in enumerate(zip(self._members, logics, strict=True)):
            fit = reader.find(agent, logic)
            values = fit.keys_F, fit.bounds_2F, fit.mean_X, fit.weights_ZH
            for array, value in zip(self.arrays.values(), values, strict=True):
                array[row] = value


class FittedReader:
    """Fits a logic when it is first needed, on the train windows of a run.

    ``is_own_AN`` is which windows count in each agent's own error, on which its reader is fitted;
    all unless given.
    """

    def __init__(
        self,
        examples: Sequence[ForecastExample],
        retriever: NewsRetriever,
        members: Sequence[MemberConfig],
        mix_AP: FloatArray,
        is_own_AN: BoolArray | None = None,
        penalties: FloatArray = PENALTIES,
    ) -> None:
        """Take train windows with held-out base models, and the settings of all agents."""
        self._penalties = penalties
        self.retriever = retriever
        self.members = members
        self.views = [example.view for example in examples]
        self.truth_NH = np.stack(
            [example.truth_H for example in examples if example.truth_H is not None]
        )
        self.base_ANH = mix_bases(mix_AP, examples)
        self.is_known_N = is_known_enough(self.truth_NH)
        # News may begin late in train, and blocks without any could not judge a penalty.
        readable = [view for view in self.views if view.candidate_ids]
        self.blocks = list(leave_out_blocks(self.views, FOLDS, readable))
        if is_own_AN is None:
            is_own_AN = np.ones(self.base_ANH.shape[:2], dtype=bool)
        self.is_own_AN = is_own_AN
        # With less than a year of news, effects of one season would be applied to another.
        months = {view.calendar.day_of_year // 31 for view in readable}
        self._waves = _list_waves(self.views)[: 3 if len(months) == _MONTHS else 1]

        names = sorted({name for view in self.views for name in view.candidate_ids})
        # The directions along which the articles of train windows differ most.
        rows = retriever.pool.find_rows(names)
        embeddings_ME = retriever.pool.embeddings[rows].astype(np.float64)
        centred_ME = embeddings_ME - embeddings_ME.mean(0) if names else embeddings_ME
        _, vectors_EE = np.linalg.eigh(centred_ME.T @ centred_ME)
        self._components_EK = vectors_EE[:, ::-1]
        # Plain tables: a cache around a method would keep this object, and with it all of train,
        # in memory after its use.
        self._fits: dict[tuple[int, str], LinearFit] = {}
        self._designs: dict[tuple[int, str], Design] = {}

    def find(self, agent: int, logic: str) -> LinearFit:
        """Return how an agent by itself reads what a logic retrieves."""
        return _keep(self._fits, (agent, logic), self._fit)

    def design(self, agent: int, logic: str) -> Design:
        """Return what a logic of an agent retrieves, as columns."""
        return _keep(self._designs, (agent, logic), self._design)

    def _fit(self, agent: int, logic: str) -> LinearFit:
        design = self.design(agent, logic)
        missed_NH = interpolate(self.truth_NH - self.base_ANH[agent])
        usable_N = design.is_read_N & self.is_known_N & self.is_own_AN[agent]
        fit = fit_ridge(design.x_NK, missed_NH, self.blocks, usable_N, self._penalties)
        return self.make_fit(agent, design, fit)

    def make_fit(self, agent: int, design: Design, fit: RidgeFit) -> LinearFit:
        """Return a fit on a design's columns as an agent's, with what it reads in train windows."""
        rows = 3 * (len(design.mean_X) - MOST_NUMBERS) + MOST_NUMBERS
        weights_ZH = np.zeros((rows, fit.weights_KH.shape[1]), dtype=np.float32)
        end = 0
        for start, basis_EK in design.bases:
            end += basis_EK.shape[1]
            of_block_KH = fit.weights_KH[end - basis_EK.shape[1] : end]
            weights_ZH[start:][: len(basis_EK)] = basis_EK @ of_block_KH

        read_NH = fit.hold_out(design.x_NK, self.blocks).astype(np.float32)
        by_window = zip(self.views, read_NH, design.is_read_N, strict=True)
        held_out = {view.window_id: values_H for view, values_H, is_read in by_window if is_read}
        member, bounds_2F = self.members[agent], design.bounds_2F
        return LinearFit(design.keys_F, bounds_2F, design.mean_X, weights_ZH, member, held_out)

    def _design(self, agent: int, logic: str) -> Design:
        names = self.retriever.retrieve_for(self.members[agent], logic, self.views)
        pool = self.retriever.pool
        words = [
            [read_words(pool.get_title(name), view.entity) for name in of_window]
            for view, of_window in zip(self.views, names, strict=True)
        ]
        embeddings_ME = pool.embeddings[pool.find_rows(chain.from_iterable(names))]
        adds = self.members[agent].reads == "everything"
        evidence = gather_evidence(words, embeddings_ME, adds=adds)
        is_read_N = np.array([bool(of_window) for of_window in names])

        origins = [view.origin_utc for view in self.views]
        keys_F = _choose_numbers(names, words, evidence.numbers, origins)
        numbers_NF = _list_numbers(evidence.numbers, keys_F)
        mean_PE, mean_F = (
            np.nan_to_num(mean_known(values, 0)) for values in (evidence.words_NPE, numbers_NF)
        )
        mean_GE = np.zeros((len(PARTS), mean_PE.shape[1]))
        mean_GE[evidence.parts_P] = mean_PE

        # Words and numbers in one fit: the residuals of a first one would have seen each truth.
        words_NPE = np.nan_to_num(evidence.words_NPE - mean_PE)
        columns = self._list_columns(evidence.parts_P, words_NPE, adds=adds)
        centred_NF = np.nan_to_num(numbers_NF - mean_F)
        spread_F = centred_NF.std(0)
        scale_FF = np.diag(1 / np.where(spread_F > 0, spread_F, np.inf))[:, spread_F > 0]
        start = 3 * len(PARTS) * len(self._components_EK)
        with_numbers = [*columns, (start, scale_FF, centred_NF @ scale_FF)]
        if scale_FF.size:
            # On the last block of a fit on those before it: a block in the middle has test data on
            # both sides, which makes drifting numbers look good.
            missed_NH = interpolate(self.truth_NH - self.base_ANH[agent])
            usable_N = is_read_N & self.is_known_N
            is_last_N, is_before_N = (is_in_N & usable_N for is_in_N in self.blocks[-1])

            def measure(blocks: Sequence[_Columns]) -> float:
                x_NK = _join_columns(blocks, len(names))
                return float(measure_later(x_NK, missed_NH, is_before_N, is_last_N).min())

            if measure(with_numbers) >= measure(columns):
                keys_F, mean_F = np.zeros_like(keys_F), np.zeros_like(mean_F)
                with_numbers = columns
        return Design(
            keys_F=keys_F,
            # Of the known numbers; those of a key that is nowhere are zero.
            bounds_2F=np.nan_to_num([find.reduce(numbers_NF) for find in (np.fmin, np.fmax)])
            * (keys_F > 0),
            mean_X=np.append(mean_GE, mean_F),
            is_read_N=is_read_N,
            bases=[(start, basis_EK) for start, basis_EK, _ in with_numbers],
            x_NK=_join_columns(with_numbers, len(names)),
        )

    def _list_columns(
        self, parts_P: npt.NDArray[np.intp], words_NPE: FloatArray, *, adds: bool
    ) -> list[_Columns]:
        """Return what is fitted, by block of Z."""
        columns = []
        for season, wave_N in enumerate(self._waves):
            for part in np.flatnonzero(words_NPE.any((0, 2))):
                whole = words_NPE.shape[2] if adds else _COMPONENTS
                count = _COMPONENTS_OF_PART if parts_P[part] else whole
                basis_EK = self._components_EK[:, : _COMPONENTS_OF_SEASON if season else count]
                basis_EK = basis_EK * (_SEASONAL if season else 1.0)
                start = (season * len(PARTS) + int(parts_P[part])) * len(basis_EK)
                columns.append((start, basis_EK, wave_N[:, None] * (words_NPE[:, part] @ basis_EK)))
        return columns


def _join_columns(blocks: Sequence[_Columns], count: int) -> FloatArray:
    """Return the values of all blocks side by side, (N, K); K is 0 without a block."""
    return np.concatenate([np.empty((count, 0)), *(x_NK for _, _, x_NK in blocks)], axis=1)


def _keep(
    kept: dict[tuple[int, str], _Made], key: tuple[int, str], make: Callable[[int, str], _Made]
) -> _Made:
    """Return what was made for a key, or make it; beyond a limit the oldest is dropped."""
    if key not in kept:
        if len(kept) >= 128:  # seed logics and some rewritings; each holds all of train
            del kept[next(iter(kept))]
        kept[key] = make(*key)
    return kept[key]


def _list_waves(views: Sequence[WindowView]) -> list[FloatArray]:
    """Return the factors (N,) of the words: one, and cosine and sine of the day of the year."""
    turns_N = np.array([view.calendar.day_of_year for view in views]) / _DAYS_OF_YEAR
    return [np.ones(len(views)), np.cos(2 * np.pi * turns_N), np.sin(2 * np.pi * turns_N)]


def _list_numbers(numbers: Sequence[Mapping[int, float]], keys_F: IntArray) -> FloatArray:
    """Return the numbers of each window by key (N, F), NaN where they are missing."""
    keys = keys_F.tolist()
    return np.array([[of_window.get(key, np.nan) for key in keys] for of_window in numbers])


def _choose_numbers(
    names: Sequence[Sequence[str]],
    words: Sequence[Sequence[Words]],
    numbers: Sequence[Mapping[int, float]],
    origins: Sequence[datetime],
) -> IntArray:
    """Return the keys (F,) of the numbers that most windows with articles have, then zeros.

    Numbers that grow with time, such as a year, or hardly ever repeat, such as an identifier, are
    left out: in use they would be outside the range of training.
    """
    values: dict[int, dict[str, float]] = {}
    for of_window, said in zip(names, words, strict=True):
        for name, article in zip(of_window, said, strict=True):
            for key, value in article.numbers:
                values.setdefault(key, {})[name] = value

    least = _LEAST_SHARE * sum(bool(of_window) for of_window in names)
    counts = Counter(key for of_window in numbers for key in of_window)
    keys_F = np.zeros(MOST_NUMBERS, dtype=np.int64)
    place = 0
    for key, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if count < least or place == MOST_NUMBERS:
            break
        articles = values[key]
        if len(set(articles.values())) > _MOST_DISTINCT * len(articles):
            continue

        # Spearman's correlation of time and number; none where one of the two never changes.
        held = [(at, of[key]) for at, of in zip(origins, numbers, strict=True) if key in of]
        ranks = [np.unique(side, return_inverse=True)[1] for side in zip(*held, strict=True)]
        drift = np.asarray(np.corrcoef(ranks))[0, 1] if all(map(np.any, ranks)) else 0.0
        if abs(drift) <= _MOST_DRIFT:
            keys_F[place] = key
            place += 1
    return keys_F


def is_known_enough(truth_NH: FloatArray) -> BoolArray:
    """Return which windows (N,) have enough known steps to be fitted on."""
    return np.asarray(np.isfinite(truth_NH).mean(1) >= _LEAST_KNOWN)


def interpolate(values_NH: FloatArray) -> FloatArray:
    """Return rows (N, H) whose missing steps are interpolated, at the ends carried over."""
    steps_H = np.arange(values_NH.shape[1])
    rows = [
        np.interp(steps_H, steps_H[known_H], row_H[known_H]) if known_H.any() else row_H
        for row_H, known_H in zip(values_NH, np.isfinite(values_NH), strict=True)
    ]
    return np.stack(rows)
