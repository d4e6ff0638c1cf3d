"""A backbone whose layers two processes hold: the numbers of one, half of the weights each."""

import json

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.rows import run_processes
from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import ConfigError
from compevo_core.lm.backbone import load_backbone
from tests.support.weight_worker import measure


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the tiny backbone and its tokenizer, as a model comes from the hub."""
    path = tmp_path_factory.mktemp("backbone")
    backbone = load_backbone(BackboneConfig(name_or_path="tiny-random"), device="cpu")
    backbone.model.save_pretrained(path)
    backbone.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def results(folder, tmp_path_factory):
    """What one process computes, and what each of two that split the layers does."""
    out = tmp_path_factory.mktemp("split") / "result"
    job = {"folder": str(folder), "out": str(out), "checkpointing": True}
    done = run_processes("tests.support.weight_worker", 2, json.dumps(job), timeout=300)
    assert [process.returncode for process in done] == [0, 0], done
    alone = measure(BackboneConfig(name_or_path=str(folder)), shard=False)
    return alone, [load_file(f"{out}.rank{rank}") for rank in (0, 1)]


@pytest.mark.slow
def test_each_process_holds_half_of_every_layer(results):
    alone, shared = results
    for one in shared:
        assert len(one["held"]) == 14 and torch.equal(2 * one["held"], alone["held"])


@pytest.mark.slow
def test_states_gradients_and_samples_are_those_of_one_process(results):
    alone, shared = results
    assert alone["gradient_01"].any()
    for one in shared:
        assert torch.equal(one["ids"], alone["ids"])
        for name in alone.keys() - {"held", "ids"}:
            # Small entries of a gradient are sums that cancel: the largest one sets the scale.
            difference = (one[name] - alone[name]).abs().max()
            assert difference <= 1e-4 * alone[name].abs().max(), name


@pytest.mark.slow
def test_the_processes_agree_bit_for_bit(results):
    _, (first, second) = results
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(second["drifted"], torch.ones(2)), "gradients are those of the first"


def test_random_layers_cannot_be_split():
    config = BackboneConfig(name_or_path="tiny-random", weights="random")
    with pytest.raises(ConfigError, match="leave shard_backbone out"):
        load_backbone(config, device="cpu", shard=True)
