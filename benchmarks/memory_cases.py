"""Cases of memory: peaks of a round's forecast phase, and that both gradients are equal.

What belongs here: ``run.gradient`` joint and by agent, at the preset as it stands. What does not:
speed against other libraries (``cases``), rounds that rewrite (``preset_cases``).

A peak is that of the process during one round, so that each row needs a process of its own
(``engine``).
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.measuring import Result, build_result, time_call
from benchmarks.world import World, build_config
from compevo_core.runtime.process_memory import peak_memory_gigabytes
from compevo_core.training.round import RoundTrainer

#: The largest difference between the two gradients by type, see :func:`_compare_gradients`. Mixed
#: products round to bfloat16, and another batch of rows rounds otherwise.
LARGEST_DIFFERENCE = {"mixed": 5e-2, "float32": 1e-4}

_BYTES_PER_GIGABYTE = 1e9
_CLEAR_PEAK = Path("/proc/self/clear_refs")  # of Linux; 5 resets the high-water mark


def measure_memory(gradient: str) -> Callable[..., list[Result]]:
    """Return the case ``memory-joint`` or ``memory-by-agent``."""

    def measure(agents: int, repeats: int, *, quick: bool) -> list[Result]:
        del repeats
        world = World(build_config(agents, quick=quick, settings={"run.gradient": gradient}), 1)
        trainer = world.build_trainer(rewrites=False)
        state = world.start_state(trainer)

        # Adam's averages are there after the first update: the second round holds them as well.
        world.step(trainer, state, 0)
        _forget_peak()
        seconds, _ = time_call(lambda: world.step(trainer, state, 0))

        result = build_result(f"memory-{gradient}", world, [seconds], None, peak_memory_gigabytes())
        return [result | {"state_gb": _count_state_bytes(trainer) / _BYTES_PER_GIGABYTE}]

    return measure


def measure_gradients(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure the forecast phase with both gradients, and how much these differ.

    ``gradient``: seconds by agent, against all agents at once. ``gradient-difference``: the ratio
    is the norm of their difference over their norm, of the tensor that differs most.
    """
    results = []
    for dtype, largest in LARGEST_DIFFERENCE.items():
        measured = {}
        for gradient in ("by-agent", "joint"):
            settings = {"run.gradient": gradient}
            config = build_config(agents, quick=quick, dtype=dtype, settings=settings)
            world = World(config, repeats)
            measured[gradient] = (*_run_forecast_phases(world), peak_memory_gigabytes())

        ours, gradients, peak = measured["by-agent"]
        reference, joint_gradients, _ = measured["joint"]
        difference = _compare_gradients(gradients, joint_gradients)
        if difference > largest:
            raise ArithmeticError(
                f"{dtype} gradients of {agents} agents, joint and by agent, differ by "
                f"{difference:.1e} of their norm; see compevo_core/training/forecast_step.py"
            )

        other_way = "all agents at once"
        row = build_result("gradient", world, ours, reference, peak, other_way=other_way)
        results.append(row)
        derived = {"case": "gradient-difference", "ratio": difference}
        results.append(row | derived | {"ours_seconds": None, "reference_seconds": None})
    return results


def _run_forecast_phases(world: World) -> tuple[list[float], list[Tensor]]:
    """Time the forecast phase of each day; return the gradients of the last one."""
    trainer = world.build_trainer(rewrites=False)
    parameters = world.model.forecast_parameters()

    seconds = []
    for day, examples in enumerate(world.days):
        trainer.optimizer.zero_grad(set_to_none=True)
        rng = np.random.default_rng(day)
        began = time.perf_counter()
        trainer.forecast_step.run(world.logics, examples, rng, day)
        seconds.append(time.perf_counter() - began)
    return seconds, [each.grad.clone() for each in parameters if each.grad is not None]


def _compare_gradients(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Return the norm of the difference over the gradient's norm, of the tensor that has most."""
    ratios = [
        float((our - their).norm() / their.norm().clamp(min=torch.finfo().tiny))
        for our, their in zip(ours, theirs, strict=True)
    ]
    return max(ratios)


def _forget_peak() -> None:
    """Let the high-water mark begin anew, where the system can: loading a model is no round."""
    if _CLEAR_PEAK.exists():
        _CLEAR_PEAK.write_text("5", encoding="ascii")


def _count_state_bytes(trainer: RoundTrainer) -> int:
    """Count what grows with the agents by nature: trained tensors, gradients, Adam's averages."""
    optimizer = trainer.optimizer
    tensors: list[Tensor] = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            tensors.append(parameter)
            tensors += optimizer.state.get(parameter, {}).values()
            if parameter.grad is not None:
                tensors.append(parameter.grad)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
