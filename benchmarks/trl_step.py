"""The policy step of one agent under TRL's own trainer, as a user of TRL would run it agent by agent.

What belongs here: TRL's ``GRPOTrainer`` on a fresh backbone with one LoRA adapter, timed step by step.
What does not: our policy step (``cases``). The objective is the classic one the core uses (loss "grpo", KL 0.04,
clip 0.2, deviation within the group); the reward of a completion is an agent's forecast from its whole prompt.
A step is TRL's: generation, reward, reference, loss, backward and optimiser. It has no candidate stage and no soft
prompt, which our step has.
"""

import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.straightforward import Straightforward, truth
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.logic_writer import Observation
from compevo_core.agents.prompts import clean_logic
from compevo_core.config import RunConfig
from compevo_core.lm.backbone import load_backbone
from compevo_core.lm.population import TARGETS


class _Clock(TrainerCallback):
    """Seconds from the start of a step to the end of its update."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Stops it."""
        self.seconds.append(time.perf_counter() - self._began)


def trl_step_seconds(
    straight: Straightforward, seen: Observation, tasks: Sequence[ForecastExample], steps: int
) -> list[float]:
    """Seconds of ``steps`` policy steps of agent 0; rewards come from its forecasts of ``tasks``."""
    config, clock, truth_BH = straight.config, _Clock(), truth(tasks)

    def forecast_reward(completions: list[str], **_: Any) -> list[float]:
        texts = [clean_logic(text, seen.logics[0])[0] for text in completions]
        with torch.no_grad():
            return straight.group_rewards(
                0, texts, tasks, truth_BH, config.objective.metric
            ).tolist()

    backbone = load_backbone(config.backbone, device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            backbone.model,
            reward_funcs=forecast_reward,
            args=_arguments(config, folder, steps),
            train_dataset=Dataset.from_dict({"prompt": [straight.logic_text(0, seen)] * steps}),
            processing_class=backbone.tokenizer,
            callbacks=[clock],
            peft_config=LoraConfig(
                r=config.population.rank,
                lora_alpha=config.population.alpha,
                bias="none",
                lora_dropout=0.0,
                target_modules=list(TARGETS),
                task_type="CAUSAL_LM",
            ),
        )
        trainer.train()
    return clock.seconds


def _arguments(config: RunConfig, folder: str, steps: int) -> GRPOConfig:
    grpo, tokens = config.grpo, config.evolution.logic_tokens
    return GRPOConfig(
        output_dir=folder,
        loss_type="grpo",
        beta=grpo.kl,
        epsilon=grpo.clip,
        use_bias_correction_kl=False,
        scale_rewards="group",
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        gradient_checkpointing=False,
        num_generations=grpo.group_size,
        per_device_train_batch_size=grpo.group_size,
        gradient_accumulation_steps=1,
        max_steps=steps,
        learning_rate=config.optim.policy_lr,
        temperature=config.evolution.temperature,
        top_k=0,
        top_p=1.0,
        max_completion_length=tokens,
        generation_kwargs={"min_new_tokens": tokens},
    )
