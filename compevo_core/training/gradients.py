"""Norms over the gradients of all agents, those of other processes included.

What belongs here: sums over gradients that need every agent, for clipping and for the conflict of
appendix B.2. What does not: what is differentiated (``training.forecast_step``,
``training.update``), the condition itself (``diagnostics.theory``).

Processes with agents of their own exchange one sum of squares an agent, never a gradient.

Shapes: A agents, K sums of a parameter.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from compevo_core.agents.objective import require_finite
from compevo_core.diagnostics.theory import GradientConflict, gradient_conflict, gradient_norm
from compevo_core.training.model import PopulationModel

_NORM_FLOOR = 1e-6  # as in torch's clip_grad_norm_


class Gradients:
    """Measures and clips the gradients of a model whose agents may be spread over processes."""

    def __init__(self, model: PopulationModel) -> None:
        self.shards = model.shards
        self.device = model.backbone.device
        self._shared = {id(parameter) for parameter in model.shared_parameters()}

    def clip(
        self,
        groups: Sequence[Sequence[nn.Parameter]],
        max_norm: float,
        round_number: int,
        *,
        by_agent: bool = False,
    ) -> float:
        """Scale the gradient of each group down to a norm of at most ``max_norm``.

        Args:
            groups: parameters by group; those without a gradient do not count.
            max_norm: the limit; 0 leaves the gradients as they are.
            round_number: for messages.
            by_agent: whether each agent has a norm of its own, as it would have alone; such groups
                hold nothing that agents share.

        Returns:
            the Euclidean norm of all groups together, before that.

        Raises:
            NonFiniteLoss: a gradient is NaN or infinite; on every process.
        """
        # Each group is clipped at its own norm (decision 22): under one norm over both, a large
        # gradient of the forecast would shrink the step of the policy.
        norms = []
        for group in groups:
            gradients = [(p, p.grad) for p in group if p.grad is not None]
            self.shards.unify_gradients(gradient for _, gradient in gradients)
            squares = ((parameter, [gradient.square()]) for parameter, gradient in gradients)
            square_A, shared_square = self._sum_by_agent(squares, 1)
            require_finite("the gradient", square_A[:, 0], round_number)
            require_finite("the gradient of gates and fusion", shared_square[0], round_number)

            # The shared parameters count once: their gradient is the same on every process.
            norm = float(square_A.sum() + shared_square[0]) ** 0.5
            norms.append(norm)
            if by_agent:
                norm_A = self.shards.local(square_A[:, 0]).sqrt()
                for _, gradient in gradients:
                    scale_A = _scale(norm_A, max_norm).to(gradient.dtype)
                    gradient.mul_(scale_A.view(-1, *[1] * (gradient.dim() - 1)))
                continue

            scale = min(1.0, max_norm / (norm + _NORM_FLOOR)) if max_norm else 1.0
            for _, gradient in gradients:
                gradient.mul_(scale)
        return gradient_norm(norms)

    def conflict(
        self, parameters: Sequence[nn.Parameter], regulariser_grads: Sequence[Tensor | None]
    ) -> GradientConflict:
        """Return the condition of appendix B.2 (Eq. 22 and 23). Call it before clipping.

        Args:
            parameters: with the whole gradient in ``.grad``.
            regulariser_grads: the part of it that comes from L_div and L_prune, None for none: of
                such a parameter nothing is copied.
        """
        products = _multiply_gradients(parameters, regulariser_grads)
        sums_AK, shared_K = self._sum_by_agent(products, 3)
        main, regulariser, inner_product = (sums_AK.sum(0) + shared_K).tolist()
        return gradient_conflict(main**0.5, regulariser**0.5, inner_product)

    def _sum_by_agent(
        self, terms: Iterable[tuple[nn.Parameter, Sequence[Tensor]]], count: int
    ) -> tuple[Tensor, Tensor]:
        """Sum ``count`` tensors a parameter: by agent (A, K), and over what all share (K,)."""
        # float64: millions of squares of float32 would lose the small ones.
        local_AK = torch.zeros(
            len(self.shards.local_agents), count, dtype=torch.float64, device=self.device
        )
        shared_K = torch.zeros(count, dtype=torch.float64, device=self.device)

        for parameter, values in terms:
            for k, value in enumerate(values):
                # Parameters of agents are stacked: their first dimension is the agent.
                if id(parameter) in self._shared:
                    shared_K[k] += value.sum()
                else:
                    local_AK[:, k] += value.flatten(1).sum(1)
        return self.shards.all_gather(local_AK, "norms"), shared_K


def _scale(norm_A: Tensor, max_norm: float) -> Tensor:
    if not max_norm:
        return torch.ones_like(norm_A)
    return (max_norm / (norm_A + _NORM_FLOOR)).clamp(max=1.0)


def _multiply_gradients(
    parameters: Sequence[nn.Parameter], regulariser_grads: Sequence[Tensor | None]
) -> Iterator[tuple[nn.Parameter, list[Tensor]]]:
    """Yield squares and product of the two parts of each gradient: what norms and cosine need."""
    for parameter, part in zip(parameters, regulariser_grads, strict=True):
        if parameter.grad is None:
            continue

        if part is None:
            yield parameter, [parameter.grad.square()]  # the other two sums get zero from it
        else:
            main = parameter.grad - part
            yield parameter, [main.square(), part.square(), main * part]
