"""Judges of logic updates and their transport to an endpoint."""
