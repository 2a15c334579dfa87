"""The functions that users call: each checks, lowers, chooses an implementation and runs it.

    attention       `attention` and `plan`
    scores          `scores`, `log_weights`, `log_sum_exp`
    from_scores     normalizers without a kernel, over scores from a kernel
    layouts         `Contiguous`, `Zigzag` and `Uneven`: which tokens each rank has
    sharded         calls across ranks: their check, and the choice of a scheme
    cache/          `prepare_keys`, `make_cache` and `Cache`

Imports `backends` and the layers below. Start with `attention`.
"""
