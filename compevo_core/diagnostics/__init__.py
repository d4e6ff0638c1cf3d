"""Measures that observe a training and change nothing in it (paper, appendix B)."""
