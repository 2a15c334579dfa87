"""How long a test waits before it fails: tests guard against hanging, and measure no time."""

HANG = 1200  # seconds
