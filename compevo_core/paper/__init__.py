"""What only the paper's tables and figures need: rivals, experiments, benchmark, LUD."""
