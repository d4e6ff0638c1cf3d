"""The wing of the paper: its experiments, benchmark, tables, pages, assets and commands."""
