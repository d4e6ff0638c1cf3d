"""Read news linearly: a ridge from what a logic retrieves to what the agent's base misses.

A language model tuned for a few hundred rounds reads less from the embedding of a sentence than a
ridge in closed form does. So the ridge reads first, and the adapters correct what it leaves. It is
fitted anew for every logic that an agent tries, on all train windows: what a logic is worth does
not depend on which logics were read before.

What belongs here: these fits and their reading of a window. What does not: which articles a logic
retrieves (``agents.retrieval``), what is then made of their tokens (``agents.head_decoder``).

The reading of a train window is held out: it comes from a fit on other parts of train. Articles are
averaged and centred, so that their presence alone says nothing, and a window without articles is
read as zero.

Shapes: N train windows, A agents, E article embedding, K components, H horizon.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from compevo_core.agents.decoders import ForecastExample, RetrievedArticle, mix_bases
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.data.arrays import FloatArray
from compevo_core.data.view import HORIZON, WindowView

FOLDS = 5
"""Parts of train, one after the other in time; each is read by a fit on the others."""

_KEPT_FITS = 256
"""Fits that are kept: those of the seed logics and of some rewritings. Each holds all of train."""

_COMPONENTS = 128  # of the embeddings; the others hold next to none of their variance
_PENALTIES = tuple(10.0**power for power in np.arange(-1.0, 4.0, 0.5))


@dataclasses.dataclass(frozen=True, eq=False)
class LinearFit:
    """How an agent reads what one logic retrieves; zero where that says nothing."""

    mean_E: FloatArray
    weights_EH: FloatArray
    held_out: Mapping[str, FloatArray]  # (H,) by train window; a window without articles is absent

    def read(self, window_id: str, articles: Sequence[RetrievedArticle]) -> FloatArray:
        """Return the reading (H,) of a window's articles, scaled."""
        if window_id in self.held_out:
            return self.held_out[window_id]
        mean_E = np.mean([article.embedding for article in articles], axis=0)
        reading_H: FloatArray = (mean_E - self.mean_E) @ self.weights_EH
        return reading_H


class LinearReader(Protocol):
    """Gives the fit of a logic."""

    def find(self, row: int, logic: str) -> LinearFit:
        """Return how a local agent reads what a logic retrieves."""


class SealedReadings(nn.Module):
    """The fits of the logics that the agents of a sealed model play."""

    mean_AE: torch.Tensor
    weights_AEH: torch.Tensor

    def __init__(self, agents: int, article_size: int) -> None:
        super().__init__()
        self.register_buffer("mean_AE", torch.zeros(agents, article_size))
        self.register_buffer("weights_AEH", torch.zeros(agents, article_size, HORIZON))

    def find(self, row: int, logic: str) -> LinearFit:
        """Return the agent's fit, whatever the logic: it plays one alone."""
        del logic
        mean_E = self.mean_AE[row].cpu().double().numpy()
        return LinearFit(mean_E, self.weights_AEH[row].cpu().double().numpy(), {})

    def store(self, reader: LinearReader, logics: Sequence[str]) -> None:
        """Take over the fits of the logics that local agents play."""
        for row, logic in enumerate(logics):
            fit = reader.find(row, logic)
            self.mean_AE[row] = torch.from_numpy(fit.mean_E)
            self.weights_AEH[row] = torch.from_numpy(fit.weights_EH)


