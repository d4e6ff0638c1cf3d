"""A round and its update: weights of the terms, gradients, clipping, and what stops it."""

import dataclasses
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compevo_core.agents.decoders import LOGIC
from compevo_core.agents.logic_writer import LogicWriter
from compevo_core.agents.objective import diversity_loss, group_advantages, policy_loss
from compevo_core.agents.observation import sample_peers
from compevo_core.agents.selection import forecast_error
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.errors import NonFiniteLoss
from compevo_core.training import round as round_module
from compevo_core.training import update
from compevo_core.training.diagnostics import RegretTracker, gradient_conflict
from compevo_core.training.schedule import RunGenerators
from tests.support.models import build_model, make_batch
from tests.support.population import tiny, windows
from tests.support.rounds import build_round_trainer, run_step


def _copy_gradient(parameter):
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def _collect_gradients(*weights):
    """Every gradient just before the step, by group and position, for weights of three terms."""
    terms = (f"objective__lambda_{name}" for name in ("pg", "div", "prune"))
    settings = dict(zip(terms, weights, strict=True))
    trainer, state, examples = build_round_trainer(population__agents=2, **settings)
    gradients = {}

    def copy_gradients():
        for number, group in enumerate(trainer.update.optimizer.param_groups):
            for i, p in enumerate(group["params"]):
                gradients[f"{number}.{i}"] = _copy_gradient(p)
        return 0.0

    trainer.update._take_step = copy_gradients
    run_step(trainer, state, examples)
    return gradients


def test_the_rounds_gradient_sums_four_weighted_terms():
    pred = _collect_gradients(0.0, 0.0, 0.0)
    with_pg = _collect_gradients(1.0, 0.0, 0.0)
    with_div = _collect_gradients(0.0, 1.0, 0.0)
    together = _collect_gradients(0.5, 0.1, 0.01)

    moved = dict.fromkeys(("pred", "pg", "div"), 0.0)
    for name, base in pred.items():
        pg, div = (other[name] - base for other in (with_pg, with_div))
        # The pruning term pulls every gate towards zero by its weight, and moves nothing else.
        prune = torch.full_like(base, float(base.shape == (2,)))
        expected = base + 0.5 * pg + 0.1 * div + 0.01 * prune
        scale = max(float(expected.abs().max()), 1e-3)
        assert torch.allclose(together[name], expected, atol=2e-4 * scale), name
        for key, part in zip(moved, (base, pg, div), strict=True):
            moved[key] += float(part.abs().sum())
    assert min(moved.values()) > 0
    assert sum(gradient.shape == (2,) for gradient in pred.values()) == 1


def _run_policy_updates(spy, clip, iterations):
    """Run a round of large policy steps.

    Returns logic adapters after it, its record, and the widest ratio of every update.
    """
    settings = {"grpo__clip_range": clip, "grpo__iterations": iterations}
    settings |= {"grpo__kl_coefficient": 0.0, "objective__lambda_div": 0.0}
    rates = {"optim__policy_lr": 0.05, "optim__warmup_ratio": 0.0, "optim__max_grad_norm": 0.0}
    trainer, state, examples = build_round_trainer(population__agents=2, **settings, **rates)
    calls = spy(update.objective, "policy_loss")
    record = run_step(trainer, state, examples)
    widest = [
        float(((logp.detach() - old).exp() - 1.0)[mask.bool()].abs().max())
        for (logp, old, *_, mask), _ in calls
    ]
    adapters = trainer.model.population.adapter_parameters(LOGIC)
    return [p.detach().clone() for p in adapters], record, widest


def test_the_clip_binds_from_the_second_update(spy):
    once, record, widest = _run_policy_updates(spy, 0.2, 1)
    assert widest == [0.0] * 2
    assert (record.clip_fraction, record.equal_groups) == (0.0, 0)

    narrow, record, widest = _run_policy_updates(spy, 0.2, 2)
    assert widest[:2] == [0.0] * 2 and max(widest[2:]) > 0.2
    wide, unclipped, _ = _run_policy_updates(spy, 1.0, 2)
    assert unclipped.clip_fraction < record.clip_fraction
    for other in (wide, once):
        assert not all(torch.equal(a, b) for a, b in zip(narrow, other, strict=True))


