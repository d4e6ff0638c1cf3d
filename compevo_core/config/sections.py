"""The sections of a run's settings: every setting with its default, unit, bounds and source.

The defaults are the paper's (table "Main implementation hyperparameters" of D.2, and appendix E).
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

if TYPE_CHECKING:
    from compevo_core.lora.adapters import LoraShape


def _check_prior(name: str, others: tuple[str, ...] = ()) -> str:
    # Imports polars, which most readers of settings never need.
    from compevo_core.baselines import PRIORS, has_method, list_news_readers

    if name not in ("none", "zero-shot", *others) and not has_method(name):
        known = ["none", *PRIORS, *list_news_readers(), "zero-shot", *others]
        choices = ", ".join(f"{choice!r}" for choice in known)
        raise PydanticCustomError("prior", "Input should be {choices}", {"choices": choices})
    return name


PriorName = Annotated[str, AfterValidator(_check_prior)]
"""A registered baseline, 'none' or 'zero-shot'."""

MOST_ARTICLES = 64  # articles that an agent can be given to read at once

TextList = Annotated[tuple[str, ...], Field(strict=False)]
"""Texts, which TOML and JSON give as a list."""

SystemName = Literal["compevo", "sa", "mael", "mae-gpt", "mad-rl"]
"""The paper's method, and the agents it is compared with (paper D.4)."""


class SettingsSection(BaseModel):
    """A group of settings; unknown keys, wrong types and values out of bounds are errors."""

    # Strict: "3" is not an integer and True is not 1. An integer passes as a float.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )


def _resolve_dtype(dtype: object) -> object:
    """Put this machine's type in place of "auto": a model is used in the type it learned in."""
    if dtype != "auto":
        return dtype

    from compevo_core.runtime.usage import multiplies_bfloat16

    return "mixed" if multiplies_bfloat16() else "float32"


class BackboneConfig(SettingsSection):
    """The frozen language model that all agents share (paper 5.1, D.2)."""

    name_or_path: str = "meta-llama/Llama-3.1-8B-Instruct"
    """hub id, folder, 'packaged:smollm2-135m' or 'tiny-random'"""
    dtype: Annotated[Literal["float32", "bfloat16", "mixed"], BeforeValidator(_resolve_dtype)] = (
        "float32"
    )
    """storage and compute type of the frozen weights; mixed: bfloat16 in the products with frozen
    layers, float32 between them; 'auto' becomes mixed where the machine multiplies in bfloat16,
    float32 elsewhere, and the record names what it became"""
    context_length: int = Field(default=4096, ge=64)
    """longest prompt in tokens (paper D.2)"""
    gradient_checkpointing: bool = False
    """recompute activations in the backward pass to save memory"""
    weights: Literal["pretrained", "random"] = "pretrained"
    """control: 'random' samples new weights for all layers and keeps the embeddings"""


class MemberConfig(SettingsSection):
    """What sets one agent apart from the others; the defaults set it apart in nothing."""

    prior: Annotated[str, AfterValidator(partial(_check_prior, others=("shared",)))] = "shared"
    """forecaster whose error it corrects; 'shared' is ``forecast.prior``"""
    calibration_days: int = Field(default=0, ge=0)
    """number of train days, the nearest ones, that its base model is fitted on; 0 = all"""
    window_share: float = Field(default=1.0, gt=0.0, le=1.0)
    """share of the train windows that count in its own error, drawn once from its seed"""
    news_scope: Literal["all", "place", "none"] = "all"
    """articles it may choose from: all candidates, those that name its series' own region, or
    none"""
    reads: Literal["chosen", "everything"] = "chosen"
    """what a linear reader reads: the articles that its logic chooses, or the sum of all of its
    scope (the generalist, whose logic is never rewritten)"""
    seed: int = Field(default=0, ge=0)
    """varies the draws that are its own: numeric tokens and window share"""
    weight: float = Field(default=1.0, gt=0.0)
    """what online weights begin with, relative to the other members, under the rules 'boa' and
    'equal'; the second keeps them"""


