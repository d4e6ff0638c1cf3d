"""The benchmark: every method of the paper's comparison under one contract and one budget.

What belongs here: the contract of a method (``methods``), what it may spend (``budgets``), one
module a family that lists its methods, the table of all of them (``table``), and running one of
them under one seed (``running``). What does not: the methods themselves (``baselines``,
``networks``, ...), scoring (``evaluation``).
"""
