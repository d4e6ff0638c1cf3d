"""The shared language model: where it comes from, encoders, sampling under a grammar."""
