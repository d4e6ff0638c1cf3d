"""The population is exact: against PEFT one adapter at a time, across prefixes and agents."""

import copy
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import LlamaForCausalLM, Phi3Config, Qwen2Config

from compevo_core.agents.decoders import FORECAST, KINDS, LOGIC
from compevo_core.config.sections import PopulationConfig
from compevo_core.errors import ConfigError
from compevo_core.lora import PromptGroup, SamplingSettings
from compevo_core.lora.adapters import AdapterRoute, AdapterRouter, LoraShape, StackedLoraLinear
from tests.support.tiny_backbone import (
    build_backbone,
    build_gemma,
    build_population,
    build_random,
    insert_adapters,
)

ROWS = [[5, 6, 7, 8], [9, 10], [11, 12, 13], [20, 21, 22, 23], [30, 31, 32], [40]]


def _packed(population, rows=ROWS):
    """Two prompts an agent."""
    groups = [PromptGroup(row) for row in rows]
    return population.pack([groups[i : i + 2] for i in range(0, len(rows), 2)])


def _states_alone(decoder, row):
    """All states of one prompt read by itself under transformers' own attention."""
    return decoder(input_ids=torch.tensor([row])).last_hidden_state[0]


def test_a_populations_backbone_still_works_as_usual():
    population, plain = build_population(), build_backbone()
    ids = torch.tensor([[0, 0, 9, 10], [5, 6, 7, 8]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    models = (each.model for each in (population.backbone, plain))
    ours, theirs = (model(input_ids=ids, attention_mask=mask).logits for model in models)
    assert torch.allclose(ours[mask.bool()], theirs[mask.bool()], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_agent_equals_its_adapter_under_peft(kind, tmp_path):
    population = build_population()
    packed = _packed(population)
    with population.use_adapters(kind):
        states_ALD = population.hidden_states(packed)
    ours = [states_ALD.flatten(0, 1)[places] for row in packed.prompts for places in row]

    for agent in range(3):
        population.save_adapter(agent, kind, tmp_path / str(agent))
        model = PeftModel.from_pretrained(build_backbone().model, tmp_path / str(agent)).eval()
        decoder = model.base_model.model.model
        for row in (2 * agent, 2 * agent + 1):
            assert torch.allclose(ours[row], _states_alone(decoder, ROWS[row]), atol=1e-5)


def test_every_agents_gradients_equal_those_of_peft(tmp_path):
    population = build_population()
    with population.use_adapters(FORECAST):
        population.read_out(_packed(population)).square().sum().backward()

    for agent in range(3):
        population.save_adapter(agent, FORECAST, tmp_path / str(agent))
        frozen = build_backbone().model
        folder = tmp_path / str(agent)
        model = PeftModel.from_pretrained(frozen, folder, is_trainable=True).eval()
        rows = ROWS[2 * agent : 2 * agent + 2]
        last = (_states_alone(model.base_model.model.model, row)[-1] for row in rows)
        sum(state.square().sum() for state in last).backward()
        for name, layer in population.layers.items():
            theirs = model.base_model.model.get_submodule(name)
            for ours, other in ((layer.lora_a, theirs.lora_A), (layer.lora_b, theirs.lora_B)):
                expected = other["default"].weight.grad
                limit = 1e-3 * float(expected.abs().max())
                assert torch.allclose(ours[FORECAST].grad[agent], expected, rtol=1e-3, atol=limit)


PREFIXES = [[5, 6, 7], [9, 10], [11, 12, 13, 14]]
SUFFIXES = [[3, 4], [8], [3], [5, 6, 7], [9, 9], [4]]


def _packed_groups(population):
    groups = [PromptGroup(PREFIXES[i], SUFFIXES[2 * i : 2 * i + 2]) for i in range(3)]
    return population.pack([[group] for group in groups])


def _write(population, tokens, **options):
    """The likeliest continuations of the groups, ids and mask (A, R, T)."""
    cache = population.prefill(_packed_groups(population))
    settings = {"temperature": 0.0, "stop_tokens": []} | options
    return population.sample(cache, SamplingSettings(max_new_tokens=tokens, **settings))


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_shared_prefix_equals_full_prompts(checkpointing):
    population = build_population(checkpointing=checkpointing)
    parameters = population.adapter_parameters(LOGIC)
    full = [PREFIXES[i // 2] + SUFFIXES[i] for i in range(6)]
    with population.use_adapters(LOGIC):
        whole = population.read_out(_packed(population, full))
        expected = torch.autograd.grad(whole.square().sum(), parameters)
        states = population.read_out(_packed_groups(population))
        found = torch.autograd.grad(states.square().sum(), parameters)

    assert torch.allclose(whole, states, atol=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_identical_suffixes_are_computed_once():
    population = build_population()
    packed = population.pack([[PromptGroup([5, 6, 7], [[8], [9], [8], []])]] * 3)
    assert packed.ids_AL.shape == (3, 5)
    places = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 3], [0, 1, 2]]
    assert packed.prompts[0] == places
    assert packed.prompts[2] == [[10 + place for place in prompt] for prompt in places]
    with population.use_adapters(LOGIC):
        states = population.read_out(packed)
    assert torch.equal(states[:, 0], states[:, 2])
    assert not torch.allclose(states[:, 0], states[:, 1])


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_fused_layer_has_its_formulas_gradients(dropout):
    shape = LoraShape(adapters=3, rank=2, alpha=6.0)
    router = AdapterRouter()
    router.active = AdapterRoute(kind=LOGIC, dropout=dropout)
    base = torch.nn.Linear(5, 4).requires_grad_(False)
    layer = StackedLoraLinear(base, shape, range(3), router, torch.Generator(), {LOGIC: True})
    layer.lora_b[LOGIC].data.normal_()
    x = torch.randn(3, 7, 5, requires_grad=True)
    parameters = [x, layer.lora_a[LOGIC], layer.lora_b[LOGIC]]
    torch.manual_seed(1)
    found = torch.autograd.grad(layer(x).square().sum(), parameters)
    torch.manual_seed(1)
    dropped = torch.nn.functional.dropout(x, dropout) if dropout else x
    plain = layer.base(x) + 3.0 * dropped @ layer.lora_a[LOGIC].mT @ layer.lora_b[LOGIC].mT
    expected = torch.autograd.grad(plain.square().sum(), parameters)

    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_batched_greedy_decoding_equals_full_reading():
    population = build_population()
    with population.use_adapters(LOGIC), torch.no_grad():
        ids, mask = _write(population, 6, stop_tokens=[2])
        for row in range(6):
            agent, path = row // 2, PREFIXES[row // 2] + SUFFIXES[row]
            tokens = ids[agent, row % 2][mask[agent, row % 2].bool()].tolist()
            for token in tokens:
                with population.use_adapters(LOGIC, rows=slice(agent, agent + 1)):
                    state = population.read_out(population.pack([[PromptGroup(path)]]))
                assert int(population.logits(state)[0, 0, 0].argmax()) == token
                path = [*path, token]


def test_a_finished_continuation_leaves_others_running():
    population = build_population()
    with population.use_adapters(LOGIC), torch.no_grad():
        ids, _ = _write(population, 5)
        first = int(ids[1, 0, 0])
        shorter, mask = _write(
            population, 5, is_complete=lambda row: len(row) == 2 and row[0] == first
        )

    ends = ids[..., 0] == first
    assert ends.any() and not ends.all()
    assert torch.equal(mask.sum(-1), torch.where(ends, 2, 5))
    assert torch.equal(shorter[mask.bool()], ids[mask.bool()])


def test_sampled_tokens_have_full_sequence_probabilities():
    population, temperature, samples = build_population(), 0.05, 4_000

    def largest_deviation(drawn, agent, path):
        """Largest difference of a token's share from its probability, in standard errors."""
        with population.use_adapters(LOGIC, rows=slice(agent, agent + 1)), torch.no_grad():
            state = population.read_out(population.pack([[PromptGroup(path)]]))
            probability = torch.softmax(population.logits(state)[0, 0, 0] / temperature, -1)
        # Neither even nor settled: a share can be wrong.
        assert 0.02 < float(probability.max()) < 0.98
        share = torch.bincount(drawn, minlength=len(probability)) / len(drawn)
        error = (probability * (1 - probability) / len(drawn)).sqrt()
        return float(((share - probability).abs() / error)[probability > 0.005].max())

    with population.use_adapters(LOGIC), torch.no_grad():
        cache = population.prefill(_packed_prefixes(population))
        settings = SamplingSettings(
            samples=samples,
            max_new_tokens=2,
            temperature=temperature,
            stop_tokens=[],
            generators=[torch.Generator().manual_seed(i) for i in range(3)],
        )
        ids, _ = population.sample(cache, settings)
    for agent, path in enumerate(PREFIXES):
        first = ids[agent, :, 0]
        mode = int(first.mode().values)
        assert largest_deviation(first, agent, path) < 5
        assert largest_deviation(ids[agent, first == mode, 1], agent, [*path, mode]) < 5


def test_capped_scores_match_prefill_and_decoding():
    plain, population = build_gemma(), insert_adapters(build_gemma())
    with population.use_adapters(None), torch.no_grad():
        states = population.read_out(_packed_groups(population))
        ids, _ = _write(population, 2)

    for row in range(6):
        whole = PREFIXES[row // 2] + SUFFIXES[row]
        alone = _states_alone(plain.decoder, whole)[-1]
        assert torch.allclose(states[row // 2, row % 2, 0], alone, atol=1e-5)
        first, second = ids[row // 2, row % 2].tolist()
        logits = plain.model(input_ids=torch.tensor([[*whole, first]])).logits[0]
        assert [int(logits[-2].argmax()), int(logits[-1].argmax())] == [first, second]


WORDS = [[5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]  # the soft tokens of each agent, as ids
S = 4


def _prompts(population, *, soft):
    """Return a shared prefix, then two suffixes, with the words of WORDS soft or as they are."""

    def token(agent, row):
        return population.soft_token_id(row) if soft else WORDS[agent][row]

    rows = [[token(i, place) for place in range(S)] for i in range(3)]
    return population.pack([[PromptGroup([3, a, 4], [[b, c], [d, 20]])] for a, b, c, d in rows])


@pytest.mark.parametrize("build", [build_backbone, build_gemma])
def test_soft_embeddings_give_the_words_states(build):
    population = insert_adapters(build())
    packed = _prompts(population, soft=True)

    table = population.embed(torch.tensor(WORDS)).detach()
    embeds = population.embed(packed.ids_AL, table)
    with torch.no_grad():
        soft = population.hidden_states(packed, embeds)
        words = population.hidden_states(_prompts(population, soft=False))

    assert torch.equal(soft, words)


def test_last_tokens_are_read_across_the_prefix():
    population = build_population(PopulationConfig(agents=1, rank=4, alpha=8.0))
    packed = population.pack([[PromptGroup([5, 6, 7], [[8, 9], [], [10, 11, 12]])]])

    with torch.no_grad():
        states_ALD = population.hidden_states(packed)
        read_ARCD = population.read_out(packed, count=3)

    places = [[2, 3, 4], [0, 1, 2], [5, 6, 7]]
    expected = torch.stack([states_ALD[0, place] for place in places])
    assert torch.equal(read_ARCD[0], expected)
    assert torch.equal(population.read_out(packed), read_ARCD[:, :, -1:])


def test_invalid_packs_embeddings_and_readouts_are_refused():
    population = build_population()
    with pytest.raises(ValueError, match="same number"):
        population.pack([[PromptGroup([5])], [PromptGroup([5], [[6], [7]])], [PromptGroup([5])]])
    with pytest.raises(ValueError, match="empty prefix"):
        population.pack([[PromptGroup([])]] * 3)

    ids = torch.tensor([[5, population.soft_token_id(S)]] * 3)
    for table in (None, torch.zeros(3, S, population.backbone.hidden_size)):
        with pytest.raises(ValueError, match="soft"):
            population.embed(ids, table)

    packed = population.pack([[PromptGroup([5, 6, 7]), PromptGroup([5, 6, 7, 8])]] * 3)
    for count in (0, 4):
        with pytest.raises(ValueError, match="3"):
            population.read_out(packed, count=count)

    windowed = insert_adapters(build_gemma())
    with pytest.raises(ConfigError, match="context_length"):
        windowed.hidden_states(windowed.pack([[PromptGroup(list(range(3, 12)))]] * 3))


def _packed_prefixes(population):
    return population.pack([[PromptGroup(row)] for row in PREFIXES])


@pytest.mark.parametrize("build", [build_backbone, build_gemma, partial(build_random, Qwen2Config)])
def test_the_first_layers_state_is_the_backbones(build):
    plain = build()
    population = insert_adapters(build())

    with torch.no_grad():
        states = population.read_out(_packed_prefixes(population), layers=1)
        for row, found in zip(PREFIXES, states[:, 0, 0], strict=True):
            own = plain.decoder(input_ids=torch.tensor([row]), output_hidden_states=True)
            assert torch.allclose(found, own.hidden_states[1][0, -1], atol=1e-6)


def test_reading_fewer_layers_affects_no_other_pass():
    population = build_population()
    packed, decoder = _packed_prefixes(population), population.backbone.decoder
    settings, layers = copy.deepcopy(decoder.config.to_dict()), list(decoder.layers)
    norm, before = decoder.norm, population.read_out(packed).detach()

    population.read_out(packed, layers=1)

    assert decoder.config.to_dict() == settings
    assert list(decoder.layers) == layers
    assert decoder.norm is norm
    assert torch.equal(population.read_out(packed), before)


def test_adapters_start_alike_at_any_depth():
    whole, first = (insert_adapters(build_backbone(), forecast_layers=layers) for layers in (0, 1))
    for kind, count in ((LOGIC, 28), (FORECAST, 14)):
        ours, theirs = whole.adapter_parameters(kind)[:count], first.adapter_parameters(kind)
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_layers_that_are_not_there_are_not_read():
    population = build_population(forecast_layers=1)
    with (
        population.use_adapters(FORECAST),
        pytest.raises(ConfigError, match=r"read_out\(layers=n\)"),
    ):
        population.read_out(_packed_prefixes(population))

    with pytest.raises(ConfigError, match=r"3 layers.*has 2;"):
        build_population(forecast_layers=3)
    with pytest.raises(ConfigError, match="at most 2"):
        population.read_out(_packed_prefixes(population), layers=3)


def test_blocks_of_other_linear_layers_are_refused():
    adapted = build_population().backbone
    with pytest.raises(ConfigError, match="a fresh one"):
        insert_adapters(adapted)

    backbone = build_random(Phi3Config)
    names = [name for name, _ in backbone.model.named_parameters()]
    with pytest.raises(ConfigError, match=r"q_proj.*others: .*qkv_proj"):
        insert_adapters(backbone)
    assert [name for name, _ in backbone.model.named_parameters()] == names

    backbone = build_backbone()
    backbone.decoder.layers[1].router = torch.nn.Linear(32, 4, bias=False)
    with pytest.raises(ConfigError, match=r"layer 1.*others: router\.weight"):
        insert_adapters(backbone)


TUTORIAL = Path(__file__).parents[3] / "docs" / "tutorials" / "train-many-adapters.md"


def _train_by_peft(model, start, prompt, answer):
    """One adapter alone, as PEFT's user trains it; return its loss and weights."""
    adapted = PeftModel.from_pretrained(model, start, is_trainable=True)
    weights = [each for each in adapted.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.0)
    for _ in range(30):
        optimizer.zero_grad()
        # The model's own loss would round to float32.
        logits_TV = adapted(input_ids=torch.tensor([prompt + answer])).logits[0]
        scores_TV = logits_TV[len(prompt) - 1 : -1]
        loss = torch.nn.functional.cross_entropy(scores_TV, torch.tensor(answer))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    return loss.item(), get_peft_model_state_dict(adapted)


def test_ten_adapters_of_the_tutorial_equal_peft_alone(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", TUTORIAL.read_text("utf-8"), flags=re.DOTALL)
    before, after = code.split("# Task n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(before, TUTORIAL, "exec"), names)  # noqa: S102 - the page's own code
    for number in range(10):
        names["population"].save_adapter(number, "default", tmp_path / f"start-{number}")
    exec(compile("#" + after, TUTORIAL, "exec"), names)  # noqa: S102 - the page's own code

    assert names["ids"].tolist() == [[answer] for _, answer in names["tasks"]]
    for number in (0, 5, 9):  # each is a training of a model of its own
        torch.manual_seed(0)
        model = LlamaForCausalLM(names["config"]).double().eval()
        loss, weights = _train_by_peft(model, tmp_path / f"start-{number}", *names["tasks"][number])
        assert names["losses"][number].item() == pytest.approx(loss, abs=1e-6)
        saved = load_file(tmp_path / f"adapters/{number}" / "adapter_model.safetensors")
        assert saved.keys() == weights.keys()
        assert max(float((saved[name] - weights[name]).abs().max()) for name in saved) < 1e-6


@pytest.mark.parametrize("rows", [slice(0, 1), slice(1, 3)])
def test_a_batch_has_a_row_for_each_adapter_in_use(rows):
    population = build_population()
    packed = population.pack([[PromptGroup([5, 6, 7])]] * 3)
    with (
        population.use_adapters(FORECAST, rows=rows),
        pytest.raises(ValueError, match=r"3 rows .* adapters in use"),
    ):
        population.read_out(packed)
