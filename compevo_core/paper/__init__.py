"""What exists for the paper's tables and figures alone: rivals, experiments, benchmark, LUD."""
