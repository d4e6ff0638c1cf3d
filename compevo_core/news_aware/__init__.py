"""Forecasters of the paper's comparison that read news or texts (appendix, "News-aware LLM").

What belongs here: one module a method, behind ``fit`` on train and validation and ``predict`` of
views, and what several of them read of the news. What does not: networks that read numbers alone
(``networks``), populations of agents (``agents``, ``training``), scoring (``evaluation``).

Every article was available before its view was made; :mod:`compevo_core.news_aware.known_news`
refuses any other.
"""
