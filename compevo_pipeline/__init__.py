"""The Dagster project around :mod:`compevo_core`: sources, storage, assets, checks, schedules.

An asset reads, calls core, writes and reports; it holds no maths.
"""
