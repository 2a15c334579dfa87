"""One model trained with one score."""
