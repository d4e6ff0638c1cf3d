"""The issued forecast: the forecaster, its daily state, what is issued and why."""