class PopulationConfig(SettingsSection):
    """Agents and their adapters (paper D.2)."""

    system: SystemName = "compevo"
    """how the agents work together; another than 'compevo' needs the settings that
    ``compevo paper train --variant`` gives it"""
    agents: int = Field(default=10, ge=1, le=64)
    """number of agents I"""
    exposed_peers: int = Field(default=2, ge=0)
    """peers whose logic and reward an agent sees in a round"""
    rank: int = Field(default=16, ge=1, le=256)
    """LoRA rank"""
    alpha: float = Field(default=32.0, ge=0.0)
    """LoRA scaling numerator"""
    dropout: float = Field(default=0.05, ge=0.0, le=0.9)
    """LoRA input dropout while the forecast adapters train"""
    members: Annotated[tuple[MemberConfig, ...], Field(strict=False)] = ()
    """what makes each agent different, one entry per agent; empty = only the seed logic differs"""

    @property
    def shape(self) -> "LoraShape":
        """Number and size of the adapters of each kind."""
        from compevo_core.lora.adapters import LoraShape  # settings are read without torch

        return LoraShape(self.agents, self.rank, self.alpha, self.dropout)

    @property
    def first_weights(self) -> tuple[float, ...]:
        """Weights before any error is known, which sum to 1."""
        weights = [member.weight for member in self.list_members()]
        return tuple(weight / sum(weights) for weight in weights)

    def list_members(self) -> Sequence[MemberConfig]:
        """Return what sets each agent apart."""
        return self.members or [MemberConfig()] * self.agents

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        if self.members and len(self.members) != self.agents:
            raise ValueError(
                f"{len(self.members)} members for {self.agents} agents: give one entry for each "
                "agent, or none"
            )
        return self


class ForecastConfig(SettingsSection):
    """How an agent turns its evidence into numbers."""

    decoder: Literal["head", "text", "linear", "none"] = "head"
    """numbers as soft tokens and a numeric head, the paper's answer text, or no language model: an
    agent's forecast is its base model's, to which 'linear' adds what a ridge reads in its news"""
    prior: PriorName = "calendar-ridge"
    """forecaster fitted on the train split, whose error the agents correct; 'blend' is a fixed
    mixture of calendar ridge and boosted trees, 'zero-shot' is ``zero_shot_model``"""
    zero_shot_model: str = ""
    """folder or hub id of a pretrained model of time series, for the base model 'zero-shot'"""
    known_errors: Literal["none", "mean"] = "none"
    """bias correction of the base models before the agents see their forecasts: none, or the mean
    of their known errors by series and step with a half-life of 90 days; frozen at the end of
    validation"""
    prior_folds: int = Field(default=5, ge=1)
    """blocks for out-of-fold forecasts of the base model on the train windows; 1 = in sample"""
    refit_days: int = Field(default=0, ge=0)
    """days after which the base models are refitted on all known data, each on the newest
    ``calibration_days`` of its agent; 0 = never (the paper's experiments)"""
    history_points: int = Field(default=48, ge=1, le=48)
    """history numbers in the text decoder's prompt; 24 = means of two"""
    layers: int = Field(default=0, ge=0)
    """backbone layers that the head's forecast passes through; 0 = all"""
    logic_in_prompt: bool = True
    """whether the forecast prompt contains the logic itself"""


class NewsConfig(SettingsSection):
    """Which news an agent may see, and how much of it (paper 4.1)."""

    top_k: int = Field(default=5, ge=0, le=MOST_ARTICLES)
    """articles an agent reads per window"""
    title_characters: int = Field(default=160, ge=8)
    """characters of a headline that reach the prompt"""
    form: Literal["text", "token"] = "text"
    """whether the head decoder reads an article as its headline or as one token, its embedding"""
    dropout: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability that an agent is shown no news of a train window"""
    other_logics: float = Field(default=0.0, ge=0.0, le=1.0)
    """probability that an agent reads a train window by a random seed logic in place of its own, so
    that it can read what later logics retrieve"""
    linear: bool = False
    """whether a ridge reads what a logic retrieves, by part of the day and number, before the
    adapters do"""
    fit: Literal["own", "joint"] = "own"
    """what linear readers are fitted to: each agent's own error, or the error of the population's
    forecast, all agents at once (decision 04-policy)"""
    selects: bool = False
    """whether a logic is a query: what it names of region, country, age and number selects, and its
    topics rank; otherwise the similarity to its whole sentence ranks"""
    encoder: str = "packaged:minilm"
    """sentence encoder of articles and logics; the paper names one only for LUD, BAAI/bge-m3"""


class SelectionConfig(SettingsSection):
    """Fitness and weights (paper 4.2)."""

    temperature: float = Field(default=0.5, ge=1e-3)
    """tau of the softmax over gated fitness"""
    ema: float = Field(default=0.9, ge=0.0, le=0.9999)
    """beta of the fitness average ('moderate' in the paper)"""
    units: Literal["scaled", "spread"] = "scaled"
    """unit of the fitness in the softmax: scaled errors as printed, or the population's spread"""
    scope: Literal["all", "series"] = "all"
    """one fitness over all series, or one for each"""
    uniform: bool = False
    """ablation: w_i = 1/I"""
    online: bool = False
    """whether the weights keep learning after training from every known error; if not, they stay
    as training left them (the paper's experiments)"""
    rule: Literal["paper", "equal", "boa"] = "paper"
    """what weighs the agents online: the paper's fitness, the weights of the members as they are,
    or Bernstein online aggregation"""
    parts: Literal[1, 2, 3, 4, 6, 8] = 1
    """parts of a day with online weights of their own"""


