"""What each framework adds to the shared path: generators, autocasting, its own fused attention."""
