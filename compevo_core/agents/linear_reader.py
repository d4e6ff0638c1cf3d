"""Read news linearly: a ridge from what a logic retrieves to what the agent's base misses.

A language model tuned for a few hundred rounds reads less from the embedding of a sentence than a
ridge in closed form does. So the ridge reads first, and the adapters correct what it leaves. It is
fitted anew for every logic that an agent tries, on all train windows: what a logic is worth does
not depend on which logics were read before.

An article is read by the part of the day that its own words name, each part with weights of its
own: rain in the morning moves other steps than rain at night. Where train holds a whole year the
weights turn with the season: a clear sky is warm in summer and cold in winter. Embeddings hardly
hold numbers, so the numbers of a text are read beside them, by entity and by the word before or
after.

What belongs here: these fits and their reading of a window. What does not: which articles a logic
retrieves (``agents.retrieval``), what is then made of their tokens (``agents.head_decoder``).

The reading of a train window is held out: it comes from a fit on other parts of train, windows that
overlap apart. The articles of a part of the day are averaged and centred, so that their presence
alone says nothing, and a window without articles is read as zero.

Shapes: N train windows, A agents, M articles, G parts of the day, E article embedding, F numbers, X
all that a window says (G blocks of E, then F), Z the same with the blocks by season (3 x G blocks
of E, then F), K components, H horizon.
"""

import dataclasses
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain, groupby
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from compevo_core.agents.decoders import ForecastExample, RetrievedArticle, mix_bases
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.data.arrays import BoolArray, FloatArray, IntArray, mean_known
from compevo_core.data.splits import leave_out_blocks
from compevo_core.data.view import DEFAULT_STEPS, WindowView

FOLDS = 5  # parts of train, one after the other in time; each is read by a fit on the others

PARTS = ("", "morning", "afternoon", "evening", "night")
"""Parts of the day, by the word for each in an article; "" is for an article that names none."""

MOST_NUMBERS = 32  # most columns of numbers that a fit reads: the ones that occur in most windows

_SYNONYMS = {"overnight": "night", "noon": "afternoon", "midday": "afternoon", "tonight": "night"}
_PART = re.compile(rf"\b({'|'.join([*PARTS[1:], *_SYNONYMS])})\b")
# A number and the words around it, of the same sentence: "chance of rain: 60 % in the east".
_NUMBER = re.compile(
    r"(?:([a-z]+)[^a-z0-9.;]*)?(?<![\d.,])(-?\d+(?:\.\d+)?)(?:\s*[%°]?\s*([a-z]+))?"
)

_KEPT_FITS = 128
"""Most fits held at a time: seed logics and some rewritings. Each holds all of train."""

# Of the embeddings; the others hold next to none of their variance. Parts multiply them, and
# what a season changes is less than what it leaves.
_COMPONENTS, _COMPONENTS_OF_PART, _COMPONENTS_OF_SEASON = 128, 64, 16
_PENALTIES = tuple(10.0**power for power in np.arange(-1.0, 4.0, 0.5))
_KEPT_WORDS = 100_000  # titles, each as one entity reads it
_SEASONAL = 0.5  # of the scale of what all the year has in common, chosen on held-out windows
_LEAST_SHARE = 0.1  # of the windows with articles that must hold a number for it to be read
_MONTHS, _DAYS_OF_YEAR = 12, 365.25
_LEAST_KNOWN = 0.5  # of a window's steps, to be fitted on; the others are interpolated


class Words(NamedTuple):
    """What the words of a title say outright."""

    part: int  # of the day, a position in :data:`PARTS`
    numbers: tuple[tuple[int, float], ...]  # each by its key


class Evidence(NamedTuple):
    """What a logic retrieved for N windows: means of their articles, NaN where there are none."""

    parts_P: npt.NDArray[np.intp]  # of the day that articles name; the first is for all articles
    means_NPE: FloatArray
    numbers: Sequence[Mapping[int, float]]  # of each window, by key


