"""The policy step of one agent under TRL's own trainer, as a user of TRL would run it.

What belongs here: TRL's ``GRPOTrainer`` on a fresh backbone with one LoRA adapter, timed step by
step. What does not: our policy step (``cases``).

The objective is the classic one that the core uses (loss "grpo", KL 0.04, clip 0.2, deviation
within the group). The reward of a completion is an agent's forecast from its whole prompt. A step
is TRL's: generation, reward, reference, loss, backward and optimiser. It has no candidate stage and
no soft prompt, which our step has.
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

from benchmarks.peft_round import PeftRound, stack_truths
from compevo_core.agents.decoders import ForecastExample
from compevo_core.agents.logic_writer import Observation
from compevo_core.agents.logics import clean_logic
from compevo_core.agents.prompts import Tokenizer, render_logic_prompt
from compevo_core.config.run import RunConfig
from compevo_core.lm.architectures import LORA_TARGETS
from compevo_core.lm.backbone import load_backbone


class _StepTimer(TrainerCallback):
    """Measure seconds from the start of a step to the end of its update."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - TRL's arguments
        """Start the clock."""
        self._began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - TRL's arguments
        """Stop the clock."""
        self.seconds.append(time.perf_counter() - self._began)


def time_trl_steps(
    reference: PeftRound,
    observation: Observation,
    examples: Sequence[ForecastExample],
    steps: int,
) -> list[float]:
    """Return the seconds of policy steps of agent 0.

    Args:
        reference: gives the rewards, by its forecasts of ``examples``.
        observation: what the agent knows when it writes.
        examples: windows that score a logic.
        steps: their number.
    """
    config = reference.config
    truth_BH = stack_truths(examples)

    def score_completions(completions: list[str], **_: Any) -> list[float]:  # noqa: ANN401
        logics = [clean_logic(text, observation.logics[0])[0] for text in completions]
        with torch.no_grad():
            return reference.score_group(0, logics, examples, truth_BH).tolist()

    timer = _StepTimer()
    backbone = load_backbone(config.backbone, device="cpu")
    prompt = _render_prompt(config, observation, backbone.tokenizer)
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            backbone.model,
            reward_funcs=score_completions,
            args=_build_arguments(config, folder, steps),
            train_dataset=Dataset.from_dict({"prompt": [prompt] * steps}),
            processing_class=backbone.tokenizer,
            callbacks=[timer],
            peft_config=LoraConfig(
                r=config.population.rank,
                lora_alpha=config.population.alpha,
                bias="none",
                lora_dropout=0.0,
                target_modules=list(LORA_TARGETS),
                task_type="CAUSAL_LM",
            ),
        )
        trainer.train()
    return timer.seconds


def _render_prompt(config: RunConfig, observation: Observation, tokenizer: Tokenizer) -> str:
    """Return the logic-update prompt of agent 0, whole."""
    is_paraphrased = config.evolution.instruction == "paraphrased"
    return render_logic_prompt(observation.of(0), paraphrased=is_paraphrased, tokenizer=tokenizer)


def _build_arguments(config: RunConfig, folder: str, steps: int) -> GRPOConfig:
    tokens = config.evolution.max_new_tokens
    return GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        learning_rate=config.optim.policy_lr,
        # The objective of the core.
        loss_type="grpo",
        beta=config.grpo.kl_coefficient,
        epsilon=config.grpo.clip_range,
        use_bias_correction_kl=False,
        scale_rewards="group",
        # One group a step, of completions that all have the same length.
        num_generations=config.grpo.group_size,
        per_device_train_batch_size=config.grpo.group_size,
        gradient_accumulation_steps=1,
        temperature=config.evolution.temperature,
        top_k=0,
        top_p=1.0,
        max_completion_length=tokens,
        generation_kwargs={"min_new_tokens": tokens},
        # The same type and device as ours, and nothing beside the step in the measured time.
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
    )
