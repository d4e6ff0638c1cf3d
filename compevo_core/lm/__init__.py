"""The shared language model: backbone, encoders, packed prompts, attention, stacked adapters."""
