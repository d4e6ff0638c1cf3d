"""The asset graph, one module for each step of it.

Series and news -> windows -> models -> evaluation, ablation, leakage -> report. Asset modules do
not import each other: what they share is in ``definition``, ``metadata``, ``ingest`` and
``training_config``, and they depend on each other by key (``asset_keys``). An asset reads, calls
:mod:`compevo_core`, writes and reports; it holds no maths.
"""
