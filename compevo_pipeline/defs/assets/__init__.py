"""The asset graph, a module for each stage of it.

Series and news -> windows -> models -> evaluation, forecasts -> report. Asset modules
depend on each other by key (``defs.asset_keys``), never by import, except for the run configuration
of a training. An asset reads, calls :mod:`compevo_core`, writes and reports; it holds no maths.
"""
