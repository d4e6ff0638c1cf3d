"""The paper's experiments and controls: each a named change of a configuration or of windows."""
