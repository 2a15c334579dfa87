"""Time, memory and growth of attention, beside what one would use instead."""
