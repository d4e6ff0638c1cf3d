"""A numeric method corrected by a ridge on the words and sentences of news.

What belongs here: the columns that articles make of a window, the choice of their age, of sentences
and of the penalty, the correction. What does not: methods (other modules), agents that choose what
they read (``agents``), whether the correction is used (``evaluation.method_choice``).

The articles of a window that came out in the last day, three days or week are added up, as words
weighed by how rare they are in train (tf-idf; no numbers, which run with time) and as embeddings;
or by age, each with weights of its own. The ridge explains what the method misses of train by fits
without the days that it forecasts. Everything is chosen on later parts of train by fits on earlier
ones, and nothing is read where no choice errs less than reading nothing, in all and on the newest
part. A window without articles is not corrected.

Shapes: N windows, M articles, R rows (windows of one instant with the same articles), W words, K
columns, H horizon, P penalties.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from safetensors.numpy import load_file, save_file

from compevo_core.baselines.base import (
    Baseline,
    FitBaseline,
    raise_if_held_out,
    read_baseline_file,
    write_baseline_file,
)
from compevo_core.data.arrays import BoolArray, FloatArray, IntArray, mean_known
from compevo_core.data.news_pool import NewsPool
from compevo_core.data.splits import leave_out_blocks
from compevo_core.data.steps import DAY
from compevo_core.data.view import WindowView, keep_bounds
from compevo_core.data.window import WindowSet
from compevo_core.errors import ConfigError

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

SUFFIX = "+news"
"""What the name of a method ends with that reads news."""

AGES: tuple[tuple[int, ...], ...] = ((1,), (3,), (7,), (1, 3), (1, 3, 7))
"""Days after which articles are too old; of several, the earlier ones part them by age."""

PENALTIES = 10.0 ** np.arange(-1.0, 3.5, 0.5)

BLOCKS = 5  # parts of train that the method forecasts without having seen them
_PARTS, _FIRST_JUDGED = 5, 2  # parts of train in time, and the first one that judges a fit before
_MOST_ROWS = 1000  # the newest are read: the cost of a fit is their cube
_MOST_WORDS, _FEWEST_ARTICLES = 2000, 3  # words that are read, and articles of train that hold one
_FEWEST_ROWS = 40
_MOST_SERIES = 12  # up to which each series has weights of its own as well as the shared ones

_TENSORS = ("mean_K", "weights_KH")
_WEIGHTS_FILE = "reading.safetensors"


def reads_news(name: str) -> bool:
    """Return whether a method's name says that it reads news."""
    return name.endswith(SUFFIX)


@dataclass(frozen=True, eq=False)
class Columns:
    """What articles are read as: words and their weights of train, and embeddings."""

    words: tuple[str, ...]
    idf_W: FloatArray

    @classmethod
    def fit(cls, views: Sequence[WindowView], news: NewsPool) -> Self:
        """Take the words of the articles that windows of train name."""
        ids = sorted({name for view in views for name in view.candidate_ids})
        vectorizer = _make_vectorizer(min_df=min(_FEWEST_ARTICLES, max(1, len(ids))))
        try:
            vectorizer.fit([news.get_title(name) for name in ids])
        except ValueError:  # no word is in so many articles
            return cls((), np.zeros(0))
        return cls(tuple(vectorizer.get_feature_names_out().tolist()), vectorizer.idf_)

    def build(
        self, views: Sequence[WindowView], news: NewsPool, ages: Sequence[int], *, sentences: bool
    ) -> FloatArray:
        """Return the columns (N, K) of windows, the articles of each age added up."""
        from scipy.sparse import csr_matrix

        ids = sorted({name for view in views for name in view.candidate_ids})
        row_of = {name: row for row, name in enumerate(ids)}
        # Titles are vectors of length one, or zero without a known word.
        titles_MW = csr_matrix((len(ids), len(self.words)))
        if ids and self.words:
            vectorizer = _make_vectorizer(vocabulary=self.words)
            vectorizer.idf_ = self.idf_W
            titles_MW = vectorizer.transform([news.get_title(name) for name in ids])
        embeddings_ME = news.embeddings[news.find_rows(ids)]
        at_M = np.array([news.get_date(name).timestamp() for name in ids])

        pairs = [(n, row_of[name]) for n, view in enumerate(views) for name in view.candidate_ids]
        window_P, article_P = np.array(pairs, dtype=int).reshape(-1, 2).T
        known_N = np.array([view.known_before.timestamp() for view in views])
        age_P = (known_N[window_P] - at_M[article_P]) / DAY.total_seconds()

        columns = []
        for after, until in zip((0, *ages), ages, strict=False):
            chosen_P = (age_P >= after) & (age_P < until)
            places = (window_P[chosen_P], article_P[chosen_P])
            named_NM = csr_matrix((np.ones(chosen_P.sum()), places), shape=(len(views), len(ids)))
            columns.append((named_NM @ titles_MW).toarray())
            if sentences:
                columns.append(named_NM @ embeddings_ME)
        return np.concatenate(columns, axis=1)