class FittedReader:
    """Fits a logic when it is first asked for, on the train windows of a run."""

    def __init__(
        self,
        examples: Sequence[ForecastExample],
        retriever: NewsRetriever,
        scopes: Sequence[str],
        mix_AP: FloatArray,
    ) -> None:
        """Take train windows with held-out priors; ``scopes`` are of the local agents."""
        self.retriever = retriever
        self._scopes = scopes
        self._views = [example.view for example in examples]
        truth_NH = np.stack(
            [example.truth_H for example in examples if example.truth_H is not None]
        )
        self._missed_ANH = truth_NH - mix_bases(mix_AP, examples)
        self._is_whole_N = np.isfinite(truth_NH).all(1)
        self._fold_N = split_by_time([view.origin_utc for view in self._views])
        self._components_EK = _find_components(retriever, self._views)
        # The windows of a round ask for the same few fits again and again.
        self._find = lru_cache(maxsize=_KEPT_FITS)(self._fit)

    def find(self, row: int, logic: str) -> LinearFit:
        """Return how a local agent reads what a logic retrieves."""
        return self._find(row, logic)

    def retrieve(self, row: int, logic: str, view: WindowView) -> tuple[str, ...]:
        """Return the ids of the articles that a local agent reads of a window."""
        return self.retriever.retrieve(logic, view, self._scopes[row])

    def _fit(self, row: int, logic: str) -> LinearFit:
        pool = self.retriever.pool
        ids = [self.retrieve(row, logic, view) for view in self._views]
        is_read_N = np.array([bool(names) for names in ids])
        articles_NE = np.zeros((len(ids), self._components_EK.shape[0]))
        for n in np.flatnonzero(is_read_N):
            articles_NE[n] = pool.embeddings[pool.find_rows(ids[n])].mean(0)
        if not is_read_N.any():
            return LinearFit(articles_NE.sum(0), np.zeros((articles_NE.shape[1], HORIZON)), {})

        mean_E = articles_NE[is_read_N].mean(0)
        x_NK = (articles_NE - mean_E) @ self._components_EK
        usable_N = is_read_N & self._is_whole_N
        held_out_NH, weights_KH = fit_ridge(x_NK, self._missed_ANH[row], self._fold_N, usable_N)
        held_out = {
            self._views[n].window_id: held_out_NH[n].astype(np.float32)
            for n in np.flatnonzero(is_read_N)
        }
        return LinearFit(mean_E, self._components_EK @ weights_KH, held_out)


def fit_ridge(
    x_NK: FloatArray,
    y_NH: FloatArray,
    fold_N: npt.NDArray[np.int64],
    usable_N: npt.NDArray[np.bool_],
) -> tuple[FloatArray, FloatArray]:
    """Return held-out predictions (N, H) and the weights (K, H) of a fit on all usable rows.

    The penalty is the one of the lowest held-out error; all is zero if that is no lower than
    without any reading.
    """
    held_out_PNH = np.zeros((len(_PENALTIES), *y_NH.shape))
    for fold in range(FOLDS):
        path_PKH = _solve_ridge(x_NK, y_NH, usable_N & (fold_N != fold))
        held_out_PNH[:, fold_N == fold] = x_NK[fold_N == fold] @ path_PKH

    y_UH = y_NH[usable_N]
    errors_P = ((y_UH - held_out_PNH[:, usable_N]) ** 2).mean((1, 2))
    best = int(errors_P.argmin())
    if errors_P[best] >= (y_UH**2).mean():
        return np.zeros_like(y_NH), np.zeros((x_NK.shape[1], y_NH.shape[1]))
    return held_out_PNH[best], _solve_ridge(x_NK, y_NH, usable_N)[best]


def _solve_ridge(x_NK: FloatArray, y_NH: FloatArray, rows_N: npt.NDArray[np.bool_]) -> FloatArray:
    """Return the weights (P, K, H) for each penalty, by one decomposition."""
    x, y = x_NK[rows_N], y_NH[rows_N]
    values_K, vectors_KK = np.linalg.eigh(x.T @ x)
    projected_KH = vectors_KK.T @ (x.T @ y)
    return np.stack(
        [vectors_KK @ (projected_KH / (values_K[:, None] + penalty)) for penalty in _PENALTIES]
    )


def split_by_time(origins: Sequence[datetime]) -> npt.NDArray[np.int64]:
    """Return the fold (N,) of each window; windows of one origin are in one."""
    order = {origin: i for i, origin in enumerate(sorted(set(origins)))}
    return np.array([order[origin] * FOLDS // len(order) for origin in origins])


def _find_components(retriever: NewsRetriever, views: Sequence[WindowView]) -> FloatArray:
    """Return the directions (E, K) along which the articles of train windows differ most."""
    names = sorted({name for view in views for name in view.candidate_ids})
    embeddings_ME = retriever.pool.embeddings[retriever.pool.find_rows(names)].astype(np.float64)
    centred_ME = embeddings_ME - embeddings_ME.mean(0) if names else embeddings_ME
    _, vectors_EE = np.linalg.eigh(centred_ME.T @ centred_ME)
    return vectors_EE[:, ::-1][:, :_COMPONENTS]
