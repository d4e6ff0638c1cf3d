"""Logic Update Degree: how far the agents' logics moved, by distance and by judges (paper F)."""
