"""On a GPU: the numbers of the processor, resume, a model that any machine reads, NCCL."""

import copy

import numpy as np
import pytest
import torch
from torch import distributed as dist

from compevo_core.config.sections import BackboneConfig
from compevo_core.forecast.forecaster import CompEvoForecaster
from compevo_core.lm.backbone import TINY, load_backbone, split_loaded_layers
from compevo_core.lora.backbone import linear_without_grad
from compevo_core.runtime.distributed import AgentShards
from tests.support.population import news_pool, tiny, windows
from tests.support.tiny_run import Killed, kill_after, read_records, train_days, train_tiny

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
pytestmark = [pytest.mark.gpu, needs_gpu]


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({}, 1e-4),
        ({"run.gradient": "by-agent"}, 1e-4),
        ({"backbone.gradient_checkpointing": True}, 1e-4),
        ({"forecast.decoder": "text", "forecast.prior": "none"}, 1e-4),
        ({"backbone.dtype": "mixed"}, 2e-2),
        ({"backbone.dtype": "bfloat16"}, 5e-2),
    ],
)
def test_supervised_rounds_have_the_losses_of_the_processor(settings, tolerance, tmp_path):
    config = tiny(run__supervised_epochs=1, run__rounds=1).with_overrides(settings)
    losses = {}
    for device in ("cpu", "cuda"):
        backbone = load_backbone(config.backbone, device=device)
        train_days(config, tmp_path / device, days=4, backbone=backbone)
        records = read_records(tmp_path / device)
        # Up to the first sample: processor and GPU draw other numbers.
        losses[device] = [record["loss_pred"] for record in records if not record["evolved"]]

    assert len(losses["cpu"]) == 4
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=tolerance)


def test_a_stopped_run_ends_like_an_undisturbed_one(tmp_path):
    train_tiny(tmp_path / "whole")
    with pytest.raises(Killed):
        train_tiny(tmp_path / "stopped", on_round=kill_after(3))
    torch.cuda.manual_seed(999)  # another process would start elsewhere
    train_tiny(tmp_path / "stopped")

    # Not to the bit: a GPU adds in no fixed order.
    stopped, whole = (read_records(tmp_path / name) for name in ("stopped", "whole"))
    for one, other in zip(stopped, whole, strict=True):
        assert one["logics"] == other["logics"]
        for name in ("loss_pred", "loss_own", "loss_pg", "loss_div"):
            assert one[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6)


def test_a_gpu_model_forecasts_alike_on_processors(tmp_path):
    train_tiny(tmp_path)
    views = windows("test", 2, first_day=30).views()
    values = {}
    for device in ("cpu", "cuda"):
        backbone = load_backbone(BackboneConfig(name_or_path=TINY), device=device)
        forecaster = CompEvoForecaster.load(tmp_path, news_pool(), backbone=backbone)
        values[device] = forecaster.predict(views)
    assert np.abs(values["cuda"] - values["cpu"]).max() < 1e-3 * np.abs(values["cpu"]).max()


@pytest.fixture
def nccl():
    """A process group of one process: NCCL takes no second one on the same GPU."""
    store = dist.HashStore()
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_what_processes_tell_each_other_passes_through_nccl(nccl):
    shards = AgentShards(2, 0, 1)
    for values in (np.arange(3), np.ones(2, dtype=np.uint8), torch.ones(2, 3, device="cuda")):
        (block,) = shards._all_gather_equal(values, "test")
        assert block.is_cuda
        assert np.array_equal(block.cpu(), torch.as_tensor(values).cpu())
    said = {"logics": ["heat wave"]}
    assert shards._all_gather_values(said, "test") == [said]


def test_a_split_backbone_multiplies_as_a_whole(nccl):
    model = load_backbone(BackboneConfig(name_or_path=TINY), device="cuda").model
    whole = copy.deepcopy(model)
    split_loaded_layers(model, 1, "cuda")
    name = "model.layers.0.mlp.up_proj"
    weight, plain = (each.get_submodule(name).weight for each in (model, whole))
    x = torch.randn(2, 5, plain.shape[1], device="cuda")
    assert torch.allclose(linear_without_grad(x, weight), x @ plain.t(), atol=1e-5)
