"""Instruments that watch a training and change nothing in it (paper, appendix B)."""