def _make_vectorizer(**options: Any) -> "TfidfVectorizer":  # noqa: ANN401 - of scikit-learn
    # Takes a second to import: only where news is read.
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(
        token_pattern=r"[^\W\d_]{2,}",  # noqa: S106 - a pattern of words
        max_features=None if "vocabulary" in options else _MOST_WORDS,
        **options,
    )


@dataclass(frozen=True, eq=False)
class Choice:
    """What errs least on later parts of some rows by fits on earlier ones."""

    ages: tuple[int, ...]
    sentences: bool
    penalty: float
    held_out_RH: FloatArray  # readings of later parts by fits on earlier ones, zero before
    left: float  # sum of the absolute errors that they leave


@dataclass(frozen=True, eq=False)
class NewsWeights:
    """What the articles of some ages change in all series, or in one in addition."""

    entity: str  # "" for all
    ages: tuple[int, ...]
    sentences: bool
    mean_K: FloatArray
    weights_KH: FloatArray  # of deviations from the mean, for scaled forecasts


class NewsSample:
    """Windows of train as rows that ridges are fitted on, the newest of them."""

    def __init__(self, views: Sequence[WindowView], news: NewsPool, columns: Columns) -> None:
        """Take windows in the order of time."""
        view_of = {(view.known_before, view.candidate_ids): view for view in views}
        newest = sorted(view_of, key=lambda key: key[0])[-_MOST_ROWS:]
        row_of = {key: row for row, key in enumerate(newest)}
        self.views = [view_of[key] for key in newest]
        self.row_N: IntArray = np.array(
            [row_of.get((view.known_before, view.candidate_ids), -1) for view in views]
        )
        self.columns, self._news = columns, news
        # Their arithmetic is the same for every target.
        self.center = cache(self._center)
        self._fold = cache(self._make_folds)

    def _center(self, ages: tuple[int, ...], sentences: bool) -> tuple[FloatArray, FloatArray]:
        """Return the mean (K,) of the columns, and the columns without it (R, K)."""
        x_RK = self.columns.build(self.views, self._news, ages, sentences=sentences)
        mean_K = x_RK.mean(axis=0)
        return mean_K, x_RK - mean_K

    def _make_folds(
        self, ages: tuple[int, ...], sentences: bool, rows: tuple[int, ...]
    ) -> list[tuple[IntArray, IntArray, FloatArray, FloatArray, FloatArray]]:
        """Return for each later part what fits on earlier rows need, but what they explain."""
        x_RK = self.center(ages, sentences)[1][list(rows)]
        gram_RR = x_RK @ x_RK.T
        views = [self.views[row] for row in rows]
        folds = []
        for later in np.array_split(np.arange(len(rows)), _PARTS)[_FIRST_JUDGED:]:
            if not later.size:
                continue
            begin = views[later[0]].known_before
            before = np.array([i for i, view in enumerate(views) if view.end_utc <= begin], int)
            values, vectors = np.linalg.eigh(gram_RR[np.ix_(before, before)])
            crossed = gram_RR[np.ix_(later, before)] @ vectors
            folds.append((later, before, np.maximum(values, 0.0), vectors, crossed))
        return folds

    def average(self, values_NH: FloatArray) -> FloatArray:
        """Return the mean of the windows of each row (R, H)."""
        rows = range(len(self.views))
        return np.stack([values_NH[self.row_N == row].mean(axis=0) for row in rows])

    def choose(self, rows: Sequence[int], y_RH: FloatArray) -> Choice:
        """Return what explains these rows best, first the ages by words, then with sentences."""
        by_words = [self._try(rows, y_RH, ages, sentences=False) for ages in AGES]
        best = min(by_words, key=attrgetter("left"))
        both = self._try(rows, y_RH, best.ages, sentences=True)
        return min(best, both, key=attrgetter("left"))

    def _try(
        self, rows: Sequence[int], y_RH: FloatArray, ages: tuple[int, ...], *, sentences: bool
    ) -> Choice:
        """Return the best penalty of some columns."""
        held_out_PRH = np.zeros((len(PENALTIES), *y_RH.shape))
        for later, before, values, vectors, crossed in self._fold(ages, sentences, tuple(rows)):
            turned = vectors.T @ y_RH[before]
            for row, penalty in enumerate(PENALTIES):
                held_out_PRH[row, later] = crossed @ (turned / (values + penalty)[:, None])
        # Every choice reads earlier parts as zero.
        left_P = np.abs(y_RH - held_out_PRH).sum(axis=(1, 2))
        place = int(left_P.argmin())
        return Choice(ages, sentences, PENALTIES[place], held_out_PRH[place], float(left_P[place]))

    @staticmethod
    def helps(choice: Choice, y_RH: FloatArray) -> bool:
        """Return whether a choice errs less than reading nothing, in all and on the newest part."""
        gain_R = (np.abs(y_RH) - np.abs(y_RH - choice.held_out_RH)).sum(axis=1)
        return bool(min(gain_R.sum(), np.array_split(gain_R, _PARTS)[-1].sum()) > 0)

    def fit(
        self, entity: str, rows: Sequence[int], y_RH: FloatArray, choice: Choice
    ) -> NewsWeights:
        """Return the weights of a choice for a series, or for all, fitted on all of these rows."""
        mean_K, all_RK = self.center(choice.ages, choice.sentences)
        x_RK = all_RK[list(rows)]
        shifted_RR = x_RK @ x_RK.T + choice.penalty * np.eye(len(rows))
        weights_KH = np.asarray(x_RK.T @ np.linalg.solve(shifted_RR, y_RH))
        return NewsWeights(entity, choice.ages, choice.sentences, mean_K, weights_KH)