@lru_cache(maxsize=_KEPT_WORDS)
def read_words(title: str, entity: str) -> Words:
    """Return the first part of the day that a title names, and its numbers.

    A number's key is made of the entity (a hot day moves one series and not another), the part, its
    side and the word on that side; it is the same in every process, so that a fit can be sealed.
    """
    text = title.lower()
    match = _PART.search(text)
    part = PARTS.index(_SYNONYMS.get(match[1], match[1])) if match else 0
    numbers = [
        (_make_key(entity, part, side, word), float(value))
        for before, value, after in _NUMBER.findall(text)
        for side, word in (("before", before), ("after", after))
        if word
    ]
    return Words(part, tuple(numbers))


def gather_evidence(
    words: Sequence[Sequence[Words]], embeddings_ME: npt.NDArray[np.float32]
) -> Evidence:
    """Return the means of articles by window, part of the day and number.

    ``embeddings_ME`` holds the articles of all windows, one window after the other.
    """
    counts_N = np.array([len(of_window) for of_window in words])
    starts_N = counts_N.cumsum() - counts_N
    window_M = np.repeat(np.arange(len(words)), counts_N)
    parts_M = np.array([article.part for of_window in words for article in of_window], dtype=int)
    parts_P = np.union1d([0], parts_M).astype(int)

    means_NPE = np.full((len(words), len(parts_P), embeddings_ME.shape[1]), np.nan)
    # What all articles say is learnt from all of them; a part of the day adds to it.
    for count in set(counts_N.tolist()) - {0}:
        windows = np.flatnonzero(counts_N == count)
        rows = starts_N[windows][:, None] + np.arange(count)
        means_NPE[windows, 0] = embeddings_ME[rows].mean(1)
    for place, part in enumerate(parts_P[1:], 1):
        for n, rows in groupby(np.flatnonzero(parts_M == part), window_M.__getitem__):
            means_NPE[n, place] = embeddings_ME[list(rows)].mean(0)
    return Evidence(parts_P, means_NPE, [_average_numbers(of_window) for of_window in words])


def _average_numbers(words: Sequence[Words]) -> dict[int, float]:
    """Return the mean of the numbers of each key."""
    values: dict[int, list[float]] = {}
    for article in words:
        for key, value in article.numbers:
            values.setdefault(key, []).append(value)
    return {key: sum(of_key) / len(of_key) for key, of_key in values.items()}


@dataclasses.dataclass(frozen=True, eq=False)
class LinearFit:
    """How an agent reads what one logic retrieves; zero where that says nothing."""

    keys_F: IntArray  # zero where there are fewer numbers
    mean_X: FloatArray
    weights_ZH: npt.NDArray[np.float32]
    held_out: Mapping[str, FloatArray]  # (H,) by train window; a window without articles is absent

    def read(self, view: WindowView, articles: Sequence[RetrievedArticle]) -> FloatArray:
        """Return the scaled reading (H,) of a window's articles, held out for train windows."""
        held_out_H = self.held_out.get(view.window_id)
        return self.predict(view, articles) if held_out_H is None else held_out_H

    def predict(self, view: WindowView, articles: Sequence[RetrievedArticle]) -> FloatArray:
        """Return the scaled reading (H,) by the fit on all of train; missing evidence is 0."""
        words = [read_words(article.title, view.entity) for article in articles]
        evidence = gather_evidence([words], np.stack([article.embedding for article in articles]))
        values_X = np.full_like(self.mean_X, np.nan)
        by_part_GE = values_X[:-MOST_NUMBERS].reshape(len(PARTS), -1)
        by_part_GE[evidence.parts_P] = evidence.means_NPE[0]
        values_X[-MOST_NUMBERS:] = _list_numbers(evidence.numbers, self.keys_F)[0]
        words_W, numbers_F = np.split(np.nan_to_num(values_X - self.mean_X), [-MOST_NUMBERS])
        offset_Z = np.concatenate([*(wave * words_W for wave in _list_waves([view])), numbers_F])
        reading_H: FloatArray = offset_Z @ self.weights_ZH
        return reading_H


