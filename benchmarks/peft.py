"""A round of agents as a competent user of PEFT would write it.

What belongs here: agents as named adapters, windows in padded batches, the prompt of a group read
once and its cache repeated, the order of a round and its update. What does not:
timing (``cases``), the layout of prompts, numeric tokens, read-out and losses, which are the core's
own modules both ways.

A round generates its own samples for their cost and scores the ones that our round sampled, so that
the losses of both ways are comparable number by number.

Shapes: A agents, G samples of an agent, B windows, H horizon, R prompts of an agent, P tokens of
the longest prompt, L = R P, T sampled tokens, C last tokens of a prompt, S soft tokens, D hidden.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from trl.trainer.utils import selective_log_softmax

from benchmarks.world import Replay, World
from compevo_core.agents.decoders import FORECAST, LOGIC, ForecastExample
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.head_decoder import HeadDecoder
from compevo_core.agents.objective import (
    diversity_loss,
    draw_own_windows,
    group_advantages,
    policy_loss,
    prediction_loss,
    pruning_loss,
)
from compevo_core.agents.observation import fit_logic_prompt
from compevo_core.agents.prompts import tokenize_prompt
from compevo_core.agents.selection import FitnessSelection, aggregate_forecasts, forecast_error
from compevo_core.agents.strategy import StrategyExecutor
from compevo_core.config.run import RunConfig
from compevo_core.config.sections import BackboneConfig
from compevo_core.lm.backbone import load_backbone
from compevo_core.lora.backbone import LORA_TARGETS, Backbone
from compevo_core.lora.batch import PromptGroup
from compevo_core.lora.population import Population
from compevo_core.training.forecast_step import stack_truths
from compevo_core.training.update import group_parameters


@dataclasses.dataclass(frozen=True)
class PaddedPrompts:
    """Whole prompts, padded on the left to one length."""

    ids_AL: Tensor  # the prompts of an agent one after the other
    mask_ARP: Tensor  # 1 where a token is not padding


class PeftForecasts:
    """The forecast adapters of all agents on a backbone of their own.

    It has the methods of the core's ``Population`` that the head decoder calls, and its embeddings.

    Attributes:
        model: the PEFT model, cut to ``forecast.layers``.
        is_mixed: whether all agents are read in one batch, each prompt with the name of its adapter
            (PEFT's mixed batch), and not one agent after the other.
    """

    soft_token_id, embed = Population.soft_token_id, Population.embed

    def __init__(self, config: RunConfig) -> None:
        self.backbone = load_reference(config.backbone)
        self.local = range(config.population.agents)
        self.is_mixed = False
        self.vocabulary_size = len(self.backbone.model.get_input_embeddings().weight)
        self._in_use = self.local

        decoder = self.backbone.decoder
        layers = config.forecast.layers
        if 0 < layers < len(decoder.layers):
            decoder.layers = decoder.layers[:layers]
            decoder.norm = nn.Identity()

        self.names = [_name_adapter(FORECAST, agent) for agent in self.local]
        self.model = _build_peft_model(decoder, config, self.names)

    @contextlib.contextmanager
    def use_adapters(
        self, kind: str, *, rows: slice = slice(None), dropout: float = 0.0
    ) -> Iterator[None]:
        """Read for the chosen agents within the ``with`` block."""
        if kind != FORECAST or dropout:
            raise ValueError(f"kind {kind!r} with dropout {dropout}: the two ways would differ")

        self._in_use = self.local[rows]
        yield
        self._in_use = self.local

    def pack(self, groups: Sequence[Sequence[PromptGroup]]) -> PaddedPrompts:
        """Pad the whole prompts of each agent's groups; nothing is shared."""
        rows = [
            torch.tensor([*group.prefix, *suffix])
            for agent_groups in groups
            for group in agent_groups
            for suffix in group.suffixes
        ]
        pad = functools.partial(pad_sequence, batch_first=True, padding_side="left")
        ids_NP = pad(rows, padding_value=self.backbone.tokenizer.pad_token_id)
        mask_NP = pad([torch.ones_like(row) for row in rows])

        device = self.backbone.device
        mask_ARP = mask_NP.unflatten(0, (len(groups), -1)).to(device)
        return PaddedPrompts(ids_NP.reshape(len(groups), -1).to(device), mask_ARP)

    def read_out(
        self, packed: PaddedPrompts, embeds_ALD: Tensor, *, count: int = 1, layers: int = 0
    ) -> Tensor:
        """Return the states at the last tokens of every prompt, (A, R, C, D)."""
        del layers  # the model was cut when it was built
        embeds_ARPD = embeds_ALD.unflatten(1, packed.mask_ARP.shape[1:])
        if self.is_mixed:
            names = [self.names[a] for a in self._in_use for _ in range(embeds_ARPD.shape[1])]
            prompts = (each.flatten(0, 1) for each in (embeds_ARPD, packed.mask_ARP))
            states_NPD = self._forward(*prompts, adapter_names=names)
            return states_NPD.unflatten(0, embeds_ARPD.shape[:2])[:, :, -count:]

        states = []
        of_agents = zip(self._in_use, embeds_ARPD, packed.mask_ARP, strict=True)
        for agent, embeds_RPD, mask_RP in of_agents:
            self.model.set_adapter(self.names[agent])
            # Each agent's batch is as wide as its own longest prompt.
            first = int(mask_RP.any(0).int().argmax())
            states_RPD = self._forward(embeds_RPD[:, first:], mask_RP[:, first:])
            states.append(states_RPD[:, -count:])
        return torch.stack(states)

    def _forward(self, embeds_NPD: Tensor, mask_NP: Tensor, **options: Any) -> Tensor:  # noqa: ANN401
        out = self.model(
            inputs_embeds=embeds_NPD.to(self.backbone.model.dtype),
            attention_mask=mask_NP,
            # Padding on the left must not shift the positions of real tokens.
            position_ids=(mask_NP.cumsum(1) - 1).clamp(min=0),
            use_cache=False,
            **options,
        )
        return out.last_hidden_state.float()


class PeftRound:
    """Rounds of A agents, named adapters of two PEFT models, used one after the other.

    ``forecasts`` may read fewer layers than ``model``, which writes logics. Decoder, gates and
    fusion are the core's own, with parameters of their own.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.config = world.config
        self.agents = self.config.population.agents

        theirs = world.model
        # The decoder asks for no more of a population than these forecasts have.
        self.forecasts: Any = PeftForecasts(self.config)
        self.decoder = HeadDecoder(self.forecasts, self.config, theirs.inputs, theirs.mix_AP)
        # A competent user forecasts all windows of a group in one padded batch.
        whole = self.config.with_overrides({"run.micro_batch_size": self.config.run.batch_size})
        self.executor = StrategyExecutor(whole, self.forecasts, self.decoder, world.news_retriever)

        self.backbone = load_reference(self.config.backbone)
        self._names = [_name_adapter(LOGIC, agent) for agent in range(self.agents)]
        self.model: Any = _build_peft_model(
            self.backbone.model, self.config, self._names, task_type="CAUSAL_LM"
        )

        # All values are copied by reset; the generator only has to be there.
        device = self.backbone.device
        generator = torch.Generator().manual_seed(0)
        entities = theirs.selection.entities
        self.selection = FitnessSelection(self.agents, self.config.selection, entities).to(device)
        self.fusion = StrategyFusion(self.agents, theirs.fusion.neutral_D, generator).to(device)

    @torch.no_grad()
    def reset(self) -> None:
        """Reset the world, and take its learned tensors and a fresh optimiser."""
        self.world.reset()
        theirs = self.world.model
        prefix = f"{self.backbone.model.base_model_prefix}."
        for name, layer in theirs.population.layers.items():
            self._copy_adapters(self.model.base_model.model.get_submodule(name), layer, LOGIC)
            if FORECAST in layer.lora_a:
                # Forecasts are read only by the stack of layers, whose names begin there.
                cut = self.forecasts.model.base_model.model
                module = cut.get_submodule(name.removeprefix(prefix))
                self._copy_adapters(module, layer, FORECAST)

        self.decoder.module.load_state_dict(theirs.decoder.module.state_dict())
        self.selection.load_state_dict(theirs.selection.state_dict())
        self.fusion.load_state_dict(theirs.fusion.state_dict())

        # The core's own groups: rates and clipping are then the same both ways.
        parameters: Any = SimpleNamespace(
            adapter_parameters=lambda: _list_adapters(self.forecasts.model),
            head_parameters=lambda: list(self.decoder.module.parameters()),
            gate_parameters=lambda: list(self.selection.parameters()),
            policy_adapter_parameters=lambda: _list_adapters(self.model),
            fusion_parameters=lambda: list(self.fusion.parameters()),
        )
        groups = group_parameters(parameters, self.config.optim)
        self.optimizer = torch.optim.AdamW(groups, weight_decay=self.config.optim.weight_decay)
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, examples: Sequence[ForecastExample], replay: Replay) -> dict[str, Any]:
        """Do one whole round; return its losses, group rewards and gradient norm."""
        loss_pred, loss_own = self.train_forecasts(examples)
        self.generate_candidates(replay)
        candidate_AD = self._encode(replay.proposal.candidates)
        soft_prompt_AD = self.fusion.soft_prompt(self.fusion(candidate_AD, replay.previous_AD))
        self.generate_groups(replay, soft_prompt_AD)

        # The played logic is scored in its group, as the core does.
        logics = zip(self.world.logics, replay.proposal.group_logics, strict=True)
        groups = [[played, *samples] for played, samples in logics]
        values_AGBH = self.executor.forecast_groups(groups, replay.reward_examples).values_ABH
        truth_BH = stack_truths(replay.reward_examples, self.backbone.device)
        reward_AG = -forecast_error(values_AGBH, truth_BH).mean(-1)[:, 1:]

        loss_div = self._backward_regularisers(candidate_AD)
        loss_pg = self._backward_policy(replay, soft_prompt_AD, reward_AG)
        max_norm = self.config.optim.max_grad_norm or float("inf")
        norms = [
            float(nn.utils.clip_grad_norm_(group["params"], max_norm))
            for group in self.optimizer.param_groups
        ]
        self.optimizer.step()
        return {
            "loss_pred": loss_pred,
            "loss_own": loss_own,
            "loss_div": loss_div,
            "loss_pg": loss_pg,
            "grad_norm": float(np.hypot.reduce(norms)),  # before clipping
            "group_rewards": reward_AG.tolist(),
        }

    def generate_candidates(self, replay: Replay) -> list[list[int]]:
        """Generate one candidate an agent, by one ``generate`` each."""
        tokens = self.config.evolution.max_new_tokens
        candidates = []
        for agent in range(self.agents):
            self.model.set_adapter(self._names[agent])
            ids = self._tokenize_logic_prompt(agent, replay)
            generated = self.model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=self.config.evolution.temperature,
                top_k=0,
                top_p=1.0,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
                pad_token_id=self.backbone.tokenizer.pad_token_id,
            )
            candidates.append(generated[0, ids.shape[1] :].tolist())
        return candidates

    @torch.no_grad()
    def generate_groups(self, replay: Replay, soft_prompt_AD: Tensor) -> list[Tensor]:
        """Generate G logics an agent from one reading of its prompt, (G, T) each."""
        size, tokens = self.config.grpo.group_size, self.config.evolution.max_new_tokens

        groups = []
        for agent in range(self.agents):
            self.model.set_adapter(self._names[agent])
            logits_1V, cache = self._read_logic_prompt(agent, replay, soft_prompt_AD)
            cache.batch_repeat_interleave(size)
            logits_GV = logits_1V.expand(size, -1)

            sampled = []
            for _ in range(tokens):
                probabilities_GV = (logits_GV / self.config.evolution.temperature).softmax(-1)
                sampled.append(torch.multinomial(probabilities_GV, 1))
                if len(sampled) < tokens:
                    out = self.model(input_ids=sampled[-1], past_key_values=cache)
                    logits_GV = out.logits[:, -1].float()
            groups.append(torch.cat(sampled, dim=1))
        return groups

    def train_forecasts(self, examples: Sequence[ForecastExample]) -> tuple[float, float]:
        """Add the gradient of the forecast losses, one micro-batch at a time.

        Returned are L_pred, and the sum of the agents' own errors.
        """
        objective = self.config.objective
        totals = np.zeros(2)
        size = self.config.run.micro_batch_size
        for start in range(0, len(examples), size):
            part = examples[start : start + size]
            truth_BH = stack_truths(part, self.backbone.device)
            readings = self.executor.read(self.world.logics, part)
            values_ABH = self.executor.forecast(readings, train=True).values_ABH

            weights_BA = self.selection.weights([example.view.entity for example in part])
            forecast_BH = aggregate_forecasts(values_ABH, weights_BA)
            pred = prediction_loss(forecast_BH, truth_BH, objective).sum() / len(examples)
            # Which windows count in each agent's own error.
            views = [example.view for example in part]
            members = self.config.population.list_members()
            is_own_AB = draw_own_windows(members, views, self.config.run.seed)
            own_AB = prediction_loss(values_ABH, truth_BH, objective)
            own_AB = own_AB * torch.from_numpy(is_own_AB).to(own_AB.device)
            own_loss = own_AB.sum() / len(examples)

            self._make_all_trainable()
            (pred + objective.lambda_own * own_loss).backward()
            totals += [float(pred.detach()), float(own_loss.detach())]
        return float(totals[0]), float(totals[1])

    def _encode(self, texts: Sequence[str]) -> Tensor:
        """Return the representation of each agent's candidate with gradient, (A, D)."""
        states = []
        for name, text in zip(self._names, texts, strict=True):
            self.model.set_adapter(name)
            ids = self._to_ids(tokenize_prompt(self.backbone.tokenizer, text))
            out = self.backbone.decoder(input_ids=ids, use_cache=False)
            states.append(out.last_hidden_state[0, -1].float())
        return torch.stack(states)

    def _backward_regularisers(self, candidate_AD: Tensor) -> float:
        """Add the gradients of diversity and pruning; return the diversity loss."""
        weights = self.config.objective
        self._make_all_trainable()

        loss_div = diversity_loss(candidate_AD)
        if loss_div.requires_grad:
            # The policy term goes through the same candidates again.
            (weights.lambda_div * loss_div).backward(retain_graph=True)
        (weights.lambda_prune * pruning_loss(self.selection.gates_A)).backward()
        return float(loss_div.detach())

    def _backward_policy(self, replay: Replay, soft_prompt_AD: Tensor, reward_AG: Tensor) -> float:
        """Add the gradient of the policy term, agent by agent; return the loss."""
        advantage_AG, _ = group_advantages(reward_AG, replay.proposal.is_empty_AG)
        leaf_AD = soft_prompt_AD.detach().requires_grad_(True)
        neutral_AD = self.fusion.neutral_D.expand_as(leaf_AD)

        total = 0.0
        for agent, name in enumerate(self._names):
            self.model.set_adapter(name)
            with torch.no_grad(), self.model.disable_adapter():
                reference_1GT = self._logp(agent, replay, neutral_AD)
            logp_1GT = self._logp(agent, replay, leaf_AD)
            loss = policy_loss(
                logp_1GT,
                logp_1GT.detach(),  # before the first update the old policy is the current one
                reference_1GT,
                advantage_AG[agent : agent + 1],
                replay.proposal.mask_AGT[agent : agent + 1],
                clip_range=self.config.grpo.clip_range,
                kl_coefficient=self.config.grpo.kl_coefficient,
            ).loss
            (self.config.objective.lambda_pg / self.agents * loss).backward()
            total += float(loss.detach()) / self.agents

        self._make_all_trainable()
        soft_prompt_AD.backward(leaf_AD.grad)
        return total

    def _logp(self, agent: int, replay: Replay, soft_prompt_AD: Tensor) -> Tensor:
        """Return log-probabilities of one agent's sampled tokens, (1, G, T); prompt read once."""
        ids_GT = replay.proposal.ids_AGT[agent]
        logits_1V, cache = self._read_logic_prompt(agent, replay, soft_prompt_AD)
        cache.batch_repeat_interleave(len(ids_GT))

        # The logits of the last prompt token score the first sampled one.
        out = self.model(input_ids=ids_GT[:, :-1], past_key_values=cache)
        first_G1V = logits_1V.expand(len(ids_GT), -1)[:, None]
        logits_GTV = torch.cat([first_G1V, out.logits.float()], dim=1)
        return selective_log_softmax(logits_GTV / self.config.evolution.temperature, ids_GT)[None]

    def _read_logic_prompt(
        self, agent: int, replay: Replay, soft_prompt_AD: Tensor
    ) -> tuple[Tensor, DynamicCache]:
        """Return the logits (1, V) after an agent's whole prompt, and its keys and values."""
        embeds = self.model.get_input_embeddings()(self._tokenize_logic_prompt(agent, replay))
        soft_11D = soft_prompt_AD[agent][None, None].to(embeds.dtype)
        embeds = torch.cat([soft_11D, embeds], dim=1)
        cache = DynamicCache()
        out = self.model(inputs_embeds=embeds, past_key_values=cache, logits_to_keep=1)
        return out.logits[:, -1].float(), cache

    def _make_all_trainable(self) -> None:
        """Unfreeze all adapters before a backward pass.

        ``set_adapter`` froze every adapter but one, and a frozen leaf takes no gradient from a
        graph that was built before.
        """
        self.forecasts.model.set_requires_grad(self.forecasts.names, requires_grad=True)
        self.model.set_requires_grad(self._names, requires_grad=True)

    def _copy_adapters(self, module: Any, layer: Any, kind: str) -> None:  # noqa: ANN401
        for agent in range(self.agents):
            adapter = _name_adapter(kind, agent)
            module.lora_A[adapter].weight.copy_(layer.lora_a[kind][agent])
            module.lora_B[adapter].weight.copy_(layer.lora_b[kind][agent])

    def _tokenize_logic_prompt(self, agent: int, replay: Replay) -> Tensor:
        tokenizer = self.backbone.tokenizer
        ids, _ = fit_logic_prompt(replay.observed[agent], self.config, tokenizer)
        return self._to_ids(ids)

    def _to_ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([tokens], device=self.backbone.device)


def load_reference(config: BackboneConfig) -> Backbone:
    """Load a backbone in the type that is fair to ours: bfloat16, its adapters float32, to mixed.

    PEFT keeps adapters in float32 for every type of backbone.
    """
    dtype = "bfloat16" if config.dtype == "mixed" else config.dtype
    return load_backbone(config.model_copy(update={"dtype": dtype}))


def _build_peft_model(
    model: Any,  # noqa: ANN401 - transformers' own module
    config: RunConfig,
    names: Sequence[str],
    task_type: str | None = None,
) -> Any:  # noqa: ANN401 - PEFT's wrapper depends on the task
    """Return a PEFT model with one LoRA adapter of a population's size for each name."""
    population = config.population
    lora = LoraConfig(
        r=population.rank,
        lora_alpha=population.alpha,
        bias="none",
        lora_dropout=population.dropout,
        target_modules=list(LORA_TARGETS),
        task_type=task_type,
    )
    # get_peft_model makes the first adapter; each call below adds one.
    peft_model = get_peft_model(model, lora, adapter_name=names[0])
    for name in names[1:]:
        peft_model.add_adapter(name, lora)
    return peft_model.eval()


def _list_adapters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if "lora_" in name]


def _name_adapter(kind: str, agent: int) -> str:
    return f"{kind}_{agent:02d}"
