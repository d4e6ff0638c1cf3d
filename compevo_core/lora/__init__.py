"""Many LoRA adapters on one frozen language model: trained, sampled from and saved together.

Three nouns: a :class:`Population` holds the adapters, a :class:`Batch` the prompts of each of them,
an :class:`Optimizer` moves all of them in one step. Every adapter computes what it computes under
PEFT, and is saved as a folder that PEFT loads.

    population = Population(Backbone(model, tokenizer), LoraShape(adapters=10), generator)
    optimizer = Optimizer(population.parameters(), lr=1e-3)

    batch = population.pack([[PromptGroup(prompt, answer=answer)] for prompt, answer in tasks])
    with population.use_adapters():
        population.answer_loss(batch).sum().backward()
    optimizer.step()

A population needs a model of transformers that is built like Llama, Mistral, Qwen2 or Gemma.
"""

from compevo_core.lora.adapters import LoraShape, Optimizer
from compevo_core.lora.backbone import Backbone
from compevo_core.lora.batch import Batch, PromptGroup
from compevo_core.lora.population import Population
from compevo_core.lora.sampling import SamplingSettings

__all__ = [
    "Backbone",
    "Batch",
    "LoraShape",
    "Optimizer",
    "Population",
    "PromptGroup",
    "SamplingSettings",
]
