"""Weather: observed days of the benchmark, and forecasts as single runs of a model."""
