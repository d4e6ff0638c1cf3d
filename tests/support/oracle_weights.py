"""Copying our weights into the networks of other libraries.

What belongs here: pairing of names, and the forms that other libraries keep the same weights in.
What does not: which library has which names (``oracle_networks``).
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

Weights = dict[str, Tensor]
"""Tensors by the names that a network gives them."""

PROJECTIONS = ("query", "key", "value")


def read_weights(network: nn.Module) -> Weights:
    return {name: weight.detach() for name, weight in network.named_parameters()}


@torch.no_grad()
def copy_weights(
    theirs: nn.Module,
    weights: Weights,
    names: Mapping[str, str],
    *,
    unread: tuple[str, ...] = (),
    extra: str = "-",
) -> nn.Module:
    """Give a network our weights; all of theirs and of ours are in it, or are named.

    Args:
        theirs: the other library's network; it ends in evaluation mode.
        weights: ours.
        names: from names of their layers or weights to ours.
        unread: words in names of theirs that no forecast reads.
        extra: a word in names of ours that they lack.
    """
    taken = set()
    # A layer that theirs shares has several names.
    for name, weight in theirs.named_parameters(remove_duplicate=False):
        layer, _, last = name.rpartition(".")
        ours = names.get(name) or (f"{names[layer]}.{last}" if layer in names else None)
        if ours is None:
            assert any(word in name for word in unread), f"{name} is nothing of ours"
            continue
        weight.copy_(weights[ours].reshape(weight.shape))
        taken.add(ours)

    assert {name for name in weights if extra not in name} == taken
    return theirs.eval()


def name_attention(theirs: str, ours: str) -> dict[str, str]:
    parts = {f"{theirs}.{part}_projection": f"{ours}.{part}" for part in PROJECTIONS}
    return parts | {f"{theirs}.out_projection": f"{ours}.out_proj"}


def split_attention(weights: Weights) -> Weights:
    """Return weights whose joint projection of attention is three."""
    split = {name: weight for name, weight in weights.items() if "in_proj_" not in name}
    for name in weights.keys() - split.keys():
        layer, _, last = name.partition("in_proj_")
        for part, weight in zip(PROJECTIONS, weights[name].chunk(3), strict=True):
            split[f"{layer}{part}.{last}"] = weight
    return split


def join_complex(weights: Weights) -> Weights:
    """Return weights whose real and imaginary parts are one."""
    parts = (".real", ".imaginary")
    joined = {name: weight for name, weight in weights.items() if not name.endswith(parts)}
    for mix in {name.rpartition(".")[0] for name in weights.keys() - joined.keys()}:
        joined[mix] = torch.complex(*(weights[mix + part] for part in parts))
    return joined
