"""Scopes, scores, result rows, paired tests and leakage detectors."""
