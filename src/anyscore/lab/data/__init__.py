"""Sequence pairs: read, split, tokenised, numbered."""
