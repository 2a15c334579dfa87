"""Pages of one file: the look that they share, and the page of recorded weights."""
