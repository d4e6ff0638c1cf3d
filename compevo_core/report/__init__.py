"""Result rows and run folders as tables, plots and one static page.

What belongs here: reading what evaluation and training wrote, and showing it. What does not:
computing a metric, a forecast or a weight (``evaluation``, ``training``, ``paper``). A number that
is missing on the page is missing in those files.
"""
