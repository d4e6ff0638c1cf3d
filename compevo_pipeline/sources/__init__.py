"""One module or folder a publisher: where its bytes come from, by mode, and one parser for all.

What belongs here: reading, unpacking, decoding, parsing into the frames of
:mod:`compevo_core.data`. What does not: storage, gap filling, scaling, windows. A parser flags what
it meets and changes no value. It raises ``SourceTransient`` for a file that is empty, cut or
damaged, and ``SchemaDrift``, with place and remedy, for one that breaks its format.
"""