class LinearReader(Protocol):
    """Gives the fit of a logic."""

    def find(self, row: int, logic: str) -> LinearFit:
        """Return how a local agent reads what a logic retrieves."""


class SealedReadings(nn.Module):
    """The fits of the logics that the agents of a sealed model play."""

    keys_AF: torch.Tensor
    mean_AX: torch.Tensor
    weights_AZH: torch.Tensor

    def __init__(self, agents: int, article_size: int, horizon: int = DEFAULT_STEPS) -> None:
        super().__init__()
        words = len(PARTS) * article_size
        weights_AZH = torch.zeros(agents, 3 * words + MOST_NUMBERS, horizon)
        self.register_buffer("keys_AF", torch.zeros(agents, MOST_NUMBERS, dtype=torch.int64))
        self.register_buffer("mean_AX", torch.zeros(agents, words + MOST_NUMBERS))
        self.register_buffer("weights_AZH", weights_AZH)

    def find(self, row: int, logic: str) -> LinearFit:
        """Return the agent's fit, whatever the logic: it plays one alone."""
        del logic
        keys_F, weights_ZH = (of[row].cpu().numpy() for of in (self.keys_AF, self.weights_AZH))
        return LinearFit(keys_F, self.mean_AX[row].cpu().double().numpy(), weights_ZH, {})

    def store(self, reader: LinearReader, logics: Sequence[str]) -> None:
        """Take over the fits of the logics that local agents play."""
        for row, logic in enumerate(logics):
            fit = reader.find(row, logic)
            self.keys_AF[row] = torch.from_numpy(fit.keys_F)
            self.mean_AX[row] = torch.from_numpy(fit.mean_X)
            self.weights_AZH[row] = torch.from_numpy(fit.weights_ZH)


