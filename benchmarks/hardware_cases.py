"""Cases of the processor and of single products, without a round.

What belongs here: how near the backbone comes to the processor's own speed, and our products with
frozen layers beside torch's. What does not: cases of a population (``cases``).
"""

import statistics

import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.measuring import Result, build_result, time_call
from benchmarks.world import World, build_config
from compevo_core.lm.frozen_linear import linear_without_grad
from compevo_core.runtime.process_memory import peak_memory_gigabytes

_CALLS_A_REPEAT = 5  # of one product, which takes milliseconds
_MATRIX_SIDE = 2048
_QUICK_MATRIX_SIDE = 128
_PROMPT_TOKENS = 512
_QUICK_PROMPT_TOKENS = 64
_PRODUCT_ROWS = (3, 24, 768)  # decoding for 3 agents, for their groups of 8, and a prefill


@torch.no_grad()
def measure_ceiling(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure the processor's own ceiling and how near the backbone comes.

    ``matmul-2048``: seconds of one float32 product of 2048 x 2048 matrices; the ratio is GFLOP/s.
    ``backbone-forward``: seconds of one prompt of 512 tokens, against the seconds that its
    multiplications would take at that speed; the ratio is the share of the ceiling reached.
    """
    del agents
    world = World(build_config(1, quick=quick, dtype="float32"), 1)

    side = _QUICK_MATRIX_SIDE if quick else _MATRIX_SIDE
    a, b = torch.randn(2, side, side)
    torch.mm(a, b)  # warms up
    products = [time_call(lambda: torch.mm(a, b))[0] for _ in range(_CALLS_A_REPEAT * repeats)]
    flop_per_second = 2 * side**3 / statistics.median(products)

    tokens = _QUICK_PROMPT_TOKENS if quick else _PROMPT_TOKENS
    ids = torch.randint(3, 200, (1, tokens), generator=torch.Generator().manual_seed(0))
    decoder = world.model.backbone.decoder
    forwards = [
        time_call(lambda: decoder(input_ids=ids, use_cache=False))[0] for _ in range(repeats + 1)
    ]
    del forwards[0]  # warms up

    peak = peak_memory_gigabytes()
    ideal = _count_flop(world, tokens) / flop_per_second
    matmul = build_result("matmul-2048", world, products, None, peak)
    matmul["ratio"] = flop_per_second / 1e9
    forward = build_result("backbone-forward", world, forwards, [ideal], peak)
    return [row | {"repeats": repeats} for row in (matmul, forward)]


@torch.no_grad()
def measure_products(agents: int, repeats: int, *, quick: bool) -> list[Result]:
    """Measure products with all frozen layers for few rows and many, against torch's own.

    Torch multiplies in float32; for weights in bfloat16 it does so in that type too, in rows
    ``bfloat16-N-rows``.
    """
    del agents
    results = []
    for dtype, name, other_type in (
        ("mixed", "products", torch.float32),
        ("mixed", "bfloat16", torch.bfloat16),
        ("float32", "products", torch.float32),
    ):
        world = World(build_config(1, quick=quick, dtype=dtype), 1)
        weights = [layer.base.weight for layer in world.model.population.layers.values()]
        for rows in _PRODUCT_ROWS:
            ours, reference = _time_products(weights, rows, other_type, _CALLS_A_REPEAT * repeats)
            row = build_result(
                f"{name}-{rows}-rows",
                world,
                ours,
                reference,
                peak_memory_gigabytes(),
                other_way="torch linear" + (", bfloat16" if name == "bfloat16" else ""),
            )
            results.append(row | {"repeats": repeats})
    return results


def _time_products(
    weights: list[Tensor], rows: int, other_type: torch.dtype, calls: int
) -> tuple[list[float], list[float]]:
    """Time products of all weights, ours and torch's in turn; the first call warms up."""
    plain_weights = [weight.to(other_type) for weight in weights]
    inputs = {width: torch.randn(rows, width) for width in {w.shape[1] for w in weights}}
    other_inputs = {width: rows_ND.to(other_type) for width, rows_ND in inputs.items()}

    ours: list[float] = []
    reference: list[float] = []
    for _ in range(calls + 1):
        seconds, _ = time_call(
            lambda: [linear_without_grad(inputs[w.shape[1]], w) for w in weights]
        )
        ours.append(seconds)
        seconds, _ = time_call(lambda: [linear(other_inputs[w.shape[1]], w) for w in plain_weights])
        reference.append(seconds)
    return ours[1:], reference[1:]


def _count_flop(world: World, tokens: int) -> int:
    """Count the multiplications and additions of one prompt."""
    layers = world.model.population.layers.values()
    parameters = sum(layer.base.weight.numel() for layer in layers)
    blocks = world.model.backbone.model.config.num_hidden_layers

    # Scores and their product with the values, causal: half of 2 x 2 T^2 D a block.
    attention = 2 * tokens**2 * world.model.backbone.hidden_size * blocks
    return 2 * parameters * tokens + attention
