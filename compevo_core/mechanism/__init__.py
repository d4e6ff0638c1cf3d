"""How a training went and what its agents ended as, as rows that are committed."""
