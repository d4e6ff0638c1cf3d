"""One training: prior, rounds, checkpoints and the sealed model."""
