"""The laboratory: which scoring function suits your data."""
