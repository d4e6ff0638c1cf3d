"""Issued forecasts as tables, charts and one static page.

What belongs here: reading what was issued and scored, and showing it. What does not: computing a
metric, a forecast or a weight (``evaluation``, ``training``). A number that is missing on the page
is missing in those files.
"""
