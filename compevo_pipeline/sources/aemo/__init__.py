"""AEMO, the Australian Energy Market Operator: prices, demand, forecasts."""