class FittedReader:
    """Fits a logic when it is first asked for, on the train windows of a run."""

    def __init__(
        self,
        examples: Sequence[ForecastExample],
        retriever: NewsRetriever,
        scopes: Sequence[str],
        mix_AP: FloatArray,
    ) -> None:
        """Take train windows with held-out priors, and the news ``scopes`` of the local agents."""
        self.retriever = retriever
        self._scopes = scopes
        self._views = [example.view for example in examples]
        truth_NH = np.stack(
            [example.truth_H for example in examples if example.truth_H is not None]
        )
        self._is_known_N = np.isfinite(truth_NH).mean(1) >= _LEAST_KNOWN
        self._missed_ANH = [
            _interpolate(truth_NH - base_NH) for base_NH in mix_bases(mix_AP, examples)
        ]
        self._blocks = list(leave_out_blocks(self._views, FOLDS))
        # What less than a year shows of a season would be carried into another one.
        months = {view.calendar.day_of_year // 31 for view in self._views}
        self._waves = _list_waves(self._views)[: 3 if len(months) == _MONTHS else 1]

        names = sorted({name for view in self._views for name in view.candidate_ids})
        # The directions along which the articles of train windows differ most.
        rows = retriever.pool.find_rows(names)
        embeddings_ME = retriever.pool.embeddings[rows].astype(np.float64)
        centred_ME = embeddings_ME - embeddings_ME.mean(0) if names else embeddings_ME
        _, vectors_EE = np.linalg.eigh(centred_ME.T @ centred_ME)
        self._components_EK = vectors_EE[:, ::-1][:, :_COMPONENTS]
        # The windows of a round ask for the same few fits again and again.
        self._find = lru_cache(maxsize=_KEPT_FITS)(self._fit)

    def find(self, row: int, logic: str) -> LinearFit:
        """Return how a local agent reads what a logic retrieves."""
        return self._find(row, logic)

    def retrieve(self, row: int, logic: str, views: Sequence[WindowView]) -> list[tuple[str, ...]]:
        """Return the ids of the articles that a local agent reads of each window."""
        return self.retriever.retrieve_each(logic, views, self._scopes[row])

    def _fit(self, row: int, logic: str) -> LinearFit:
        names = self.retrieve(row, logic, self._views)
        evidence = self._gather(names)
        is_read_N = np.array([bool(of_window) for of_window in names])
        usable_N = is_read_N & self._is_known_N

        keys_F = _choose_numbers(evidence.numbers, int(is_read_N.sum()))
        numbers_NF = _list_numbers(evidence.numbers, keys_F)
        mean_PE, mean_F = (
            np.nan_to_num(mean_known(of, 0)) for of in (evidence.means_NPE, numbers_NF)
        )
        mean_GE = np.zeros((len(PARTS), mean_PE.shape[1]))
        mean_GE[evidence.parts_P] = mean_PE

        # One fit of all: a later fit to what an earlier one leaves would see each window's truth.
        columns = self._list_columns(
            evidence.parts_P,
            np.nan_to_num(evidence.means_NPE - mean_PE),
            np.nan_to_num(numbers_NF - mean_F),
        )
        x_NK = np.concatenate([x for _, _, x in columns], axis=1)
        held_out_NH, weights_KH = fit_ridge(x_NK, self._missed_ANH[row], self._blocks, usable_N)
        rows = 3 * mean_GE.size + MOST_NUMBERS
        weights_ZH = np.zeros((rows, weights_KH.shape[1]), dtype=np.float32)
        end = 0
        for start, basis_EK, _ in columns:
            end += basis_EK.shape[1]
            of_block_KH = weights_KH[end - basis_EK.shape[1] : end]
            weights_ZH[start:][: len(basis_EK)] = basis_EK @ of_block_KH
        read = zip(self._views, held_out_NH.astype(np.float32), is_read_N, strict=True)
        held_out = {view.window_id: values_H for view, values_H, is_read in read if is_read}
        return LinearFit(keys_F, np.append(mean_GE, mean_F), weights_ZH, held_out)

    def _list_columns(
        self, parts_P: npt.NDArray[np.intp], words_NPE: FloatArray, numbers_NF: FloatArray
    ) -> list[tuple[int, FloatArray, FloatArray]]:
        """Return what is fitted by block of Z: its start, its basis (E, K) and its values (N, K).

        Takes what differs from the mean; what never does is left out.
        """
        parts = np.flatnonzero(words_NPE.any((0, 2)))
        count = _COMPONENTS if len(parts) < 2 else _COMPONENTS_OF_PART
        columns = []
        for season, wave_N in enumerate(self._waves):
            basis_EK = self._components_EK[:, : _COMPONENTS_OF_SEASON if season else count]
            basis_EK = basis_EK * (_SEASONAL if season else 1.0)
            for part in parts:
                start = (season * len(PARTS) + int(parts_P[part])) * len(basis_EK)
                columns.append((start, basis_EK, wave_N[:, None] * (words_NPE[:, part] @ basis_EK)))

        # Numbers have a standard deviation of one.
        spread_F = numbers_NF.std(0)
        scale_FF = np.diag(1 / np.where(spread_F > 0, spread_F, np.inf))[:, spread_F > 0]
        start = 3 * len(PARTS) * len(self._components_EK)
        return [*columns, (start, scale_FF, numbers_NF @ scale_FF)]

    def _gather(self, names: Sequence[Sequence[str]]) -> Evidence:
        """Return what the articles of each train window say, given by their ids."""
        pool = self.retriever.pool
        words = [
            [read_words(pool.get_title(name), view.entity) for name in of_window]
            for view, of_window in zip(self._views, names, strict=True)
        ]
        rows = pool.find_rows(chain.from_iterable(names))
        return gather_evidence(words, pool.embeddings[rows])


def _list_waves(views: Sequence[WindowView]) -> list[FloatArray]:
    """Return by what words are multiplied in each window (N,): one, cosine and sine of the year."""
    turns_N = np.array([view.calendar.day_of_year for view in views]) / _DAYS_OF_YEAR
    return [np.ones(len(views)), np.cos(2 * np.pi * turns_N), np.sin(2 * np.pi * turns_N)]


def _list_numbers(numbers: Sequence[Mapping[int, float]], keys_F: IntArray) -> FloatArray:
    """Return the numbers of each window by key (N, F), NaN where they are missing."""
    keys = keys_F.tolist()
    return np.array([[of_window.get(key, np.nan) for key in keys] for of_window in numbers])


def _choose_numbers(numbers: Sequence[Mapping[int, float]], count: int) -> IntArray:
    """Return the keys (F,) of the numbers that most of ``count`` windows hold, then zeros."""
    counts = Counter(key for of_window in numbers for key in of_window)
    common = [
        key
        for key, amount in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if amount >= _LEAST_SHARE * count
    ]
    keys_F = np.zeros(MOST_NUMBERS, dtype=np.int64)
    keys_F[: len(common)] = common[:MOST_NUMBERS]
    return keys_F


def _make_key(entity: str, part: int, side: str, word: str) -> int:
    """Return the key of a number: above zero, and the same in every process."""
    digest = hashlib.sha256(f"{entity} {part} {side} {word}".encode()).digest()
    return int.from_bytes(digest[:7]) + 1


def _interpolate(values_NH: FloatArray) -> FloatArray:
    """Return rows (N, H) whose missing steps are interpolated, at the ends carried over."""
    steps_H = np.arange(values_NH.shape[1])
    rows = [
        np.interp(steps_H, steps_H[known_H], row_H[known_H]) if known_H.any() else row_H
        for row_H, known_H in zip(values_NH, np.isfinite(values_NH), strict=True)
    ]
    return np.stack(rows)


def fit_ridge(
    x_NK: FloatArray,
    y_NH: FloatArray,
    blocks: Sequence[tuple[BoolArray, BoolArray]],
    usable_N: BoolArray,
) -> tuple[FloatArray, FloatArray]:
    """Return held-out predictions (N, H) and the weights (K, H) of a fit on all usable rows.

    The penalty is the one of the lowest held-out error; all is zero if that is no lower than
    without any reading.
    """
    zeros = np.zeros_like(y_NH), np.zeros((x_NK.shape[1], y_NH.shape[1]))
    if not usable_N.any() or not x_NK.shape[1]:
        return zeros
    held_out_PNH = np.zeros((len(_PENALTIES), *y_NH.shape))
    for is_held_out_N, is_kept_N in blocks:
        path_PKH = _solve_ridge(x_NK, y_NH, usable_N & is_kept_N, _PENALTIES)
        held_out_PNH[:, is_held_out_N] = x_NK[is_held_out_N] @ path_PKH

    y_UH = y_NH[usable_N]
    errors_P = ((y_UH - held_out_PNH[:, usable_N]) ** 2).mean((1, 2))
    best = int(errors_P.argmin())
    if errors_P[best] >= (y_UH**2).mean():
        return zeros
    return held_out_PNH[best], _solve_ridge(x_NK, y_NH, usable_N, _PENALTIES[best : best + 1])[0]


def _solve_ridge(
    x_NK: FloatArray, y_NH: FloatArray, rows_N: BoolArray, penalties: Sequence[float]
) -> FloatArray:
    """Return the weights (P, K, H) for each penalty, by one decomposition."""
    x, y = x_NK[rows_N], y_NH[rows_N]
    values_K, vectors_KK = np.linalg.eigh(x.T @ x)
    projected_KH = vectors_KK.T @ (x.T @ y)
    return np.stack(
        [vectors_KK @ (projected_KH / (values_K[:, None] + penalty)) for penalty in penalties]
    )
