"""Keys and values kept for later calls.

prepare      `prepare_keys`: keys projected once
make         `make_cache`: a cache that grows
cache        `Cache`: `append`, `attend`, `reorder`
positions    where tokens stand in the buffers of a cache, masks and biases by their rows
checks       what a cache and its calls must satisfy
"""