def test_both_rates_warm_up_and_follow_cosines():
    rates_of = {"optim__forecast_lr": 1e-4, "optim__policy_lr": 1e-6}
    trainer, state, examples = build_round_trainer(rounds=100, evolution__every=0, **rates_of)
    assert type(trainer.update.optimizer) is update.Optimizer

    def rates():
        return [group["lr"] for group in trainer.update.optimizer.param_groups]

    fall = {n: 0.5 * (1 + np.cos(np.pi * (n - 3) / 97)) for n in (3, 27, 51, 99)}
    for number, factor in ({0: 1 / 3, 1: 2 / 3, 2: 1.0} | fall).items():
        trainer.update.start_round(number)
        assert rates() == pytest.approx([1e-4 * factor, 1e-6 * factor])

    state.round = 1
    run_step(trainer, state, examples)
    assert rates() == pytest.approx([1e-4 * 2 / 3, 1e-6 * 2 / 3])


def _spoil_logp(original):
    def logp(self, proposal, agents, soft):
        values = original(self, proposal, agents, soft)
        return values * float("nan") if agents.start == 2 else values

    return logp


def _spoil_encode(original):
    def encode(self, rows):
        return original(self, rows).index_fill(0, torch.tensor([1]), float("inf"))

    return encode


def _spoil_forecast(original):
    def forecast(self, *readings, **options):
        found = original(self, *readings, **options)
        spoilt_ABH = found.values_ABH.index_fill(0, torch.tensor([1]), float("nan"))
        return dataclasses.replace(found, values_ABH=spoilt_ABH)

    return forecast


@pytest.mark.parametrize(
    ("owner", "method", "spoil", "message"),
    [
        (LogicWriter, "logp", _spoil_logp, r"L_pg .* for agent\(s\) \[2\]"),
        (LogicWriter, "encode", _spoil_encode, r"L_div .* for agent\(s\) \[1\]"),
        (StrategyExecutor, "forecast", _spoil_forecast, r"the forecast .* agent\(s\) \[1\]"),
    ],
)
def test_a_non_finite_term_names_its_agent(owner, method, spoil, message, monkeypatch):
    trainer, state, examples = build_round_trainer(evolution__update="simplified")
    before = {name: value.clone() for name, value in trainer.model.tensors().items()}
    monkeypatch.setattr(owner, method, spoil(getattr(owner, method)))
    with pytest.raises(NonFiniteLoss, match=message):
        run_step(trainer, state, examples)

    assert all(torch.equal(value, before[name]) for name, value in trainer.model.tensors().items())
    assert not trainer.update.optimizer.state and state.round == 0
    assert state.regret == RegretTracker.start(3, trainer.config.run.fixed_logics)


def _keep_proposals(monkeypatch):
    """Return a list that what agents knew and proposed in every round is added to."""
    seen = []
    propose = LogicWriter.propose

    def keep(self, observation, *rest):
        seen.append((observation, propose(self, observation, *rest)))
        return seen[-1][1]

    monkeypatch.setattr(LogicWriter, "propose", keep)
    return seen


def test_a_round_hands_its_state_on(monkeypatch):
    trainer, state, examples = build_round_trainer(selection__ema=0.75, selection__temperature=0.5)
    selection = trainer.model.selection
    before = selection.fitness_EA.mean(0)
    proposals = _keep_proposals(monkeypatch)

    record = run_step(trainer, state, examples)

    rewards = torch.tensor(record.rewards)
    assert record.weights == pytest.approx(torch.softmax(before / 0.5, 0).tolist(), abs=1e-6)
    assert torch.allclose(selection.fitness_EA.mean(0), 0.75 * before + 0.25 * rewards)
    assert state.rewards == record.rewards
    ((observed, proposal),) = proposals
    assert [seen.logic for seen in observed] == record.logics
    assert [seen.reward for seen in observed] == record.rewards
    assert [len({peer[0] for peer in seen.peers} - {seen.agent}) for seen in observed] == [1, 1, 1]
    assert torch.equal(state.previous_AD, proposal.candidate_AD)
    assert not state.previous_AD.requires_grad
    for agent, carried in enumerate(state.logics):
        best = int(np.argmax(record.group_rewards[agent]))
        is_better = record.group_rewards[agent][best] > record.played_rewards[agent]
        expected = record.group_logics[agent][best] if is_better else record.logics[agent]
        assert carried == expected
    assert state.logics != record.logics
    assert 1.0 <= record.effective_agents <= 3.0


