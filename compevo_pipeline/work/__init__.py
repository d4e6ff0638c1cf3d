"""Use cases as plain functions: prepare, forecast, score, backfill, benchmark."""
