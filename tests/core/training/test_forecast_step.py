"""The first half of a round: L_pred's gradient by hand, in parts, agent by agent, under dropout."""

import dataclasses
import weakref

import numpy as np
import pytest
import torch

from compevo_core.agents import text_decoder
from compevo_core.agents.prompts import SEED_LOGICS
from compevo_core.agents.selection import aggregate_forecasts, forecast_error
from compevo_core.agents.strategy import StrategyExecutor, list_news
from compevo_core.lora.population import Population
from compevo_core.training import forecast_step
from compevo_core.training.schedule import RunGenerators
from tests.support.answers import answer_in_numbers
from tests.support.models import make_batch
from tests.support.population import tiny, windows
from tests.support.rounds import build_round_trainer, run_step

MEMBERS = ({"window_share": 0.5}, {"seed": 1}, {})


@pytest.fixture(autouse=True)
def _short_answers(monkeypatch):
    # A random backbone writes no numbers; it need not write many tokens either.
    monkeypatch.setattr(text_decoder, "_TOKENS_PER_NUMBER", 1)


def build(**overrides):
    """A trainer away from its start, its logics, and three windows: no whole micro-batch of two."""
    trainer, state, _ = build_round_trainer(run__batch_size=3, **overrides)
    examples = make_batch(tiny(**overrides), windows("train", 2))[:3]
    return trainer, state.logics, examples


def run_forecasts(trainer, logics, examples, seed=0):
    """Run the first half of a round; return it, and every gradient by group and position."""
    trainer.update.optimizer.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    rng = np.random.default_rng(seed)
    played = trainer.forecast_step.run(logics, examples, RunGenerators([], rng, rng), 0)
    return played, collect_gradients(trainer.model)


def collect_gradients(model):
    groups = {"adapters": model.adapter_parameters(), "heads": model.head_parameters()}
    groups["gates"] = model.gate_parameters()
    return {
        f"{name}.{i}": parameter.grad.clone()
        for name, group in groups.items()
        for i, parameter in enumerate(group)
        if parameter.grad is not None
    }


def assert_close(ours, theirs, tolerance):
    """Compare gradients, each against the largest of its tensor."""
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        # Where all forecasts are alike, the gates' gradient is rounding.
        limit = max(tolerance * float(theirs[name].abs().max()), 1e-9)
        assert float((gradient - theirs[name]).abs().max()) <= limit, name


def run_both(key, values, **settings):
    shared = {"objective__lambda_own": 0.5, "population__members": MEMBERS, **settings}
    return [run_forecasts(*build(**{key: value}, **shared)) for value in values]


DECODERS = ["head", pytest.param("text", marks=pytest.mark.slow)]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("gradient", ["joint", "by-agent"])
def test_micro_batches_change_no_gradient(decoder, gradient):
    settings = {"forecast__decoder": decoder, "run__gradient": gradient}
    whole, in_parts = run_both("run__micro_batch_size", (3, 2), **settings)
    assert_close(in_parts[1], whole[1], 1e-4)
    for loss in ("loss_pred", "loss_own", "loss_tokens"):
        assert getattr(in_parts[0], loss) == pytest.approx(getattr(whole[0], loss), rel=1e-5)
    assert torch.allclose(in_parts[0].reward_AB, whole[0].reward_AB, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["joint", "by-agent"])
def test_unteachable_answers_move_no_weight(gradient):
    def run(size):
        size_of = {"run__gradient": gradient, "run__micro_batch_size": size}
        trainer, logics, examples = build(forecast__decoder="text", **size_of)
        truth_H = examples[1].truth_H.copy()
        truth_H[3] = np.nan
        examples[1] = dataclasses.replace(examples[1], truth_H=truth_H)
        return run_forecasts(trainer, logics, examples)

    whole = run(3)
    for size in (2, 1):
        in_parts = run(size)
        assert_close(in_parts[1], whole[1], 1e-4)
        assert in_parts[0].loss_tokens == pytest.approx(whole[0].loss_tokens, rel=1e-5)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("scope", ["all", "series"])
def test_agentwise_gradients_equal_joint_ones(decoder, scope):
    settings = {"forecast__decoder": decoder, "selection__scope": scope}
    joint, by_agent = run_both("run__gradient", ("joint", "by-agent"), **settings)
    assert_close(by_agent[1], joint[1], 1e-6 if decoder == "head" else 1e-5)
    assert by_agent[0].loss_pred == pytest.approx(joint[0].loss_pred, rel=1e-6)
    assert by_agent[0].loss_tokens == pytest.approx(joint[0].loss_tokens, rel=1e-6)
    assert torch.allclose(by_agent[0].values_ABH, joint[0].values_ABH, rtol=1e-6)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("chosen", ["joint", "by-agent"])
