"""The paper's experiments: each a set of named changes to a configuration."""
