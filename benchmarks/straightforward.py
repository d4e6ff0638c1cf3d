"""The same round, done the straightforward way a user of PEFT would do it.

What belongs here: one ``PeftModel`` with two named adapters an agent, ``set_adapter`` in a loop, ``generate`` for
every agent's candidate and group, whole prompts for every reward forecast, whole sequences for the policy loss.
What does not: timing, and any of the engine's sharing (stacked adapters, shared prefixes, batched decoding).
Prompts, numbers of tokens, losses and the optimiser step are those of ``compevo_core.training.round``; the arithmetic of
losses is imported from the core. It generates its own samples and then scores the ones our round sampled, so that
the losses of both ways are comparable number by number.
Legend: A agents, G samples of an agent, B windows, H horizon, P prompt tokens, T sampled tokens, D hidden.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from trl.trainer.utils import selective_log_softmax

from benchmarks.world import Replay, World
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.decoding import NumericHead
from compevo_core.agents.fusion import StrategyFusion
from compevo_core.agents.grpo import group_advantages, policy_loss
from compevo_core.agents.logic_writer import Observation
from compevo_core.agents.objective import diversity_loss, pruning_loss
from compevo_core.agents.prompts import PeerReport, forecast_prompt, history_index, logic_prompt
from compevo_core.agents.selection import FitnessSelection, aggregate, forecast_error
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.population import FORECAST, KINDS, LOGIC, TARGETS


class Straightforward:
    """I agents as 2 I named adapters of one PEFT model, used one after the other."""

    def __init__(self, world: World) -> None:
        config, self.world = world.config, world
        self.config, self.agents = config, config.population.agents
        self.backbone = load_backbone(config.backbone, device="cpu")
        lora = LoraConfig(
            r=config.population.rank,
            lora_alpha=config.population.alpha,
            bias="none",
            lora_dropout=config.population.dropout,
            target_modules=list(TARGETS),
            task_type="CAUSAL_LM",
        )
        self.names = [f"{kind}_{agent:02d}" for kind in KINDS for agent in range(self.agents)]
        self.model: Any = get_peft_model(self.backbone.model, lora, adapter_name=self.names[0])
        for name in self.names[1:]:
            self.model.add_adapter(name, lora)
        self.model.eval()
        generator = torch.Generator().manual_seed(0)
        self.head = NumericHead(self.agents, self.backbone.hidden_size)
        self.selection = FitnessSelection(self.agents, config.selection)
        self.fusion = StrategyFusion(self.agents, world.learner.fusion.neutral_D, generator)

    @torch.no_grad()
    def start_over(self) -> None:
        """Takes every learned tensor of the world's population as it is now, and a fresh optimiser."""
        for name, layer in self.world.learner.population.layers.items():
            module = self.model.base_model.model.get_submodule(name)
            for kind in KINDS:
                for agent in range(self.agents):
                    module.lora_A[f"{kind}_{agent:02d}"].weight.copy_(layer.lora_a[kind][agent])
                    module.lora_B[f"{kind}_{agent:02d}"].weight.copy_(layer.lora_b[kind][agent])
        learner = self.world.learner
        for mine, other in (
            (self.head, learner.answers.module),
            (self.selection, learner.selection),
            (self.fusion, learner.fusion),
        ):
            mine.load_state_dict(other.state_dict())
        optim = self.config.optim
        groups = [
            [*self._adapters(FORECAST), *self.head.parameters(), *self.selection.parameters()],
            [*self._adapters(LOGIC), *self.fusion.parameters()],
        ]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": groups[0], "lr": optim.forecast_lr},
                {"params": groups[1], "lr": optim.policy_lr},
            ],
            weight_decay=optim.weight_decay,
        )
        self.optimizer.zero_grad(set_to_none=True)

    def step(self, tasks: Sequence[ForecastExample], replay: Replay) -> dict[str, Any]:
        """One whole round; returns its losses, group rewards and gradient norm."""
        metric, weights = self.config.objective.metric, self.config.objective
        pred = self._train_forecasts(self.world.logics, tasks)
        self.generate_candidates(replay)
        candidate_AD = self.encode(replay.candidates)
        soft_AD = self._soft_prompts(candidate_AD, replay)
        self.generate_groups(replay, soft_AD)
        truth_BH = truth(replay.scored)
        with torch.no_grad():
            group_AG = torch.stack(
                [
                    self.group_rewards(agent, replay.texts[agent], replay.scored, truth_BH, metric)
                    for agent in range(self.agents)
                ]
            )
        self._all_trainable()
        diversity = diversity_loss(candidate_AD)
        if weights.lambda_div and diversity.requires_grad:
            (weights.lambda_div * diversity).backward(retain_graph=True)
        (weights.lambda_prune * pruning_loss(self.selection.gates_A)).backward()
        pg = self.policy_backward(replay, soft_AD, group_AG)
        norms = [
            float(
                nn.utils.clip_grad_norm_(
                    group["params"], self.config.optim.gradient_clip or float("inf")
                )
            )
            for group in self.optimizer.param_groups
        ]
        self.optimizer.step()
        return {
            "loss_pred": pred,
            "loss_pg": pg,
            "loss_div": float(diversity.detach()),
            "grad_norm": float(np.hypot.reduce(norms)),
            "group_rewards": group_AG.tolist(),
        }

    def forecast(self, logics: Sequence[str], tasks: Sequence[ForecastExample]) -> Tensor:
        """Every agent's forecasts (A, B, H), agent by agent on whole prompts."""
        out = []
        for agent, logic in enumerate(logics):
            self._use(FORECAST, agent)
            out.append(self._read_out(agent, [(logic, task) for task in tasks]))
        return torch.stack(out)

    def generate_candidates(self, replay: Replay) -> list[list[int]]:
        """One candidate an agent, one ``generate`` each."""
        out = []
        for agent in range(self.agents):
            self._use(LOGIC, agent)
            ids = torch.tensor([self.logic_ids(agent, replay)])
            made = self.model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), **self._sampling(1)
            )
            out.append(made[0, ids.shape[1] :].tolist())
        return out

    def generate_groups(self, replay: Replay, soft_AD: Tensor | None) -> list[Tensor]:
        """G logics an agent, one ``generate`` with ``num_return_sequences`` each."""
        out = []
        for agent in range(self.agents):
            self._use(LOGIC, agent)
            embeds = self._prompt_embeds(
                agent, replay, None if soft_AD is None else soft_AD.detach()
            )
            mask = torch.ones(embeds.shape[:2], dtype=torch.long)
            out.append(
                self.model.generate(
                    inputs_embeds=embeds,
                    attention_mask=mask,
                    **self._sampling(self.config.grpo.group_size),
                )
            )
        return out

    def group_rewards(
        self,
        agent: int,
        texts: Sequence[str],
        tasks: Sequence[ForecastExample],
        truth_BH: Tensor,
        metric: str,
    ) -> Tensor:
        """Reward of each logic of one agent, (G,); every forecast reads its whole prompt."""
        self._use(FORECAST, agent)
        pairs = [(text, task) for text in texts for task in tasks]
        values = self._read_out(agent, pairs).reshape(len(texts), len(tasks), -1)
        return -forecast_error(values, truth_BH, metric).mean(-1)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Representation of each agent's candidate with gradient, (A, D)."""
        states = []
        for agent, text in enumerate(texts):
            self._use(LOGIC, agent)
            ids = torch.tensor([self._tokens(text)])
            states.append(
                self.backbone.decoder(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
            )
        return torch.stack(states)

    def policy_backward(self, replay: Replay, soft_AD: Tensor | None, group_AG: Tensor) -> float:
        """Adds the gradient of the policy term, agent by agent on whole sequences; returns the loss."""
        advantage_AG, _ = group_advantages(group_AG)
        leaf_AD = None if soft_AD is None else soft_AD.detach().requires_grad_(True)
        neutral_AD = None if soft_AD is None else self.fusion.neutral_D.expand_as(soft_AD)
        grpo, total = self.config.grpo, 0.0
        for agent in range(self.agents):
            self._use(LOGIC, agent)
            with torch.no_grad(), self.model.disable_adapter():
                reference = self._logp(agent, replay, neutral_AD)
            logp = self._logp(agent, replay, leaf_AD)
            loss = policy_loss(
                logp,
                logp.detach(),
                reference,
                advantage_AG[agent : agent + 1],
                torch.ones_like(logp),
                clip=grpo.clip,
                kl=grpo.kl,
            ).loss
            (self.config.objective.lambda_pg / self.agents * loss).backward()
            total += float(loss.detach()) / self.agents
        if soft_AD is not None and leaf_AD is not None and leaf_AD.grad is not None:
            self._all_trainable()
            soft_AD.backward(leaf_AD.grad)
        return total

    def logic_text(self, agent: int, seen: Observation) -> str:
        """An agent's logic-update prompt."""
        peers = [PeerReport(p, seen.rewards[p], seen.logics[p]) for p in seen.peers[agent]]
        return logic_prompt(
            agent,
            seen.logics[agent],
            seen.rewards[agent],
            peers,
            tokenizer=self.backbone.tokenizer,
            paraphrased=self.config.evolution.instruction == "paraphrased",
        )

    def logic_ids(self, agent: int, replay: Replay) -> list[int]:
        """Tokens of an agent's logic-update prompt."""
        return self._tokens(self.logic_text(agent, replay.seen))[
            -self.config.backbone.context_tokens :
        ]

    def _train_forecasts(self, logics: Sequence[str], tasks: Sequence[ForecastExample]) -> float:
        pred, step = 0.0, self.config.run.micro_windows
        for start in range(0, len(tasks), step):
            part = tasks[start : start + step]
            total_BH = aggregate(self.forecast(logics, part), self.selection.weights())
            loss = forecast_error(total_BH, truth(part), self.config.objective.metric).sum() / len(
                tasks
            )
            self._all_trainable()
            loss.backward()
            pred += float(loss.detach())
        return pred

    def _soft_prompts(self, candidate_AD: Tensor, replay: Replay) -> Tensor | None:
        if self.config.evolution.update != "three-stage":
            return None
        return self.fusion.soft_prompt(self.fusion(candidate_AD, replay.previous_AD))

    def _logp(self, agent: int, replay: Replay, soft_AD: Tensor | None) -> Tensor:
        size = self.config.grpo.group_size
        ids_GT = replay.ids_AGT[agent]
        prompt = self._prompt_embeds(agent, replay, soft_AD).expand(size, -1, -1)
        whole = torch.cat([prompt, self.model.get_input_embeddings()(ids_GT)], dim=1)
        logits = self.model(
            inputs_embeds=whole, use_cache=False, logits_to_keep=ids_GT.shape[1] + 1
        ).logits
        return selective_log_softmax(
            logits[:, :-1].float() / self.config.evolution.temperature, ids_GT
        )[None]

    def _prompt_embeds(self, agent: int, replay: Replay, soft_AD: Tensor | None) -> Tensor:
        embeds = self.model.get_input_embeddings()(torch.tensor([self.logic_ids(agent, replay)]))
        return embeds if soft_AD is None else torch.cat([soft_AD[agent][None, None], embeds], dim=1)

    def _read_out(self, agent: int, pairs: Sequence[tuple[str, ForecastExample]]) -> Tensor:
        rows = [self._forecast_ids(logic, task) for logic, task in pairs]
        ids, mask = pad_left(rows, self.backbone.tokenizer.pad_token_id)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        states = self.backbone.decoder(
            input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
        ).last_hidden_state[:, -1]
        base = torch.tensor(np.stack([task.base_H for _, task in pairs]), dtype=torch.float32)
        return (
            self.head.norm(states) @ self.head.weight_AHD[agent].T + self.head.bias_AH[agent] + base
        )

    def _forecast_ids(self, logic: str, task: ForecastExample) -> list[int]:
        forecast, scaler, chooser = self.config.forecast, self.world.scaler, self.world.chooser
        parts = forecast_prompt(
            task.view,
            history_index(task.view.x, abs(scaler.mean[task.view.entity]), forecast.history_points),
            logic if forecast.logic_in_prompt else None,
            chooser.headlines(chooser.choose(logic, task.view)),
            title_characters=self.config.news.title_characters,
            tokenizer=self.backbone.tokenizer,
        )
        head = self._tokens(parts[0])
        tail = self.backbone.tokenizer(parts[1], add_special_tokens=False)["input_ids"]
        return head + tail[-max(self.config.backbone.context_tokens - len(head), 16) :]

    def _tokens(self, text: str) -> list[int]:
        ids = list(self.backbone.tokenizer(text, add_special_tokens=True)["input_ids"])
        return ids[:-1] if len(ids) > 1 and ids[-1] == self.backbone.tokenizer.eos_token_id else ids

    def _sampling(self, count: int) -> dict[str, Any]:
        tokens = self.config.evolution.logic_tokens
        return {
            "do_sample": True,
            "temperature": self.config.evolution.temperature,
            "top_k": 0,
            "top_p": 1.0,
            "num_return_sequences": count,
            "min_new_tokens": tokens,
            "max_new_tokens": tokens,
            "pad_token_id": self.backbone.tokenizer.pad_token_id,
        }

    def _use(self, kind: str, agent: int) -> None:
        self.model.set_adapter(f"{kind}_{agent:02d}")

    def _all_trainable(self) -> None:
        # set_adapter froze every adapter but one, and a frozen leaf takes no gradient from a graph built before
        self.model.set_requires_grad(self.names, requires_grad=True)

    def _adapters(self, kind: str) -> list[nn.Parameter]:
        return [
            p
            for name, p in self.model.named_parameters()
            if "lora_" in name and f".{kind}_" in name
        ]


def pad_left(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Pads token rows to one length; returns ids and mask, both (R, T)."""
    width = max(map(len, rows))
    ids = [[pad] * (width - len(r)) + list(r) for r in rows]
    mask = [[0] * (width - len(r)) + [1] * len(r) for r in rows]
    return torch.tensor(ids), torch.tensor(mask)


def truth(tasks: Sequence[ForecastExample]) -> Tensor:
    """Scaled truth of tasks that have one, (B, H)."""
    return torch.tensor(
        np.stack([t.truth_H for t in tasks if t.truth_H is not None]), dtype=torch.float32
    )
