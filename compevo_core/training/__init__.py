"""One training: base model, rounds, checkpoints and the sealed model."""
