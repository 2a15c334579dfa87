"""Keys and values kept for later calls.

prepare      `prepare_keys`: keys projected once
make         `make_cache`: a cache that grows
cache        `Cache`: `append`, `attend`, `reorder`
positions    positions of cached tokens; masks and biases by buffer row
checks       what a cache and its calls must satisfy
"""