def test_auto_goes_backward_at_once_within_memory(decoder, chosen, monkeypatch):
    settings = {"forecast__decoder": decoder, "population__dropout": 0.5}
    counted = []
    count = forecast_step.count_saved_bytes

    def keep(*given):
        counted.append(count(*given))
        return counted[-1]

    def measure_memory(device):  # by one byte too little, or just enough
        return 2 * 3 * counted[-1] - (chosen == "by-agent")

    monkeypatch.setattr(forecast_step, "count_saved_bytes", keep)
    monkeypatch.setattr(forecast_step, "memory_bytes", measure_memory)
    named, left = (build(run__gradient=kind, **settings) for kind in (chosen, "auto"))
    expected, found = run_forecasts(*named), run_forecasts(*left)

    # What was read to count has drawn no units and left no gradient.
    assert_close(found[1], expected[1], 1e-6)
    assert found[0].loss_pred == expected[0].loss_pred
    assert left[0].forecast_step.chosen_gradient == chosen
    run_forecasts(*left)
    assert len(counted) == 1


def test_only_auto_is_recorded_in_rounds():
    records = [run_step(*build_round_trainer(run__gradient=kind)) for kind in ("auto", "joint")]
    assert [record.gradient for record in records] == ["joint", ""]


def test_readings_are_counted_once_without_weights():
    x, weight = torch.ones(4, 8, requires_grad=True), torch.ones(8, 8)

    def read():
        return (x.exp().square() @ weight).exp()

    exp_and_product = 2 * x.nbytes  # exp keeps its result, the square its input, which is the same
    assert forecast_step.count_saved_bytes(read, [weight]) == exp_and_product
    assert forecast_step.count_saved_bytes(read, []) == exp_and_product + weight.nbytes


def test_agentwise_gradients_are_those_of_one_graph():
    by_agent = {"run__gradient": "by-agent", "run__micro_batch_size": 3}
    trainer, logics, examples = build(population__dropout=0.5, **by_agent)
    played, found = run_forecasts(trainer, logics, examples)
    state = torch.get_rng_state()

    # One graph of all agents, whose masks are drawn once, in the order of the first reading.
    trainer.update.optimizer.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    readings = trainer.executor.read(logics, examples)
    agents = [slice(agent, agent + 1) for agent in range(len(logics))]
    read = [trainer.executor.forecast(readings[a], train=True, agents=a) for a in agents]
    values_ABH = torch.cat([forecasts.values_ABH for forecasts in read])
    weights_BA = trainer.model.selection.weights([e.view.entity for e in examples])
    truth_BH = forecast_step.stack_truths(examples, values_ABH.device)
    loss = forecast_error(aggregate_forecasts(values_ABH, weights_BA), truth_BH).mean()
    loss.backward()

    assert played.loss_pred == pytest.approx(float(loss.detach()), rel=1e-5)
    assert_close(found, collect_gradients(trainer.model), 1e-5)
    assert float(found["gates.0"].abs().min()) > 0
    # The generator stands where one reading leaves it.
    assert torch.equal(state, torch.get_rng_state())


def test_agentwise_one_graph_is_alive(monkeypatch):
    trainer, logics, examples = build(run__gradient="by-agent")
    earlier = []
    read_out = Population.read_out

    def watch(self, *arguments, **options):
        assert all(states() is None for states in earlier)
        found = read_out(self, *arguments, **options)
        assert found.shape[0] == 1
        earlier.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Population, "read_out", watch)
    run_forecasts(trainer, logics, examples)
    assert len(earlier) == 2 * 3 * 2  # two micro-batches, three agents, two readings


def _list_news(calls):
    """Whether each forecast was for training, and the news that it was shown."""
    return [(bool(options.get("train")), list_news(readings)) for (_, readings), options in calls]


def test_news_is_dropped_only_in_training(spy):
    trainer, logics, examples = build(news__dropout=1.0, run__micro_batch_size=3)
    calls = spy(StrategyExecutor, "forecast")

    played, _ = run_forecasts(trainer, logics, examples)

    (trained, shown), *scored = _list_news(calls)
    assert trained and not any(train for train, _ in scored)
    assert all(ids == () for row in shown for ids in row)
    # Agent by agent.
    news = [row for _, (row,) in scored]
    assert len(news) == 3 and all(ids for row in news for ids in row)
    assert list(played.news) == news

    values_ABH = trainer.executor.play(logics, examples).values_ABH
    assert torch.allclose(played.values_ABH, values_ABH, rtol=1e-6)


