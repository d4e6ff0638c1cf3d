"""Rows and run folders to tables, plots and one static page.

What belongs here: reading what evaluation and training wrote, and showing it.
What does not: any computation of a metric, a forecast or a weight. If a number is missing here, it is missing upstream.
"""
