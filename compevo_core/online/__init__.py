"""Selection that goes on after training: weights that follow the errors that became known."""
