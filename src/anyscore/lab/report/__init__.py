"""A comparison, or proofs, as one HTML page, and as files for other programs."""
