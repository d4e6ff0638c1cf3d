"""One module a publisher: where its bytes come from (three modes) and one parser for all of them.

What belongs here: fetching, unpacking, decoding, parsing into the frames of :mod:`compevo_core`.
What does not: storage, gap filling, scaling, windows. A parser flags what it sees and changes no value.
"""
