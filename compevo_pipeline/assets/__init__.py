"""The asset graph: sources -> series, news -> windows -> models -> evaluation, ablation, leakage -> report.

An asset reads, calls :mod:`compevo_core`, writes and reports; it holds no maths.
"""
