"""Agents of the method (paper 4): prompts, forecasts, logics, selection, and the loss terms."""
