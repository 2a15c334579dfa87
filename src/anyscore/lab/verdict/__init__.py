"""The verdict of a comparison: statistics, judgement, sentences."""
