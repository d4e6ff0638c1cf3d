"""Neural forecasters of the paper's comparison (section 5.1), behind the contract of a baseline.

What belongs here: one short module a network, what all of them are given (``inputs``), the one loop
that fits them (``fitting``) and the baseline that wraps them (``forecaster``). What does not:
language models with adapters (``lm``, ``agents``), scoring (``evaluation``).
"""
