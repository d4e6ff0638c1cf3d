"""The cases of the engine, and the ordinary ways of doing the same.

What belongs here: timing the cases, and checking that both ways computed the same. What does not:
which of them are measured (``engine``, ``gpu``), another way of doing a round (``peft``).

Each case has a process of its own. Peak memory is the high-water mark of the process when our
part is done and the reference has not begun; with two types (:func:`list_types`) it covers the
types timed so far. On a GPU wall-clock seconds and memory on the GPU are measured, of one type at a
time. A reference has the types of ours: to ``mixed`` it loads its backbone in bfloat16.

Tokens are those that pass through the backbone's first layer, read or written.

Shapes: A agents, G samples of an agent, B windows, H horizon; M rows of an agent that are sampled,
D hidden, T tokens, V vocabulary.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from benchmarks.clock import forget_peak, name_gpu, read_peak, time_call, time_repeats
from benchmarks.rows import Row
from benchmarks.world import REGIONS, Case, Replay, World
from compevo_core.agents.decoders import LOGIC, ForecastExample
from compevo_core.agents.logics import build_slots
from compevo_core.agents.observation import fit_logic_prompt
from compevo_core.agents.prompts import list_stop_tokens
from compevo_core.agents.selection import aggregate_forecasts
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.config.run import RunConfig
from compevo_core.lm.grammar import SlotGrammar, TokenGrammar, sample_under_grammar
from compevo_core.lora import Population, PromptGroup, SamplingSettings
from compevo_core.lora import backbone as frozen
from compevo_core.lora.attention import AttentionBackend, PrefillCache
from compevo_core.lora.backbone import WIDENS_BFLOAT16, Backbone, linear_without_grad
from compevo_core.lora.sampling import sample_tokens
from compevo_core.training.schedule import RunGenerators
from tests.support.rounds import start_state

#: The largest relative difference between our losses and the reference's, by the type of our
#: products with frozen layers: with more, the two do not do the same work.
LARGEST_GAP = {"mixed": 2e-2, "bfloat16": 5e-2, "float32": 1e-3}

#: The same for forecasts and gradients, by their norms. Mixed products round to bfloat16, and
#: another batch of rows rounds otherwise.
LARGEST_DIFFERENCE = {"mixed": 5e-2, "bfloat16": 1e-1, "float32": 1e-4}


class Timed(NamedTuple):
    """One run of either way."""

    seconds: float
    products: float  # seconds of products with frozen weights
    value: Any  # a loss or forecasts, which both ways have in common
    replay: Replay | None = None  # what our round sampled


#: What the reference of a row is, in words.
PEFT_BY_AGENT = "PEFT, an adapter set once an agent, padded batch"
PEFT_MIXED = "PEFT, mixed batch by adapter_names"
PEFT_SHARED = "PEFT, agent by agent, each group's prompt read once"

_CALLS_A_REPEAT = 5  # of one product, which takes milliseconds
_TOKENS = 64  # of a continuation that nothing ends


def count_tokens(backbone: Backbone) -> list[int]:
    """Return a list that gets the tokens of each pass through a backbone's first layer.

    A window that is read twice counts twice: what is counted is work, not text.
    """
    counts: list[int] = []
    norm = backbone.decoder.layers[0].input_layernorm
    norm.register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[:-1].numel()))
    return counts


def build_row(
    case: str,
    world: World,
    ours: Sequence[float],
    theirs: Sequence[float] | None = None,
    products: Sequence[float] = (),
    **others: Any,  # noqa: ANN401 - columns of the table
) -> Row:
    """Build the row of a case from the seconds of its repeats, and of frozen products in ours."""
    # Processor seconds and medians: another process on the machine slows single repeats.
    our_median = statistics.median(ours)
    their_median = None if theirs is None else statistics.median(theirs)
    return {
        "case": case,
        "agents": world.config.population.agents,
        "backbone": Path(world.config.backbone.name_or_path).name,
        "dtype": world.config.backbone.dtype,
        "ours_seconds": our_median,
        "reference_seconds": their_median,
        "ratio": None if their_median is None else their_median / our_median,
        "limit": their_median / statistics.median(products) if any(products) else None,
        "peak_memory_gb": read_peak(),
        "repeats": len(ours),
        "threads": torch.get_num_threads(),
        **name_gpu(),
    } | others


def list_types(case: Case) -> list[str]:
    """Return the types that are timed: mixed if the processor multiplies bfloat16, and float32.

    Without such an instruction neither way would be what a user runs. Chosen types replace them.
    """
    own = ["mixed", "float32"] if case.preset == "tiny" or not WIDENS_BFLOAT16 else ["float32"]
    return list(case.types) or own


def time_ours(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return the seconds of a call, the seconds of its products with frozen weights, its result.

    On a GPU no product is timed: waiting for each would slow the call.
    """
    seconds: list[float] = []
    multiply = frozen.linear_without_grad

    def multiply_and_time(*arguments: Any) -> Tensor:  # noqa: ANN401 - of a product
        frozen.linear_without_grad = multiply  # it may call itself
        began = time.process_time()
        product = multiply(*arguments)
        seconds.append(time.process_time() - began)
        frozen.linear_without_grad = multiply_and_time
        return product

    timed = multiply if torch.cuda.is_available() else multiply_and_time
    with patch.object(frozen, "linear_without_grad", timed):
        whole, out = time_call(call)
    return whole, sum(seconds), out


