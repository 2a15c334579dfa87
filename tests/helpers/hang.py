"""The time after which a process counts as hanging; no test uses a shorter one."""

HANG = 1200  # seconds
