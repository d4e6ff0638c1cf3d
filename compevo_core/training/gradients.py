"""Norms of all agents' gradients, those of other processes included: clipping, and the conflict of appendix B.2.

What belongs here: sums over gradients that need every agent. What does not: what is differentiated (``rounds``), the
condition itself (``theory``). Processes tell each other one sum of squares an agent, never a gradient.
Legend: A agents, K sums.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from compevo_core.agents.objective import require_finite
from compevo_core.diagnostics.theory import (
    GradientConflict,
    gradient_conflict_from_products,
    gradient_norm,
)
from compevo_core.training.model import PopulationModel

_NORM_FLOOR = 1e-6  # as torch's clip_grad_norm_


class Gradients:
    """Measures and clips the gradients of a learner whose agents may be spread over processes."""

    def __init__(self, learner: PopulationModel) -> None:
        self.shards, self.device = learner.shards, learner.backbone.device
        self._shared = {id(parameter) for parameter in learner.shared_parameters()}

    def clip(
        self, groups: Sequence[Sequence[nn.Parameter]], limit: float, round_number: int
    ) -> float:
        """Scales each group's gradient down to norm ``limit`` (0: not at all); returns the norm of all before that.

        Raises:
            NonFiniteLoss: a gradient is NaN or infinite; on every process.
        """
        norms = []
        for group in groups:
            found = [(p, p.grad) for p in group if p.grad is not None]
            square_A, shared = self._sums(((p, [grad.square()]) for p, grad in found), 1)
            require_finite("the gradient", square_A[:, 0], round_number)
            require_finite("the gradient of gates and fusion", shared[0], round_number)
            norms.append(float(square_A.sum() + shared[0]) ** 0.5)
            scale = min(1.0, limit / (norms[-1] + _NORM_FLOOR)) if limit else 1.0
            for _, grad in found:
                grad.mul_(scale)
        return gradient_norm(norms)

    def conflict(
        self, parameters: Sequence[nn.Parameter], strategy: Sequence[Tensor | None]
    ) -> GradientConflict:
        """The condition of appendix B.2 between the ``strategy`` gradients and the rest, before clipping."""
        sums_AK, shared_K = self._sums(_products(parameters, strategy), 3)
        main, regular, inner = (sums_AK.sum(0) + shared_K).tolist()
        return gradient_conflict_from_products(main**0.5, regular**0.5, inner)

    def _sums(
        self, terms: Iterable[tuple[nn.Parameter, Sequence[Tensor]]], count: int
    ) -> tuple[Tensor, Tensor]:
        """Sums of ``count`` tensors a parameter: by agent (A, K), and over what all processes share (K,)."""
        own_AK = torch.zeros(
            len(self.shards.local_agents), count, dtype=torch.float64, device=self.device
        )
        shared_K = torch.zeros(count, dtype=torch.float64, device=self.device)
        for parameter, values in terms:
            for k, value in enumerate(values):
                if id(parameter) in self._shared:
                    shared_K[k] += value.sum()
                else:
                    own_AK[:, k] += value.flatten(1).sum(1)
        return self.shards.all_gather(own_AK, "norms"), shared_K


def _products(
    parameters: Sequence[nn.Parameter], strategy: Sequence[Tensor | None]
) -> Iterable[tuple[nn.Parameter, list[Tensor]]]:
    for parameter, part in zip(parameters, strategy, strict=True):
        if parameter.grad is not None:
            regular = torch.zeros_like(parameter.grad) if part is None else part
            main = parameter.grad - regular
            yield parameter, [main.square(), regular.square(), main * regular]