class CalibrationConfig(SettingsSection):
    """What is fitted on validation after training, and guards every agent."""

    blend: bool = False
    """weigh each agent's correction by a factor in [0, 1] for every step"""


class EvolutionConfig(SettingsSection):
    """Logic generation (paper 4.3)."""

    update: Literal["three-stage", "simplified"] = "three-stage"
    """'simplified' is the ablation: no opponent context, no gates, no soft prompt"""
    instruction: Literal["original", "paraphrased"] = "original"
    """wording of the logic-update task (paper E.9)"""
    max_new_tokens: int = Field(default=48, ge=4, le=512)
    """longest logic in tokens"""
    temperature: float = Field(default=0.7, ge=0.01, le=5.0)
    """T_gen of logic sampling (paper E.6)"""
    every: int = Field(default=1, ge=0)
    """rounds from one rewriting of the logics to the next (paper: 1); 0 = never"""
    selector: str = Field(default="backbone", pattern="^(backbone|endpoint:.+)$")
    """what mutates logics in the system 'mae-gpt': the frozen backbone, or 'endpoint:NAME', a model
    behind an OpenAI-compatible endpoint"""
    form: Literal["free", "slots"] = "free"
    """free text, or a sentence with slots for topics, region, part of the day and direction"""
    flat_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """share of an agent's new logics that is drawn from the slots by chance, every text of a slot
    as likely as any other, in place of being written by its policy"""
    cross_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """share of the logics drawn by chance that are crossed: one or two topics of the agent's own
    logic, a peer's and the drawn one, and of each other slot the text of one of the three"""
    credit: Literal["own", "contribution"] = "own"
    """what a logic earns: minus its agent's own error (Eq. 3), or by how much the population's
    linear reading gets worse without the agent (decision 04-policy)"""
    topics: TextList = ()
    """topics that a logic with slots may name; empty = the ten that the seed logics name; ``*`` =
    words of the headlines that train windows name"""
    unread: int = Field(default=0, ge=0, le=16)
    """unread titles that an agent is shown when it rewrites its logic, each with what reading it
    would have changed"""
    start: TextList = ()
    """the logic that each agent starts with; empty = the seed logics"""


class GrpoConfig(SettingsSection):
    """Group relative policy optimisation of the logics (paper 4.3, D.2)."""

    enabled: bool = True
    """ablation: False keeps sampling but takes no policy step"""
    group_size: int = Field(default=8, ge=2, le=64)
    """logics G sampled per agent and round"""
    kl_coefficient: float = Field(default=0.04, ge=0.0)
    """weight of the KL divergence from the frozen reference"""
    clip_range: float = Field(default=0.2, ge=0.0, le=1.0)
    """clip range of the probability ratio"""
    iterations: int = Field(default=1, ge=1, le=16)
    """policy updates per group of samples"""
    carry: Literal["best", "record"] = "best"
    """which logic an agent carries on: the best of the group, or the one with the best record of
    gains by its news, over all windows that scored it"""
    reward_windows: int = Field(default=0, ge=0)
    """windows that score a logic: of the round, or of all of train where the round has fewer; 0 =
    all of the round"""