def test_other_logics_bring_their_own_news(spy):
    trainer, logics, examples = build(news__other_logics=1.0, run__micro_batch_size=3)
    calls = spy(StrategyExecutor, "forecast")
    run_forecasts(trainer, logics, examples)
    (trained, *_) = [readings for (_, readings), options in calls if options.get("train")]

    # A tenth of the draws is each logic's.
    draws_AB = np.random.default_rng(0).random((3, 3))
    read_by = [[reading.logics for reading in row] for row in trained]
    assert read_by == [[[SEED_LOGICS[int(10 * draw)]] for draw in row] for row in draws_AB]
    retrieve = trainer.executor.news_retriever.retrieve
    for row, news in zip(trained, list_news(trained), strict=True):
        for reading, read in zip(row, news, strict=True):
            assert retrieve(*reading.logics, reading.example.view) == read


@pytest.mark.parametrize("gradient", ["joint", "by-agent"])
def test_what_had_news_is_scored_so(gradient, spy):
    # A context in which some of the evidence is cut.
    settings = {"news__dropout": 0.5, "run__gradient": gradient, "run__micro_batch_size": 2}
    trainer, logics, examples = build(**settings, backbone__context_length=254)
    expected = trainer.executor.play(logics, examples)

    calls = spy(StrategyExecutor, "forecast")
    played, _ = run_forecasts(trainer, logics, examples)
    seen = _list_news(calls)
    assert torch.allclose(played.values_ABH, expected.values_ABH, rtol=1e-5)
    assert played.n_cut == expected.n_cut == 6

    # No more is read again than was dropped.
    dropped = np.random.default_rng(0).random((3, 3)) < 0.5
    again = [ids for train, news in seen if not train for row in news for ids in row]
    assert len(again) == dropped.sum() and all(again)
    assert 0 < dropped.sum() < 9


@pytest.mark.slow
def test_text_is_generated_once_without_dropout(monkeypatch, spy):
    monkeypatch.setattr(text_decoder, "_TOKENS_PER_NUMBER", 12)
    monkeypatch.setattr(Population, "sample", answer_in_numbers(Population.sample))
    dropped = {"population__dropout": 0.9, "run__micro_batch_size": 3}
    trainer, logics, examples = build(forecast__decoder="text", **dropped)
    calls = spy(StrategyExecutor, "forecast")
    played, found = run_forecasts(trainer, logics, examples)
    seen = _list_news(calls)
    assert [train for train, _ in seen] == [True]
    assert played.n_unparsed == 3  # of nine answers, counted once

    values_ABH = trainer.executor.play(logics, examples).values_ABH
    assert torch.equal(played.values_ABH, values_ABH)

    # The loss is what dropout is for.
    trainer, logics, examples = build(forecast__decoder="text", run__micro_batch_size=3)
    _, without = run_forecasts(trainer, logics, examples)
    assert not torch.allclose(found["adapters.0"], without["adapters.0"], rtol=0.1)


def test_an_agents_own_error_pulls_it_alone():
    trainer, logics, examples = build()
    _, without = run_forecasts(trainer, logics, examples)
    members = ({}, {"window_share": 1e-9}, {"window_share": 1e-9})
    trainer, logics, examples = build(objective__lambda_own=1.0, population__members=members)
    played, found = run_forecasts(trainer, logics, examples)
    difference = {k: (v - without[k]) for k, v in found.items() if k.startswith("heads.")}

    assert max(float(v[0].abs().max()) for v in difference.values()) > 1e-3
    assert max(float(v[1:].abs().max()) for v in difference.values()) < 1e-6
    # Its share in the loss is the error that the reward is minus of.
    assert played.loss_own == pytest.approx(-float(played.reward_AB[0].mean()), rel=1e-5)


def test_groups_and_fixed_logics_use_micro_batches(spy):
    settings = {"run__micro_batch_size": 1, "grpo__reward_windows": 0, "run__fixed_logics": 2}
    trainer, state, _ = build_round_trainer(**settings)
    examples = make_batch(tiny(), windows("train", 2))[:3]
    calls = spy(trainer.model.decoder, "decode")

    run_step(trainer, state, examples)

    sizes = [{len(row) for row in readings} for (readings,), _ in calls]
    assert sizes == [{1}] * 9  # played, group and fixed logics, on three windows each