def test_each_agent_hears_what_it_missed(monkeypatch):
    trainer, state, examples = build_round_trainer(news__top_k=1)
    played = trainer.executor.play(state.logics, examples)
    asked = []

    def list_best(reader, row, scored, read, values_BH, rng, count):
        asked.append((row, read, values_BH, float(rng.random())))
        return [(f"title {row}", -1.0)]

    trainer.unread_reader = SimpleNamespace()
    monkeypatch.setattr(round_module, "list_best_unread", list_best)
    proposals = _keep_proposals(monkeypatch)

    run_step(trainer, state, examples)

    ((observed, _),) = proposals
    assert [seen.unread for seen in observed] == [[(f"title {agent}", -1.0)] for agent in range(3)]
    rows, read, values, draws = zip(*asked, strict=True)
    assert rows == (0, 1, 2) and list(read) == played.news and read[0] != read[1]
    assert torch.allclose(torch.stack(values), played.values_ABH, rtol=1e-5)
    assert len(set(draws)) == 3


def test_an_agent_sees_the_stated_number_of_others():
    sampled = [sample_peers(4, 2, np.random.default_rng(seed)) for seed in range(5)]
    for agent, peers in (pair for drawn in sampled for pair in enumerate(drawn)):
        assert len(set(peers)) == 2
        assert agent not in peers
    assert len({str(drawn) for drawn in sampled}) > 1


def test_the_policy_term_reaches_adapters_and_fusion(monkeypatch):
    off = {"objective__lambda_div": 0.0, "objective__lambda_prune": 0.0}
    trainer, state, examples = build_round_trainer(
        objective__lambda_pg=1.0, grpo__reward_windows=0, **off
    )
    # Gates, scores and fusion get values of their own, so that no path is weak by symmetry.
    generator = torch.Generator().manual_seed(0)
    for parameter in trainer.model.shared_parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    proposals = _keep_proposals(monkeypatch)
    monkeypatch.setattr(trainer.update, "_take_step", lambda *_: 0.0)
    previous_AD = state.previous_AD
    record = run_step(trainer, state, examples)
    parameters = trainer.model.policy_parameters()
    found = list(map(_copy_gradient, parameters))

    def differentiate(*, through_candidates):
        """The gradient of L_pg in one pass, from the drafts to the samples."""
        ((_, proposal),) = proposals
        writer, fusion = trainer.writer, trainer.model.fusion
        candidate_AD = writer.encode(proposal.candidates)
        if not through_candidates:
            candidate_AD = candidate_AD.detach()
        soft_AD = fusion.soft_prompt(fusion(candidate_AD, previous_AD))
        logp_AGT = writer.logp(proposal, slice(None), soft_AD)
        advantage_AG, _ = group_advantages(torch.tensor(record.group_rewards), proposal.is_empty_AG)
        logps = logp_AGT, logp_AGT.detach(), writer.reference_logp(proposal)
        settings = trainer.config.grpo
        loss = policy_loss(
            *logps,
            advantage_AG,
            proposal.mask_AGT,
            clip_range=settings.clip_range,
            kl_coefficient=settings.kl_coefficient,
        ).loss
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        return list(map(_copy_gradient, parameters))

    whole = differentiate(through_candidates=True)
    cut = differentiate(through_candidates=False)

    def distance(ours, theirs):
        return float(sum((a - b).square().sum() for a, b in zip(ours, theirs, strict=True)) ** 0.5)

    # The candidates' part is small compared with the samples': the error is measured against it.
    assert distance(whole, cut) > 0
    assert distance(found, whole) < 0.02 * distance(whole, cut)
    shared = {id(p) for p in trainer.model.fusion_parameters()}
    of_fusion = [g for p, g in zip(parameters, found, strict=True) if id(p) in shared]
    assert all(gradient.any() for gradient in of_fusion)


