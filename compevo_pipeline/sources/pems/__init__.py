"""Caltrans PeMS: station-hour traffic, and the 862-sensor benchmark table."""