def measure_round(case: Case) -> list[Row]:
    """Measure a whole round, against PEFT agent by agent."""
    # On a GPU the first round, which warms up, is done twice.
    days = [*range(1 if torch.cuda.is_available() else 0), *range(case.repeats)]

    def run_ours(world: World) -> list[Timed]:
        measured = []
        for day in days:
            trainer = world.build_replay_trainer()
            state = start_state(trainer, world.logics)
            *seconds, record = time_ours(partial(world.step, trainer, state, day))
            measured.append(Timed(*seconds, record["loss_pred"], world.replay))
        return measured[-case.repeats :]

    def run_theirs(reference: Any, timed: Sequence[Timed]) -> list[Timed]:  # noqa: ANN401
        measured = []
        for day in days:
            reference.reset()
            step = partial(reference.step, reference.world.days[day], timed[day].replay)
            seconds, record = time_call(step)
            measured.append(Timed(seconds, 0.0, record["loss_pred"]))
        return measured[-case.repeats :]

    return _compare(case, {"round": PEFT_SHARED}, run_ours, run_theirs)


@torch.no_grad()
def measure_inference(case: Case) -> list[Row]:
    """Measure the forecasts of one batch of windows, against PEFT in both of its ways."""

    def forecast(
        world: World, executor: StrategyExecutor, examples: Sequence[ForecastExample]
    ) -> Tensor:
        # A few windows at a time, as in training.
        size = world.config.run.micro_batch_size
        parts = [examples[start : start + size] for start in range(0, len(examples), size)]
        values = [executor.play(world.logics, part).values_ABH for part in parts]
        # Averaging costs little compared with the forecasts; equal weights make both comparable.
        weights_BA = world.model.selection.weights([each.view.entity for each in examples])
        return aggregate_forecasts(torch.cat(values, dim=1), weights_BA)

    def run_ours(world: World) -> list[Timed]:
        world.reset()
        executor = world.model.build_executor(world.news_retriever)
        return _time_days(world, partial(forecast, world, executor))

    def run_theirs(reference: Any, _: Sequence[Timed]) -> list[Timed]:  # noqa: ANN401
        world = reference.world
        return _time_days(world, partial(forecast, world, reference.executor))

    ways = {"inference": PEFT_BY_AGENT, "inference-mixed": PEFT_MIXED}
    return _compare(case, ways, run_ours, run_theirs)


def measure_backward(case: Case) -> list[Row]:
    """Measure the forecasts of a round and their gradient, against PEFT agent by agent."""

    def run_ours(world: World) -> list[Timed]:
        step = world.build_trainer(rewrites=False).forecast_step
        rng = np.random.default_rng(0)  # no news is dropped
        generators = RunGenerators([], rng, rng)
        return _time_days(
            world, lambda examples: step.run(world.logics, examples, generators, 0).loss_pred
        )

    def run_theirs(reference: Any, _: Sequence[Timed]) -> list[Timed]:  # noqa: ANN401
        return _time_days(reference.world, lambda examples: reference.train_forecasts(examples)[0])

    return _compare(case, {"backward": PEFT_BY_AGENT}, run_ours, run_theirs)


def _time_days(world: World, run: Callable[[list[ForecastExample]], Any]) -> list[Timed]:
    """Return what :func:`time_ours` does of ``run`` on the windows of each day."""
    run(world.days[0])  # warms up
    return [Timed(*time_ours(partial(run, examples))) for examples in world.days]


