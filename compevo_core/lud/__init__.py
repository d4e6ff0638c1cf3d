"""Logic Update Degree: how far the agents' logics moved, as distances and judges see it (paper 5.1, F)."""
