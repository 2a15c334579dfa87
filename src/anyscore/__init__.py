"""Attention with any scoring function."""