class ObjectiveConfig(SettingsSection):
    """The joint objective and its weights (paper 4.4)."""

    loss: Literal["mse", "huber"] = "mse"
    """what L_pred minimises: the squared error, which rewards always measure, or Huber's loss,
    which is linear from a scaled error of 1"""
    lambda_pred: float = Field(default=1.0, ge=0.0)
    """weight of L_pred, the error of the population's forecast (paper: 1)"""
    lambda_own: float = Field(default=0.0, ge=0.0)
    """weight of each agent's own error in L_pred (paper: 0)"""
    lambda_pg: float = Field(default=0.5, ge=0.0)
    """weight of L_pg (paper E.5)"""
    lambda_div: float = Field(default=0.1, ge=0.0)
    """weight of L_div (paper 5.7)"""
    lambda_prune: float = Field(default=0.01, ge=0.0)
    """weight of L_prune (paper 5.7)"""


class DebateConfig(SettingsSection):
    """The debate of the system 'mad-rl' (paper D.4); no other system has one."""

    revisions: int = Field(default=1, ge=1, le=8)
    """times that agents read each other and forecast again"""
    exploration: float = Field(default=0.1, gt=0.0)
    """standard deviation of the forecasts that are tried in training, scaled"""
    discount: float = Field(default=0.9, ge=0.0, le=1.0)
    """weight of the next turn's rewards in what a forecast is credited with"""
    value_weight: float = Field(default=0.5, ge=0.0)
    """weight of the value's squared error relative to the policy's loss"""
    verifier_weight: float = Field(default=0.1, ge=0.0)
    """weight of the verifier's cross-entropy relative to the agents' own errors"""


class OptimConfig(SettingsSection):
    """AdamW with warm-up and cosine decay (paper D.2)."""

    forecast_lr: float = Field(default=1e-4, ge=0.0)
    """learning rate of forecast adapters, heads and selection gates"""
    policy_lr: float = Field(default=1e-6, ge=0.0)
    """learning rate of logic adapters, fusion gates and soft prompt"""
    fusion_lr: float | None = Field(default=None, ge=0.0)
    """learning rate of gates, interaction scores and fusion; none = the paper's: gates
    ``forecast_lr``, the others ``policy_lr``"""
    warmup_ratio: float = Field(default=0.03, ge=0.0, le=1.0)
    """share of rounds with rising rate"""
    weight_decay: float = Field(default=0.0, ge=0.0)
    """AdamW decoupled weight decay"""
    max_grad_norm: float = Field(default=1.0, ge=0.0)
    """largest gradient norm; 0 = no clipping"""


class RunLengthConfig(SettingsSection):
    """Length, seed and bookkeeping of a run."""

    seed: int = Field(default=0, ge=0)
    """seed of every generator"""
    epochs: int = Field(default=3, ge=1)
    """full passes over the train windows (paper 5.1: 2,193 steps, which are 3 x 731 days)"""
    supervised_epochs: int = Field(default=0, ge=0)
    """passes over the train windows before the first rewriting of logics, with a schedule of their
    own (paper D.2 names the stage)"""
    supervised_rounds: int = Field(default=0, ge=0)
    """rounds before the first rewriting of logics, in place of ``supervised_epochs``; 0 = those"""
    rounds: int = Field(default=0, ge=0)
    """rounds after the supervised stage; 0 = all epochs"""
    batch_size: int = Field(default=5, ge=1)
    """windows a round: one day of five regions"""
    micro_batch_size: int = Field(default=5, ge=1)
    """windows in one forward and backward pass; decides memory, not numbers, except the masks of
    ``population.dropout``, which are drawn for each pass"""
    gradient: Literal["joint", "by-agent", "auto"] = "joint"
    """backward pass of L_pred: through all agents at once, or agent by agent after a second reading
    (less memory, equal numbers without ``population.dropout``); auto: at once where what that keeps
    of the first micro-batch fits in half of the device's memory"""
    refit: bool = False
    """train once more on train and validation, with every choice of the first training kept"""
    validate_every: int = Field(default=50, ge=0)
    """rounds between validations; 0 = never"""
    validation_windows: int = Field(default=60, ge=0)
    """evenly spaced validation windows measured between rounds, and by the guard where nothing else
    is calibrated; 0 = all. What calibration fits uses all"""
    checkpoint_every: int = Field(default=10, ge=1)
    """rounds between checkpoints"""
    fixed_logics: int = Field(default=2, ge=0, le=10)
    """fixed seed logics K that an agent's regret is measured against, scored each round without
    gradient (theorem B.3.2); 0 = off"""
