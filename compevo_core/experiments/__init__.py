"""The paper's experiments: each a list of named changes to a configuration."""
