"""The shared language model: backbone, encoders, packed prompts, attention and stacked LoRA adapters."""
