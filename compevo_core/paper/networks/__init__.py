"""Neural forecasters of the paper's comparison (section 5.1), behind a baseline's contract."""