def test_the_margin_counts_everything_trained(monkeypatch):
    trainer, state, examples = build_round_trainer(objective__lambda_div=0.0)
    monkeypatch.setattr(trainer.update, "_take_step", lambda *_: 0.0)
    record = run_step(trainer, state, examples)
    prune = trainer.config.objective.lambda_prune
    model = trainer.model
    gates = model.selection.gates_A.grad - prune
    others = [*model.adapter_parameters(), *model.head_parameters(), *model.policy_parameters()]
    main = float(sum(p.grad.double().square().sum() for p in others if p.grad is not None))
    main += float(gates.double().square().sum())
    inner = float(prune * gates.double().sum())

    # Left side of Eq. 23: ||main|| + ||regulariser|| cos.
    assert record.gradient_margin == pytest.approx(main**0.5 + inner / main**0.5, rel=1e-5)


@pytest.mark.parametrize("windows_scored", [0, 2])
def test_round_rewards_are_free_of_dropout(windows_scored):
    still = {"optim__forecast_lr": 0.0, "optim__policy_lr": 0.0, "population__dropout": 0.5}
    trainer, state, _ = build_round_trainer(grpo__reward_windows=windows_scored, **still)
    # Of several windows, so that those that are scored are not the first ones by chance.
    examples = make_batch(trainer.config, windows("train", 2))
    played = list(state.logics)
    record = run_step(trainer, state, examples)

    def score(logics):
        values_ABH = trainer.executor.play(logics, examples).values_ABH
        truth_BH = torch.tensor(np.stack([e.truth_H for e in examples]), dtype=torch.float32)
        return -forecast_error(values_ABH, truth_BH)

    assert torch.allclose(torch.tensor(record.rewards), score(played).mean(1), rtol=1e-5)
    samples = zip(*record.group_logics, strict=True)
    scores_AGB = torch.stack([score(list(logics)) for logics in samples], 1)
    found = torch.tensor(record.group_rewards)
    if windows_scored == 0:
        assert torch.allclose(found, scores_AGB.mean(-1), rtol=1e-5)
    else:
        pairs = [list(pair) for pair in combinations(range(4), 2)][1:]
        means = [scores_AGB[..., pair].mean(-1) for pair in pairs]
        assert any(torch.allclose(found, mean_AG, rtol=1e-5) for mean_AG in means)


def test_only_a_better_sample_replaces_the_logic():
    trainer, _, _ = build_round_trainer()
    # The played logic comes first.
    reward_AC = torch.tensor([[-2.0, -3.0, -1.0], [-2.0, -3.0, -2.0], [-1.0, -2.0, -4.0]])
    candidates = ["xab", "ycd", "zef"]
    assert trainer.choose_logics(candidates, reward_AC) == ["b", "y", "z"]


def test_a_supervised_round_trains_forecasts_only():
    trainer, state, examples = build_round_trainer(supervised=1)
    before = {name: value.clone() for name, value in trainer.model.tensors().items()}
    logics, previous_AD = list(state.logics), state.previous_AD
    generators = RunGenerators.from_seed(5, range(3), torch.device("cpu"))
    drawn = [generator.get_state() for generator in generators.agents]
    record = trainer.step(state, examples, generators)

    assert (record.stage, record.evolved) == ("supervised", False)
    assert record.candidates == record.group_logics == record.group_rewards == []
    assert record.best_response_gap == []
    assert (record.loss_pg, record.loss_div, record.loss_prune) == (0.0, 0.0, 0.0)
    assert record.loss == pytest.approx(record.loss_pred)
    assert record.gradient_margin == pytest.approx(record.grad_norm, rel=1e-5)
    assert state.logics == logics and state.previous_AD is previous_AD
    after = [generator.get_state() for generator in generators.agents]
    assert all(map(torch.equal, drawn, after))
    fresh = RunGenerators.from_seed(5, range(3), torch.device("cpu"))
    assert generators.numpy_rng.random() == fresh.numpy_rng.random()

    moved = {n for n, value in trainer.model.tensors().items() if not torch.equal(value, before[n])}
    assert any(name.startswith("adapters.") and ".forecast." in name for name in moved)
    assert any(name.startswith("answers.") for name in moved)
    assert "selection.gates_A" in moved
    assert not any(".logic." in name or name.startswith("fusion.") for name in moved)
    assert np.isfinite(record.rewards).all() and state.rewards == record.rewards


