"""What a comparison says."""