def _compare(
    case: Case,
    ways: Mapping[str, str],
    run_ours: Callable[[World], list[Timed]],
    run_theirs: Callable[[Any, Sequence[Timed]], list[Timed]],
) -> list[Row]:
    """Return a row for each type and each way of PEFT by its name; PEFT has the same tensors."""
    measured = []
    for dtype in list_types(case):
        config = case.configure_compared(dtype=dtype)
        timed = run_ours(World(config, case.repeats))
        measured.append((config, timed, read_peak()))
        # The next type, or the reference, must not find the world in memory.
        forget_peak()

    # Where our part is done: its libraries count in no peak of ours.
    from benchmarks.peft import PeftRound

    rows = []
    for config, timed, peak in measured:
        reference = PeftRound(World(config, case.repeats))
        reference.reset()
        for name, way in ways.items():
            reference.forecasts.is_mixed = way == PEFT_MIXED
            theirs = run_theirs(reference, timed)
            check_same_work(timed, theirs, f"{name} of {case.agents} agents", config)
            seconds = [[each.seconds for each in one] for one in (timed, theirs)]
            products = [each.products for each in timed]
            columns = {"reference": way, "peak_memory_gb": peak}
            rows.append(build_row(name, reference.world, *seconds, products, **columns))
    return rows


def check_same_work(
    ours: Sequence[Timed], theirs: Sequence[Timed], work: str, config: RunConfig
) -> None:
    """Raise ArithmeticError if losses or forecasts show that the work of both ways differs."""
    dtype = config.backbone.dtype
    for our, their in zip(ours, theirs, strict=True):
        ours_N, theirs_N = torch.as_tensor(our.value), torch.as_tensor(their.value)
        gap = float((ours_N - theirs_N).norm() / theirs_N.norm())
        largest = LARGEST_GAP if theirs_N.ndim == 0 else LARGEST_DIFFERENCE
        if gap > largest[dtype]:
            raise ArithmeticError(
                f"{dtype} {work}: the two ways differ by {gap:.2e} of their size, so they no "
                "longer do the same work; bring benchmarks/peft.py in line with "
                "compevo_core/training/round.py"
            )


@torch.no_grad()
def measure_products(case: Case) -> list[Row]:
    """Measure products with all frozen layers for few rows and many, against torch's own."""
    results = []
    for dtype in list_types(case):
        world = World(case.configure(dtype=dtype), 1)
        weights = [layer.base.weight for layer in world.model.population.layers.values()]
        for rows in (3, 24, 768):  # decoding for 3 agents, for their groups of 8, and a prefill
            timed = _time_products(weights, rows, _CALLS_A_REPEAT * case.repeats)
            ours, theirs = zip(*timed, strict=True)
            columns = {"reference": "torch linear", "repeats": case.repeats}
            results.append(build_row(f"products-{rows}-rows", world, ours, theirs, **columns))
    return results


def _time_products(weights: list[Tensor], rows: int, calls: int) -> list[tuple[float, float]]:
    """Return the seconds of products with all weights, ours and torch's in turn."""
    inputs = {
        width: torch.randn(rows, width, device=weights[0].device)
        for width in {weight.shape[1] for weight in weights}
    }
    # torch's way has the weights' own type; ours converts what it is given.
    others = {width: rows_ND.to(weights[0].dtype) for width, rows_ND in inputs.items()}

    def multiply(product: Callable[..., Tensor], inputs: dict[int, Tensor]) -> float:
        return time_call(lambda: [product(inputs[w.shape[1]], w) for w in weights])[0]

    timed = [
        (multiply(linear_without_grad, inputs), multiply(linear, others)) for _ in range(calls + 1)
    ]
    return timed[1:]  # the first warms up


def measure_memory(case: Case) -> list[Row]:
    """Measure the peak of a round without rewriting, with ``run.gradient`` as named by the case."""
    gradient = case.name.removeprefix("memory-")
    world = World(case.configure(settings={"run.gradient": gradient}), 1)
    trainer = world.build_trainer(rewrites=False)
    state = start_state(trainer, world.logics)

    # Adam's averages are there after the first update: the second round holds them as well.
    world.step(trainer, state, 0)
    forget_peak()
    seconds, _ = time_call(lambda: world.step(trainer, state, 0))

    # What grows with the agents by nature: trained tensors, gradients, Adam's averages.
    optimizer = trainer.update.optimizer
    tensors: list[Tensor | None] = []
    for parameter in (each for group in optimizer.param_groups for each in group["params"]):
        tensors += [parameter, parameter.grad, *optimizer.state.get(parameter, {}).values()]
    state_gb = sum(each.numel() * each.element_size() for each in tensors if each is not None) / 1e9
    return [build_row(case.name, world, [seconds], state_gb=state_gb)]


