"""A fitted network as a baseline: the table of networks, fit, predict, save and load.

What belongs here: names, learning rates, files. What does not: the networks, the loop that fits
them (``fitting``), scoring.

One learning rate serves all of them unless validation chooses one of a few, each tried for the same
few passes. Weights are kept as safetensors; of GPT4TS those alone that were trained.

Shapes: N windows, H horizon.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from compevo_core.baselines.base import (
    read_baseline_file,
    refuse_held_out_splits,
    stack_rows,
    write_baseline_file,
)
from compevo_core.baselines.facts import MethodFacts
from compevo_core.data.arrays import FloatArray
from compevo_core.data.files import write_atomically
from compevo_core.data.scaling import Scaler
from compevo_core.data.view import WindowView
from compevo_core.data.window import WindowSet
from compevo_core.errors import CheckpointMismatch, ConfigError, DataError
from compevo_core.lm import backbone
from compevo_core.lm.seeding import draw_with_seed
from compevo_core.networks.dlinear import DLinear
from compevo_core.networks.fedformer import FEDformer
from compevo_core.networks.film import FiLM
from compevo_core.networks.fitting import FitBudget, FitReport, fit_network, forecast_scaled
from compevo_core.networks.gpt4ts import GPT4TS, PatchNetwork
from compevo_core.networks.inputs import NetworkInputs
from compevo_core.networks.itransformer import ITransformer
from compevo_core.networks.layers import Network, count_trainable
from compevo_core.networks.pyraformer import Pyraformer

WEIGHTS_FILE = "weights.safetensors"

Encode = Callable[[Sequence[WindowView], Scaler], NetworkInputs]
"""From views and the scales of the train split to what a network is given."""

LEARNING_RATE = 1e-3

_FORECAST_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkKind:
    """One network of the comparison.

    Attributes:
        make: builds it, with weights drawn from torch's generator.
        seeds: how many seeds its rows have.
        encode: makes its inputs; networks that read text add theirs.
        backbone: the pretrained model that it is made of; empty for most.
    """

    make: Callable[[], Network]
    seeds: int = 5
    encode: Encode = NetworkInputs.encode
    backbone: str = ""


def _make_gpt4ts() -> Network:
    # It copies the layers whose norms it trains: other methods read the same backbone.
    return GPT4TS(backbone.load_packaged().decoder)


NETWORKS: dict[str, NetworkKind] = {
    "dlinear": NetworkKind(make=DLinear),
    "itransformer": NetworkKind(make=ITransformer),
    "film": NetworkKind(make=FiLM),
    "pyraformer": NetworkKind(make=Pyraformer),
    "fedformer": NetworkKind(make=FEDformer),
    "gpt4ts": NetworkKind(make=_make_gpt4ts, seeds=3, backbone=backbone.PACKAGED),
    "gpt4ts-no-lm": NetworkKind(make=PatchNetwork),
}
"""Every network by the name that its result rows carry."""


class NetworkBaseline:
    """A fitted network with the scales of its train split."""

    def __init__(
        self,
        name: str,
        network: Network,
        scaler: Scaler,
        report: FitReport | None = None,
        kind: NetworkKind | None = None,
    ) -> None:
        """Take a fitted network; use :meth:`fit` or :meth:`load`."""
        self._name = name
        self._kind = kind or find_network(name)
        self._network = network.eval()
        self._scaler = scaler
        self.report = report

    @property
    def name(self) -> str:
        """The method name in result rows."""
        return self._name

    @property
    def facts(self) -> MethodFacts:
        """What rows say about it."""
        pretrained = self._kind.backbone
        return MethodFacts(
            trainable_parameters=count_trainable(self._network),
            learning_rate=None if self.report is None else self.report.learning_rate,
            backbone=pretrained,
            knowledge_cutoff=backbone.KNOWLEDGE_CUTOFFS.get(pretrained, ""),
        )

    @classmethod
    def fit(
        cls,
        name: str,
        train: WindowSet,
        val: WindowSet,
        *,
        seed: int = 0,
        learning_rate: float = LEARNING_RATE,
        budget: FitBudget | None = None,
        kind: NetworkKind | None = None,
    ) -> Self:
        """Fit a network on train windows; validation decides when it ends.

        Args:
            name: one of :data:`NETWORKS`, or that of ``kind``.
            train: windows of the train split.
            val: windows of the validation split.
            seed: of weights, order of windows and dropout.
            learning_rate: of AdamW.
            budget: another than that of all networks.
            kind: a network that is not in the table, as those that read news.

        Raises:
            ConfigError: the name is unknown.
            LeakageError: a window is of the test or inference split.
            DataError: one of the splits has no window.
            NonFiniteLoss: the fit diverged.
        """
        kind = kind or find_network(name)
        refuse_held_out_splits(train, name)
        refuse_held_out_splits(val, name)

        network = draw_network(kind, seed)
        scaler = Scaler.fit(train)
        report = fit_network(
            network,
            prepare_windows(train, scaler, kind.encode),
            prepare_windows(val, scaler, kind.encode),
            learning_rate=learning_rate,
            seed=seed,
            budget=budget,
        )
        return cls(name, network, scaler, report, kind)

    @torch.no_grad()
    def predict(self, views: Sequence[WindowView]) -> FloatArray:
        """Return forecasts (N, 48) in each view's unit."""
        # torch splits nothing into one empty batch, which a Fourier transform refuses.
        if not views:
            return stack_rows([])

        inputs = self._kind.encode(views, self._scaler)
        batches = torch.split(torch.arange(len(views)), _FORECAST_BATCH)
        scaled = [forecast_scaled(self._network, inputs.select(batch)) for batch in batches]
        rows = [row.double().numpy() for batch in scaled for row in batch]

        return stack_rows(
            [self._scaler.unscale(row, view.entity) for row, view in zip(rows, views, strict=True)]
        )

    def save(self, folder: Path) -> None:
        """Write the trained weights and, last, ``baseline.json``."""
        weights = _select_weights(self._network)
        write_atomically(folder / WEIGHTS_FILE, lambda part: save_file(weights, part))
        write_baseline_file(
            folder,
            self.name,
            scaler=self._scaler.to_json(),
            report=None if self.report is None else asdict(self.report),
        )

    @classmethod
    def load(cls, folder: Path, kind: NetworkKind | None = None) -> Self:
        """Read what :meth:`save` wrote.

        Args:
            folder: where it was written.
            kind: a network that is not in the table, as :meth:`fit` was given it.

        Raises:
            CheckpointMismatch: the folder is incomplete, or its weights are of another network.
            ConfigError: it holds no network.
        """
        facts = read_baseline_file(folder)
        kind = kind or find_network(facts["baseline"])
        network = kind.make()
        weights = load_file(folder / WEIGHTS_FILE)

        shapes = {name: value.shape for name, value in weights.items()}
        if shapes != {name: value.shape for name, value in _select_weights(network).items()}:
            raise CheckpointMismatch(
                f"{folder / WEIGHTS_FILE} holds weights of another {facts['baseline']}; "
                "fit it again"
            )
        network.load_state_dict(weights, strict=False)

        report = FitReport(**facts["report"]) if facts["report"] else None
        scaler = Scaler.from_json(facts["scaler"])
        return cls(facts["baseline"], network, scaler, report, kind)


def find_network(name: str) -> NetworkKind:
    """Return what is known of a network.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in NETWORKS:
        raise ConfigError(f"no network {name!r}; known: {', '.join(NETWORKS)}")
    return NETWORKS[name]


def draw_network(kind: NetworkKind, seed: int) -> Network:
    """Return a network whose weights are drawn with a seed."""
    # The caller's generator stays as it was; equal seeds give equal weights.
    with draw_with_seed(seed):
        return kind.make()


def prepare_windows(
    windows: WindowSet, scaler: Scaler, encode: Encode
) -> tuple[NetworkInputs, Tensor]:
    """Return inputs and scaled targets (N, H), NaN where masked."""
    target_NH = np.stack([scaler.scale(window.y, window.view.entity) for window in windows])
    if not np.isfinite(target_NH).any():
        raise DataError(
            f"no target of {len(windows)} windows of {windows.dataset} is known; build them again"
        )
    return encode(windows.views(), scaler), torch.tensor(target_NH, dtype=torch.float32)


def _select_weights(network: Network) -> dict[str, Tensor]:
    """Return trained weights and buffers; frozen layers of a backbone are left out."""
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    return {
        name: value.contiguous()
        for name, value in network.state_dict().items()
        if name not in frozen
    }
