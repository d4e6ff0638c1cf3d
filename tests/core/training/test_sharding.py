"""Agents or a backbone shared by processes: the weights of one, few bytes, resume by any number."""

import json
import math
import shutil

import pytest
import torch

from benchmarks.rows import REPO
from compevo_core.config.run import RunConfig
from compevo_core.data.view import DEFAULT_STEPS
from tests.support.population import tiny
from tests.support.processes import run_processes
from tests.support.shard_worker import run
from tests.support.tiny_run import Killed, read_records, read_tensors


def assert_same_model(one, other):
    ours, theirs = read_tensors(one / "model"), read_tensors(other / "model")
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value, theirs[name], rtol=0, atol=1e-5, equal_nan=True), name
        assert value.any() or "lora_B" not in name, "an adapter that never moved proves nothing"
    logics, others = ((run / "model" / "logics.json").read_text() for run in (one, other))
    assert logics == others


pytestmark = pytest.mark.slow

HEAD = {"optim__max_grad_norm": 0.1}  # low enough to bind
TEXT = HEAD | {"forecast__decoder": "text", "population__agents": 2, "grpo__group_size": 2}
TEXT |= {"run__rounds": 2, "run__batch_size": 1, "run__validate_every": 0}
TEXT |= {"forecast__history_points": 2}
JOINT = HEAD | {"news__linear": True, "news__fit": "joint", "evolution__credit": "contribution"}
JOINT |= {"grpo__carry": "record", "grpo__reward_windows": 0, "run__fixed_logics": 0}
SHORT = {"run__rounds": 2, "run__validate_every": 0}
PACKAGED_WIDTH = 576
EXACT = {
    *("round", "stage", "gradient", "evolved", "logics", "candidates", "group_logics"),
    *("unique_news", "empty_logics", "unread_answers", "answers", "equal_groups", "cut_prompts"),
}


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Return a folder of runs by one process and by two."""
    root = tmp_path_factory.mktemp("sharding")
    for name, settings in (("head-1", HEAD), ("text-1", TEXT), ("joint-1", JOINT)):
        assert run({"out": str(root / name), "set": settings}) == ""
    with pytest.raises(Killed):
        run({"out": str(root / "one-two"), "set": HEAD, "stop": 2})
    several = {"head-2": HEAD, "text-2": TEXT, "joint-2": JOINT, "one-two": HEAD}
    jobs = [
        *({"out": str(root / name), "set": settings} for name, settings in several.items()),
        *({"out": str(root / f"layers-{n}"), "layers": n, "set": SHORT} for n in (2, 4)),
        {"out": str(root / "poisoned"), "poison": 2},
        {"out": str(root / "interrupted"), "set": HEAD, "stop": 2},
    ]
    codes, errors = run_processes("tests.support.shard_worker", 2, jobs)
    assert (root / "poisoned.rank0").exists() and (root / "poisoned.rank1").exists(), errors
    assert all(codes), "the process that was not interrupted must end too"
    return root


@pytest.mark.parametrize("decoder", ["head", "text", "joint"])
def test_two_processes_train_and_record_as_one(decoder, out):
    assert_same_model(out / f"{decoder}-1", out / f"{decoder}-2")
    alone, together = (read_records(out / f"{decoder}-{count}") for count in (1, 2))

    for one, two in zip(alone, together, strict=True):
        assert one.keys() == two.keys()
        assert one["exchanged_bytes"] == {} != two["exchanged_bytes"]
        for name in one.keys() - {"exchanged_bytes"}:
            if name in EXACT or one[name] is None:
                assert one[name] == two[name], name
                continue
            # The conflict is a ratio of differences of nearly equal sums.
            tolerance = 1e-2 if name.startswith("gradient_") else 1e-4
            ours, theirs = torch.tensor(one[name]), torch.tensor(two[name])
            assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance), name


def expected_bytes(config, width, count):
    """Return what each of ``count`` processes receives in a round without validation and texts."""
    batch = config.run.batch_size
    group = config.grpo.group_size
    scored = config.grpo.reward_windows or batch
    fixed = config.run.fixed_logics
    more = 1 + fixed if fixed else 0  # the played logic and its comparators
    # The training pass, and one without dropout where there is any; the played logic again with its
    # group.
    passes = 1 + (config.population.dropout > 0 or config.news.dropout > 0)
    # What ridges read is scored by every process for all agents.
    scored = 0 if config.pays_for_readings else scored
    forecasts = 4 * DEFAULT_STEPS * (batch * passes + (1 + group + more) * scored)
    states = 2 * 4 * width  # of the candidate, and the gradient of the soft prompt
    losses = 4 * math.ceil(batch / config.run.micro_batch_size) * passes
    groups = 2 + (config.optim.fusion_lr is not None)
    sums = 8 * (3 + groups) + 8 * 4  # gradient products and norms; policy terms
    own = math.ceil(config.population.agents / count) * (forecasts + states + losses + sums)
    return (count - 1) * (own + 8 * (5 if more else 4))


def test_exchanged_bytes_do_not_grow_with_layers(out):
    small, large = (read_records(out / f"layers-{n}")[1]["exchanged_bytes"] for n in (2, 4))
    for received in (small, large):
        config = tiny(**SHORT)
        numbers = sum(v for k, v in received.items() if k not in {"texts", "agreement"})
        assert numbers == expected_bytes(config, 32, 2)
        texts = 2 * (1 + config.grpo.group_size)
        assert 0 < received["texts"] <= texts * 6 * 400 and received["agreement"] < 100
    del small["texts"], large["texts"]
    assert small == large


def test_the_documentation_has_the_exchanged_bytes():
    config = RunConfig.preset("full").with_overrides({"population.agents": 10})
    page = REPO / "docs" / "how-to" / "cluster.md"
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert f"{expected_bytes(config, PACKAGED_WIDTH, 2):,} bytes" in text


def test_any_number_continues_from_any_other(out, tmp_path):
    exchanged = [bool(record["exchanged_bytes"]) for record in read_records(out / "one-two")]
    assert exchanged == [False, False, True, True]
    assert_same_model(out / "one-two", out / "head-1")

    shutil.copytree(out / "interrupted", tmp_path / "run")
    assert len(read_records(tmp_path / "run")) == 2
    assert run({"out": str(tmp_path / "run"), "set": HEAD}) == ""
    assert_same_model(tmp_path / "run", out / "head-1")


def test_a_spoiled_agent_stops_every_process(out):
    errors = [(out / f"poisoned.rank{rank}").read_text() for rank in (0, 1)]
    assert errors[0] == errors[1]
    assert errors[0].startswith("NonFiniteLoss: round 0: ") and "agent(s) [2]" in errors[0]
    assert read_records(out / "poisoned") == []


# Few passes: every product waits for the other process.
SPLIT = {"optim__max_grad_norm": 0.1, "population__agents": 2, "population__dropout": 0.1}
SPLIT |= {"grpo__group_size": 2, "run__rounds": 2, "run__batch_size": 1, "run__fixed_logics": 0}
SPLIT |= {"run__validate_every": 0, "evolution__max_new_tokens": 4}


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Return a folder of one run by one process and by two that split the backbone."""
    root = tmp_path_factory.mktemp("split")
    assert run({"out": str(root / "one"), "set": SPLIT}) == ""
    job = {"out": str(root / "two"), "set": SPLIT, "shard": True}
    codes, errors = run_processes("tests.support.shard_worker", 2, [job])
    assert codes == [0, 0], errors
    assert [(root / f"two.rank{rank}").read_text() for rank in (0, 1)] == ["", ""]
    return root


def test_split_processes_exchange_only_gradients(split):
    # With dropout too: processes with the same agents must draw the same masks.
    assert_same_model(split / "one", split / "two")
    records, shared = (read_records(split / run) for run in ("one", "two"))
    losses = [record["loss"] for record in records]
    assert losses == pytest.approx([record["loss"] for record in shared], rel=1e-4)

    received = {name for record in shared for name in record["exchanged_bytes"]}
    assert received <= {"agreement", "gradients"}
    manifest = json.loads((split / "two" / "model" / "manifest.json").read_text())
    assert manifest["processes"] == 2


def test_one_process_goes_on_from_what_two_wrote(split, tmp_path):
    shutil.copytree(split / "two", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "round_000002")
    assert run({"out": str(tmp_path / "run"), "set": SPLIT}) == ""
    assert_same_model(tmp_path / "run", split / "one")


def test_one_process_alone_cannot_split_a_backbone(tmp_path):
    job = {"out": str(tmp_path / "run"), "set": SPLIT, "split_alone": True}
    assert "start several" in run(job)