def measure_gradients(case: Case) -> list[Row]:
    """Measure the forecast phase with both gradients, and how much these differ."""
    results = []
    for dtype in list_types(case):
        measured = {}
        for gradient in ("by-agent", "joint"):
            config = case.configure(dtype=dtype, settings={"run.gradient": gradient})
            world = World(config, case.repeats)
            measured[gradient] = (*_run_forecast_phases(world), read_peak())

        ours, gradients, peak = measured["by-agent"]
        reference, joint_gradients, _ = measured["joint"]
        # Of the tensor that differs most.
        difference = max(
            float((our - their).norm() / their.norm().clamp(min=torch.finfo().tiny))
            for our, their in zip(gradients, joint_gradients, strict=True)
        )
        if difference > LARGEST_DIFFERENCE[dtype]:
            raise ArithmeticError(
                f"{dtype} gradients of {case.agents} agents, joint and by agent, differ by "
                f"{difference:.1e} of their norm; see compevo_core/training/forecast_step.py"
            )

        columns = {"reference": "all agents at once", "peak_memory_gb": peak}
        row = build_row("gradient", world, ours, reference, **columns)
        derived = {"case": "gradient-difference", "ratio": difference}
        results += [row, row | derived | {"ours_seconds": None, "reference_seconds": None}]
    return results


def _run_forecast_phases(world: World) -> tuple[list[float], list[Tensor]]:
    """Time the forecast phase of each day; return the gradients of the last one."""
    trainer = world.build_trainer(rewrites=False)
    model = world.model
    parameters = [*model.adapter_parameters(), *model.head_parameters(), *model.gate_parameters()]

    seconds = []
    for day in (0, *range(len(world.days))):
        trainer.update.optimizer.zero_grad(set_to_none=True)
        rng = np.random.default_rng(day)
        generators = RunGenerators([], rng, rng)
        run = partial(trainer.forecast_step.run, world.logics, world.days[day], generators, day)
        seconds.append(time_call(run)[0])
    # The first one warms up.
    return seconds[1:], [each.grad.clone() for each in parameters if each.grad is not None]


def measure_rounds(case: Case) -> list[Row]:
    """Measure rounds of the preset, all of which rewrite the logics, or none of them."""
    world = World(case.configure(), case.repeats + 1)
    counts = count_tokens(world.model.backbone)
    trainer = world.build_trainer(rewrites=case.name == "preset-rewriting")
    state = start_state(trainer, world.logics)

    seconds, tokens = [], []
    for day in range(case.repeats + 1):
        counts.clear()
        seconds.append(time_call(partial(world.step, trainer, state, day))[0])
        tokens.append(sum(counts))
    # The first round warms up.
    return [build_row(case.name, world, seconds[1:], tokens=round(sum(tokens[1:]) / case.repeats))]


@torch.no_grad()
def measure_sampling(case: Case) -> list[Row]:
    """Measure four logics with slots for each agent, the prompts read before.

    Both ways take turns, with other draws in each repeat.

    Raises:
        ArithmeticError: they wrote other tokens.
    """
    world = World(case.configure(dtype="float32"), 1)
    counts = count_tokens(world.model.backbone)
    population = world.model.population
    tokenizer = world.model.backbone.tokenizer
    grammar = SlotGrammar(build_slots(REGIONS), tokenizer, list_stop_tokens(tokenizer))

    def sample(way: Callable[..., Any], seed: int) -> tuple[float, tuple[Tensor, Tensor]]:
        settings = _plan_sampling(world, 4, grammar.max_tokens, seed)
        counts.clear()
        return time_call(lambda: way(population, cache, grammar, settings))

    ours, reference, tokens = [], [], []
    with population.use_adapters(LOGIC):
        cache = _prefill_prompts(world)
        for repeat in range(case.repeats + 1):
            our_seconds, our_texts = sample(sample_under_grammar, repeat)
            tokens.append(sum(counts))
            their_seconds, their_texts = sample(sample_every_token, repeat)
            if not all(torch.equal(*pair) for pair in zip(our_texts, their_texts, strict=True)):
                raise ArithmeticError("both ways of sampling write other tokens: one is wrong")
            ours.append(our_seconds)
            reference.append(their_seconds)

    # The first repeat warms up.
    columns = {
        "reference": "a pass and all logits for every token",
        "tokens": round(statistics.median(tokens[1:])),
    }
    return [build_row("sampling", world, ours[1:], reference[1:], **columns)]


