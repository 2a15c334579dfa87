"""The time after which a process counts as hanging: no test measures a shorter one."""

HANG = 1200  # seconds
