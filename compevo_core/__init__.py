"""CompEvo: a competing population of LoRA agents for news-driven forecasting.

A library: no dagster, no duckdb, no network.
"""

__version__ = "0.1.0"
