"""A user's own data sets: declared in TOML files, read from the user's own tables."""
