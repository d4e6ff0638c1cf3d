"""Everything that the rest of a run depends on comes back from a checkpoint."""

from pathlib import Path

import numpy as np
import torch

from compevo_core.training.checkpoint import load_newest_checkpoint, save_checkpoint
from compevo_core.training.generators import RunGenerators
from compevo_core.training.train_state import RunProgress, capture_state, restore_state
from tests.support.rounds import build_round_trainer


def make_generators(seed: int) -> RunGenerators:
    return RunGenerators(
        [torch.Generator().manual_seed(seed + agent) for agent in range(3)],
        np.random.default_rng(seed),
        np.random.default_rng(seed + 1),
    )


def describe_draws(generators: RunGenerators) -> list[object]:
    """What every generator of a run gives next, torch's own included."""
    numpy_draws = [rng.random() for rng in (generators.numpy_rng, generators.news_rng)]
    return [
        *(float(torch.rand((), generator=generator)) for generator in generators.agents),
        float(torch.rand(())),
        *numpy_draws,
    ]


def test_optimiser_averages_and_every_generator_are_restored(tmp_path: Path) -> None:
    trainer, state, examples = build_round_trainer(population__dropout=0.5)
    generators = make_generators(20)
    trainer.step(state, examples, generators)
    captured = capture_state(trainer, state, generators, RunProgress(0.25, 3.0))
    save_checkpoint(tmp_path, 1, captured.agents, captured.shared, captured.values, trainer.shards)
    expected = describe_draws(generators)

    other, _, _ = build_round_trainer(population__dropout=0.5)
    restored, progress = make_generators(90), RunProgress()
    torch.manual_seed(99)
    saved = load_newest_checkpoint(tmp_path, other.shards)
    assert saved is not None
    again = restore_state(saved, other, restored, progress)

    assert (again.round, again.logics, again.rewards) == (1, state.logics, state.rewards)
    assert (progress.best_error, progress.train_seconds) == (0.25, 3.0)
    assert describe_draws(restored) == expected

    ours, theirs = (t.optimizer.state_dict()["state"] for t in (trainer, other))
    assert ours.keys() == theirs.keys() and len(ours) > 0
    for index, slot in ours.items():
        for key, value in slot.items():
            assert torch.equal(value, theirs[index][key]), f"{index}.{key}"