def test_diversity_separates_candidates_and_spares_fusion(monkeypatch):
    only = {"objective__lambda_pg": 0.0, "objective__lambda_prune": 0.0}
    trainer, state, examples = build_round_trainer(objective__lambda_div=1.0, **only)
    proposals = _keep_proposals(monkeypatch)
    monkeypatch.setattr(trainer.update, "_take_step", lambda *_: 0.0)
    record = run_step(trainer, state, examples)

    candidate_AD = proposals[0][1].candidate_AD.detach()
    assert record.loss_div == pytest.approx(float(diversity_loss(candidate_AD)))
    fusion = [p.grad for p in trainer.model.fusion_parameters() if p.grad is not None]
    assert all(float(gradient.abs().max()) == 0.0 for gradient in fusion)
    adapters = [p.grad for p in trainer.model.policy_adapter_parameters()]
    assert any(float(gradient.abs().max()) > 0.0 for gradient in adapters)


@pytest.fixture
def model():
    return build_model(tiny())


def fill(parameters):
    generator = torch.Generator().manual_seed(0)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("limit", [1.0, 1e9, 0.0])
def test_clipping_is_torchs(model, limit):
    groups = [model.adapter_parameters() + model.gate_parameters(), model.policy_parameters()]
    parameters = [parameter for group in groups for parameter in group]
    for group in groups:
        fill(group)
    theirs = [torch.nn.utils.clip_grad_norm_(group, limit or float("inf")) for group in groups]
    expected = [parameter.grad.clone() for parameter in parameters]
    for group in groups:
        fill(group)

    norm = update.Gradients(model).clip(groups, limit)

    assert norm == pytest.approx(float(torch.stack(theirs).norm()), rel=1e-5)
    for parameter, wanted in zip(parameters, expected, strict=True):
        assert torch.allclose(parameter.grad, wanted, rtol=1e-5, atol=1e-8)


def test_a_non_finite_gradient_is_traced(model):
    group = model.adapter_parameters() + model.gate_parameters()
    fill(group)
    group[0].grad[1, 0, 0] = float("inf")
    with pytest.raises(NonFiniteLoss, match=r"finite for agent\(s\) \[1\]"):
        update.Gradients(model).clip([group], 1.0)
    fill(group)
    model.selection.gates_A.grad[0] = float("nan")
    with pytest.raises(NonFiniteLoss, match=r"gates and fusion is not finite"):
        update.Gradients(model).clip([group], 1.0)


def test_the_conflict_counts_shared_parts_once(model):
    policy = model.policy_parameters()
    fill(policy)
    strategy = {p: 0.5 * p.grad.roll(1, 0) for n, p in enumerate(policy) if n % 3}
    regular = [strategy.get(p, torch.zeros_like(p)) for p in policy]
    main = torch.cat([(p.grad - r).flatten() for p, r in zip(policy, regular, strict=True)])
    strategic = torch.cat([r.flatten() for r in regular])
    norms = float(main.norm()), float(strategic.norm())
    expected = gradient_conflict(*norms, float(main @ strategic))

    found = update.Gradients(model).conflict(policy, strategy)

    assert found == pytest.approx(expected, rel=1e-4)


def test_who_reads_everything_keeps_its_logic():
    members = [{}, {"reads": "everything"}]
    settings = {"population__agents": 2, "population__members": members, "news__linear": True}
    trainer, state, examples = build_round_trainer(**settings, objective__lambda_div=0.0)
    policy = trainer.model.policy_adapter_parameters()
    before, (first, kept) = [one.detach().clone() for one in policy], list(state.logics)

    result = run_step(trainer, state, examples)
    assert result.group_logics[0] != [first] * 3 and result.group_logics[1] == [kept] * 3
    assert state.logics[1] == kept
    moved = [
        (one - other).flatten(1).any(1).tolist() for one, other in zip(policy, before, strict=True)
    ]
    assert [any(of_agent) for of_agent in zip(*moved, strict=True)] == [True, False]