def find_missed(base: str, train: WindowSet, fit: FitBaseline, *, seed: int = 0) -> FloatArray:
    """Return what a method misses of train windows (N, H), by fits that have not seen them."""
    views, missed_NH = train.views(), np.full(train.truth().shape, np.nan)
    for is_left_out_N, is_kept_N in leave_out_blocks(views, BLOCKS):
        rest = train.with_windows(w for w, kept in zip(train, is_kept_N, strict=True) if kept)
        left_out = [view for view, out in zip(views, is_left_out_N, strict=True) if out]
        forecast_NH = fit(base, rest, seed=seed).predict(left_out)
        missed_NH[is_left_out_N] = train.truth()[is_left_out_N] - forecast_NH
    return missed_NH


def standardize(
    views: Sequence[WindowView], missed_NH: FloatArray
) -> tuple[dict[str, float], FloatArray]:
    """Return the spread of each series' errors, and errors (N, H) in it, zero where unknown.

    The mean of each step is taken off: it would be drift, which news does not explain.
    """
    entity_N = np.array([view.entity for view in views])
    scale, scaled_NH = {}, np.zeros_like(missed_NH)
    for entity in dict.fromkeys(entity_N.tolist()):
        own = entity_N == entity
        left_NH = missed_NH[own] - mean_known(missed_NH[own], axis=0)
        spread = float(np.nanstd(left_NH)) if np.isfinite(left_NH).any() else 0.0
        scale[entity] = spread or 1.0
        scaled_NH[own] = np.nan_to_num(left_NH / scale[entity])
    return scale, scaled_NH