def sample_every_token(
    population: Population, cache: PrefillCache, grammar: TokenGrammar, settings: SamplingSettings
) -> tuple[Tensor, Tensor]:
    """Sample with a forward pass and all logits for every token; return ids and mask (A, M, T)."""
    return sample_tokens(_Masked(population, grammar, settings), cache, settings)


class _Masked:
    """A population that gives tokens which the grammar forbids no probability."""

    def __init__(
        self, population: Population, grammar: TokenGrammar, settings: SamplingSettings
    ) -> None:
        self._population = population
        self._grammar = grammar
        self._stop_tokens = settings.stop_tokens
        self._written: dict[tuple[int, int], list[int]] = {}

    def logits(self, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """Return logits (A, M, V) of states (A, M, D)."""
        logits_AMV = self._population.logits(states, tokens)
        is_allowed_AMV = torch.zeros_like(logits_AMV, dtype=torch.bool)
        for agent, row in torch.cartesian_prod(*map(torch.arange, states.shape[:2])).tolist():
            ids = self._written.setdefault((agent, row), [])
            has_ended = any(token in self._stop_tokens for token in ids)
            allowed = slice(None) if has_ended else list(self._grammar.allowed(tuple(ids)))
            is_allowed_AMV[agent, row, allowed] = True
        return logits_AMV.masked_fill(~is_allowed_AMV, -torch.inf)

    def read_tokens(
        self, ids_AL: Tensor, positions_AL: Tensor, attention: AttentionBackend
    ) -> Tensor:
        """Read the next token of every row."""
        for agent, tokens in enumerate(ids_AL.tolist()):
            for row, token in enumerate(tokens):
                self._written[agent, row].append(token)
        return self._population.read_tokens(ids_AL, positions_AL, attention)


@torch.no_grad()
def measure_token(case: Case) -> list[Row]:
    """Measure a token of all agents' groups, against reading each weight that it needs once.

    The reference is what memory allows: the ratio is the share of that limit which is reached.
    """
    world = World(case.configure(), 1)
    population = world.model.population
    settings = dataclasses.replace(
        _plan_sampling(world, world.config.grpo.group_size, _TOKENS, 0), stop_tokens=()
    )
    with population.use_adapters(LOGIC):
        cache = _prefill_prompts(world)
        repeats = time_repeats(lambda: population.sample(cache, settings), case.repeats)

    # The head's matrix is read for the scores of all tokens.
    weights = [layer.base.weight for layer in population.layers.values()]
    weights += population.adapter_parameters(LOGIC)
    weights.append(world.model.backbone.model.get_output_embeddings().weight)
    needed = sum(weight.numel() * weight.element_size() for weight in weights)

    source = torch.zeros(needed // 2, dtype=torch.uint8, device=world.model.backbone.device)
    target = torch.empty_like(source)
    # A copy of half the bytes moves as many as reading all of them.
    limits = time_repeats(lambda: target.copy_(source), _CALLS_A_REPEAT)

    columns = {"reference": "reading the weights once", "tokens": _TOKENS}
    return [build_row("token", world, [each / _TOKENS for each in repeats], limits, **columns)]


def _prefill_prompts(world: World) -> PrefillCache:
    """Read the prompts that each agent writes its logics by."""
    tokenizer = world.model.backbone.tokenizer
    prompts = [fit_logic_prompt(seen, world.config, tokenizer)[0] for seen in world.observe()]
    population = world.model.population
    return population.prefill(population.pack([[PromptGroup(ids)] for ids in prompts]))


def _plan_sampling(world: World, samples: int, tokens: int, seed: int) -> SamplingSettings:
    backbone, agents = world.model.backbone, range(world.config.population.agents)
    return SamplingSettings(
        samples=samples,
        max_new_tokens=tokens,
        temperature=world.config.evolution.temperature,
        stop_tokens=list_stop_tokens(backbone.tokenizer),
        pad_token=backbone.tokenizer.pad_token_id,
        generators=RunGenerators.from_seed(seed, agents, backbone.device).agents,
    )


MEASURES: dict[str, Callable[[Case], list[Row]]] = {
    "backward": measure_backward,
    "gradient": measure_gradients,
    "inference": measure_inference,
    "memory-by-agent": measure_memory,
    "memory-joint": measure_memory,
    "preset-rewriting": measure_rounds,
    "preset-round": measure_rounds,
    "product": measure_products,
    "round": measure_round,
    "sampling": measure_sampling,
    "token": measure_token,
}


def measure_case(case: Case) -> list[Row]:
    """Return the rows of a case."""
    return MEASURES[case.name](case)
