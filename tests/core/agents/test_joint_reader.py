"""Agents whose news are read together: one ridge, parts that add up, pay for what others lack."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from compevo_core.agents.joint_reader import (
    JointReader,
    LogicScorer,
    Standing,
    fit_jointly,
    take_turns,
)
from compevo_core.agents.linear_reader import FittedReader
from compevo_core.agents.logics import LogicRecords
from compevo_core.agents.retrieval import NewsRetriever
from compevo_core.agents.selection import FitnessSelection
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import MemberConfig, SelectionConfig
from compevo_core.errors import DataError
from tests.core.agents.test_linear_reader import _make_examples
from tests.support.planted import planted_world, sentence_encoder

OUTAGES = "Track news about power outages in any region, at night, as a sign of x."
SOLAR = "Track news about rooftop solar in any region, at night, as a sign of x."
NOISE = "Track news about interest rates in any region, at night, as a sign of x."
CONFIG = RunConfig.preset("specialists")


@pytest.fixture(scope="module")
def examples():
    return _make_examples(planted_world().split("train"))


def _read(examples, members=1):
    """A reader of agents with one base, members given by their number or one by one."""
    if isinstance(members, int):
        members = [MemberConfig()] * members
    retriever = NewsRetriever(planted_world().news, sentence_encoder(), 1)
    return FittedReader(examples, retriever, members, np.ones((len(members), 1)))


def _equal(examples, agents):
    return np.full((len(examples), agents), 1 / agents)


def _score(examples, played, logic, agent=0, config=CONFIG):
    """The gains of a logic of an agent, by window, given what all agents play."""
    weights_NA = _equal(examples, len(played))
    scorer = LogicScorer(_read(examples, len(played)), config)
    return scorer.score(agent, [logic], Standing(played, weights_NA, weights_NA))[0]


def _sum(examples, fits, weights_A):
    """What a population reads in each window, held out."""
    nothing = np.zeros(48)
    names = [e.view.window_id for e in examples]
    pairs = zip(fits, weights_A, strict=True)
    return sum(w * np.array([f.held_out.get(name, nothing) for name in names]) for f, w in pairs)


def test_a_lone_agent_is_read_as_by_itself(examples):
    reader = _read(examples)
    (joint,), own = fit_jointly(reader, [OUTAGES], _equal(examples, 1)), reader.find(0, OUTAGES)
    np.testing.assert_allclose(joint.weights_ZH, own.weights_ZH, atol=1e-6)
    for name, values_H in own.held_out.items():
        np.testing.assert_allclose(joint.held_out[name], values_H, atol=1e-6)


def test_two_agents_read_what_neither_reads_alone(examples):
    reader = _read(examples, 2)
    together = fit_jointly(reader, [OUTAGES, SOLAR], _equal(examples, 2))
    alone = [reader.find(0, OUTAGES), reader.find(1, SOLAR)]
    truth_NH = np.stack([e.truth_H for e in examples])
    joint, mean, first = (
        float(((truth_NH - _sum(examples, fits, weights)) ** 2).mean())
        for fits, weights in ((together, [0.5, 0.5]), (alone, [0.5, 0.5]), (alone, [1.0, 0.0]))
    )

    assert joint < first - 0.5
    assert joint < mean - 0.5  # the mean of both halves what one of them reads


def test_an_agent_without_weight_says_nothing(examples):
    reader = _read(examples, 2)
    weights_NA = np.tile([1.0, 0.0], (len(examples), 1))
    first, second = fit_jointly(reader, [OUTAGES, SOLAR], weights_NA)
    assert not second.weights_ZH.any()
    np.testing.assert_allclose(first.weights_ZH, reader.find(0, OUTAGES).weights_ZH, atol=1e-6)

    # Where an agent has all the weight of a series, the other reads nothing of that series.
    is_home = np.array([e.view.entity == "NSW1" for e in examples])
    by_series_NA = np.stack([is_home, ~is_home], axis=1).astype(float)
    apart = fit_jointly(reader, [OUTAGES, OUTAGES], by_series_NA)
    assert np.abs(apart[0].weights_ZH - apart[1].weights_ZH).max() > 1e-3


def test_a_shared_niche_is_paid_less_than_once(examples):
    alone = _score(examples, [OUTAGES], OUTAGES).mean()
    shared = [_score(examples, [OUTAGES] * 2, OUTAGES, agent).mean() for agent in (0, 1)]
    free = _score(examples, [OUTAGES, SOLAR], SOLAR, 1).mean()
    assert alone > 0.3
    assert sum(shared) < 0.3 * alone
    assert free > 3 * max(shared)
    assert abs(_score(examples, [OUTAGES, NOISE], NOISE, 1).mean()) < 0.2 * free


@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        ({"evolution.credit": "own"}, 1.0),  # whoever else reads it
        ({"news.fit": "own"}, 0.2),  # the mean of two readings is one of them: little is added
    ],
)
def test_credit_and_fit_are_changed_one_by_one(examples, changes, copied):
    config = CONFIG.with_overrides(changes)
    alone, shared = (
        _score(examples, played, OUTAGES, config=config).mean()
        for played in ([OUTAGES, NOISE], [OUTAGES, OUTAGES])
    )
    assert alone > 0.1
    assert shared == pytest.approx(alone) if copied == 1.0 else shared < 0.7 * alone


def test_an_agent_paid_by_its_own_error_is_scored_by_its_own_reading(examples):
    config = CONFIG.with_overrides({"evolution.credit": "own"})
    gain_N = _score(examples, [OUTAGES, SOLAR], OUTAGES, config=config)

    reader = _read(examples, 2)
    missed_NH = reader.truth_NH - reader.base_ANH[0]
    left_NH = missed_NH - _sum(examples, [reader.find(0, OUTAGES)], [1.0])
    np.testing.assert_allclose(gain_N, (missed_NH**2 - left_NH**2).mean(1), atol=1e-12)


def test_the_second_agent_takes_the_niche_left(examples):
    reader = _read(examples, 2)
    selection = FitnessSelection(2, CONFIG.selection, pays_contribution=True)
    scorer, groups = LogicScorer(reader, CONFIG), [[OUTAGES], [OUTAGES, SOLAR]]

    turns = take_turns(scorer, selection, [NOISE, NOISE], groups, LogicRecords(), [0, 1])
    record = turns.describe(2)

    assert turns.logics == [OUTAGES, SOLAR] and not turns.is_idle_A.any()
    assert turns.gain_AN.shape == (2, len(examples))
    np.testing.assert_allclose(record["rewards"], turns.gain_AN.mean(1))
    assert record["best_response_gap"][1] > 0


def test_a_useless_agent_is_left_out_and_returns(examples):
    selection = FitnessSelection(2, CONFIG.selection, pays_contribution=True)
    scorer = LogicScorer(_read([replace(e, truth_H=e.truth_H * 0) for e in examples], 2), CONFIG)

    def take(scorer, selection, order=(0, 1)):
        return take_turns(scorer, selection, [OUTAGES, SOLAR], [[], []], LogicRecords(), order)

    assert take(scorer, selection).is_idle_A.all()

    # With equal weights no agent is left out.
    alike = FitnessSelection(2, SelectionConfig(uniform=True), pays_contribution=True)
    alike.fitness_EA += torch.tensor([1.0, 0.0])
    assert not take(scorer, alike).is_idle_A.any()
    assert alike.open_weights([""]).tolist() == [[0.5, 0.5]]
    selection.is_idle_A[:] = True
    assert selection.weights([""]).tolist() == [[0.5, 0.5]]  # all are: they stay as they were
    selection.is_idle_A[0] = False
    assert selection.weights([""]).tolist() == [[1.0, 0.0]]
    assert selection.open_weights([""]).tolist() == [[0.5, 0.5]]
    back = take(LogicScorer(_read(examples, 2), CONFIG), selection, [1])
    assert not back.is_idle_A.any()


def test_a_generalist_reads_the_sum_of_all(examples):
    generalist = MemberConfig(reads="everything")
    reader = _read(examples, [generalist, MemberConfig()])
    fit = reader.find(0, "any")
    view = examples[0].view
    ids = reader.retriever.retrieve_for(reader.members[0], "any", [view])[0]
    articles = reader.retriever.resolve(ids)

    assert len(articles) == len(view.candidate_ids)
    total = np.sum([article.embedding for article in articles], axis=0) - fit.mean_X[:384]
    expected_H = total @ fit.weights_ZH[:384]
    np.testing.assert_allclose(fit.predict(view, articles), expected_H, atol=1e-4)


def test_a_reader_is_fitted_on_its_own_windows(examples):
    members, retriever = [MemberConfig()] * 2, _read(examples, 2).retriever
    is_own_AN = np.ones((2, len(examples)), dtype=bool)
    is_own_AN[1, ::2] = False
    others = [replace(e, truth_H=-e.truth_H) if i % 2 == 0 else e for i, e in enumerate(examples)]
    readers = [
        FittedReader(of, retriever, members, np.ones((2, 1)), is_own_AN)
        for of in (examples, others)
    ]

    of_all, of_own = (
        [reader.find(agent, OUTAGES).weights_ZH for reader in readers] for agent in (0, 1)
    )

    assert not np.array_equal(*of_all)
    np.testing.assert_array_equal(*of_own)


def test_changed_weights_or_logics_fit_the_reader_again(examples):
    selection = FitnessSelection(2, SelectionConfig())
    reader = JointReader(_read(examples, 2), selection)
    with pytest.raises(DataError, match="settle what all"):
        reader.find(0, OUTAGES)
    reader.settle([OUTAGES, SOLAR])
    first = reader.find(0, OUTAGES)
    selection.fitness_EA += torch.tensor([1e-4, 0.0])  # by less than gates move in a round
    reader.settle([OUTAGES, SOLAR])
    assert reader.find(0, OUTAGES) is first
    selection.fitness_EA += torch.tensor([0.1, 0.0])
    reader.settle([OUTAGES, SOLAR])

    assert reader.find(0, OUTAGES) is not first
    with pytest.raises(DataError, match="not fitted under"):
        reader.find(1, OUTAGES)
