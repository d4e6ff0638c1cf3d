"""Which adapters a forward pass uses, and why its backward pass cannot use others.

What belongs here: the kinds of adapters, the immutable route of a forward pass, and the router
that holds the active route. What does not: the adapters' arithmetic (``lm.stacked_lora``), putting
them into a backbone (``lm.population``).

A forward pass reads the active route, and autograd keeps the adapters it used. Gradient
checkpointing keeps nothing and runs a layer again in the backward pass, when another route may be
active. :meth:`AdapterRouter.checkpoint_contexts` therefore binds the route of the forward pass to
the recomputation, so that a backward pass gives the same gradients wherever it is called.
"""

import contextlib
import dataclasses
from types import TracebackType

import torch

FORECAST = "forecast"
LOGIC = "logic"
KINDS = (FORECAST, LOGIC)  # paper 5.1: two adapters an agent
VALUE = "value"
VERIFIER = "verifier"
DEBATE_KINDS = (FORECAST, VALUE, VERIFIER)  # paper D.4: three in a debate, the first its policy

_NO_BACKWARD = -1  # what torch answers outside a backward pass


@dataclasses.dataclass(frozen=True)
class AdapterRoute:
    """The adapters of one forward pass.

    Attributes:
        kind: one of :data:`KINDS` or :data:`DEBATE_KINDS`, or ``None`` for the frozen backbone
            without adapters.
        agents: which of the stacked agents the rows of the batch belong to.
        dropout: probability of dropping an adapter's input, drawn from torch's global generator.
    """

    kind: str | None = None
    agents: slice = dataclasses.field(default_factory=lambda: slice(None))
    dropout: float = 0.0


class AdapterRouter:
    """Holds the active route of one population; its layers share the router."""

    def __init__(self, route: AdapterRoute | None = None) -> None:
        # Without a route the backbone is frozen: no adapter is ever active by accident.
        self._active = AdapterRoute() if route is None else route
        self._is_recomputing = False

    @property
    def active(self) -> AdapterRoute:
        """The route that a layer uses now.

        Raises:
            RuntimeError: a layer is recomputed in a backward pass and its route is not known.
        """
        # Whatever is active now belongs to another forward pass.
        if not self._is_recomputing and _runs_in_backward():
            raise RuntimeError(
                "a layer with adapters is recomputed in a backward pass without the route of its "
                "forward pass. Set backbone.gradient_checkpointing and let Population enable "
                "checkpointing, rather than enabling it on the model"
            )
        return self._active

    def use(self, route: AdapterRoute) -> contextlib.AbstractContextManager[None]:
        """Activate a route within a ``with`` block."""
        return _ActiveRoute(self, route, is_recomputing=False)

    def checkpoint_contexts(
        self,
    ) -> tuple[contextlib.AbstractContextManager[None], contextlib.AbstractContextManager[None]]:
        """Return the contexts of a checkpointed layer's forward pass and of its recomputation.

        This is the ``context_fn`` of ``torch.utils.checkpoint.checkpoint``, which calls it in the
        forward pass.
        """
        # The forward pass runs under the active route already; the recomputation gets it back.
        return contextlib.nullcontext(), _ActiveRoute(self, self._active, is_recomputing=True)


class _ActiveRoute(contextlib.AbstractContextManager[None]):
    """Set a router's state within a block.

    A class, since a generator's context is entered once only: a graph that is kept
    (``retain_graph``) recomputes its layers in each of its backward passes.
    """

    def __init__(self, router: AdapterRouter, route: AdapterRoute, *, is_recomputing: bool) -> None:
        self._router = router
        self._inside = (route, is_recomputing)
        self._outside: list[tuple[AdapterRoute, bool]] = []

    def __enter__(self) -> None:
        # A stack, as one block may be entered again inside itself.
        self._outside.append((self._router._active, self._router._is_recomputing))
        self._router._active, self._router._is_recomputing = self._inside

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._router._active, self._router._is_recomputing = self._outside.pop()


def _runs_in_backward() -> bool:
    # torch has no public question for this; its own checkpointing asks the same.
    return torch._C._current_graph_task_id() != _NO_BACKWARD