@dataclass(frozen=True, eq=False)
class NewsRidge:
    """A method, and what the news adds to its forecasts."""

    BASE_FOLDER: ClassVar[str] = "base"

    base: Baseline
    columns: Columns
    scale: Mapping[str, float]  # of each series: the spread of what the method misses in train
    parts: Sequence[NewsWeights]  # none where nothing explains what it misses
    news: NewsPool | None

    @property
    def name(self) -> str:
        """The method name in result rows."""
        return self.base.name + SUFFIX

    @classmethod
    def fit(
        cls, train: WindowSet, *, seed: int = 0, base: str, news: NewsPool, fit: FitBaseline
    ) -> Self:
        """Fit a method, and the ridge on what it misses of parts of train that it has not seen.

        LeakageError for a window of another split.
        """
        raise_if_held_out(train, base + SUFFIX)
        views = train.views()
        scale, scaled_NH = standardize(views, find_missed(base, train, fit, seed=seed))
        columns = Columns.fit(views, news)
        sample = NewsSample(views, news, columns)
        shared_RH = sample.average(scaled_NH)
        targets = {"": (list(range(len(shared_RH))), shared_RH)}
        if 1 < len(scale) <= _MOST_SERIES:
            entity_N = np.array([view.entity for view in views])
            for entity in scale:
                own_N: BoolArray = (entity_N == entity) & (sample.row_N >= 0)
                rows = sample.row_N[own_N].tolist()
                targets[entity] = (rows, scaled_NH[own_N] - shared_RH[rows])

        parts = []
        for entity, (rows, y_RH) in targets.items():
            if len(rows) < _FEWEST_ROWS:
                continue
            choice = sample.choose(rows, y_RH)
            if sample.helps(choice, y_RH):
                parts.append(sample.fit(entity, rows, y_RH, choice))
        return cls(fit(base, train, seed=seed), columns, scale, parts, news)

    def predict(
        self, views: Sequence[WindowView], lenders: Sequence[WindowView] = ()
    ) -> FloatArray:
        """Return forecasts (N, H), with ``lenders`` by their news in place of the views' own."""
        base_NH = self.base.predict(views)
        if not views or not self.parts:
            return base_NH
        return keep_bounds(views, base_NH + self.read(views, lenders))

    def read(self, views: Sequence[WindowView], lenders: Sequence[WindowView] = ()) -> FloatArray:
        """Return what is added (N, H), by the news of ``lenders`` in place of their own if given.

        ConfigError without news; DataError if it lacks an article.
        """
        if self.news is None:
            raise ConfigError(f"{self.name} reads news, and there is none: give NewsPool.read(...)")
        read_NH = np.zeros((len(views), views[0].horizon))
        named = lenders or views
        for part in self.parts:
            chosen = [
                n
                for n, (view, of) in enumerate(zip(views, named, strict=True))
                if part.entity in ("", view.entity) and of.candidate_ids
            ]
            if chosen:
                articles = [named[n] for n in chosen]
                x_NK = self.columns.build(articles, self.news, part.ages, sentences=part.sentences)
                read_NH[chosen] += (x_NK - part.mean_K) @ part.weights_KH
        # A series that train lacks has no scale; its method says so.
        scale_N = np.array([self.scale.get(view.entity, 0.0) for view in views])
        return np.asarray(scale_N[:, None] * read_NH)

    def save(self, folder: Path) -> None:
        """Write the method below the folder, words and weights."""
        self.base.save(folder / self.BASE_FOLDER)
        tensors = {"idf_W": self.columns.idf_W}
        for number, part in enumerate(self.parts):
            tensors |= {f"{number}.{of}": getattr(part, of) for of in _TENSORS}
        save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / _WEIGHTS_FILE)
        parts = [[part.entity, part.ages, part.sentences] for part in self.parts]
        words = self.columns.words
        write_baseline_file(folder, self.name, words=words, scale=self.scale, parts=parts)

    @classmethod
    def load(cls, folder: Path, base: Baseline, news: NewsPool | None = None) -> Self:
        """Read what :meth:`save` wrote, on the method below the folder."""
        facts = read_baseline_file(folder, base.name + SUFFIX)
        tensors = load_file(folder / _WEIGHTS_FILE)
        parts = [
            NewsWeights(entity, tuple(ages), sentences, *(tensors[f"{n}.{of}"] for of in _TENSORS))
            for n, (entity, ages, sentences) in enumerate(facts["parts"])
        ]
        columns = Columns(tuple(facts["words"]), tensors["idf_W"])
        return cls(base, columns, facts["scale"], parts, news)
