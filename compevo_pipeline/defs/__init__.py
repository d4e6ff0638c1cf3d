"""Dagster definitions: assets, checks, jobs, schedules, sensors, resources."""
