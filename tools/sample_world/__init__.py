"""The invented files of the sample mode, made once and committed as an archive."""
