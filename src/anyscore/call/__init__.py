"""One call of attention as plain data, and the interface of its implementations.

    task         the arguments, `Call` and `Options`; the `Task` they are lowered to
    lowering     `prepare` lowers a call to its task, `lower_mask` a mask
    prepared     keys projected once for many calls
    shards       the chunks of a sequence on several ranks, and the interface of an exchange
    autocast     the casts of a framework's automatic mixed precision
    operands     the record that every kernel takes: `Operands`, `Settings`, `Results`
    backend      the interface of a framework: `Backend`, an `Adapter` for other tensors, the
                 `Buffers` of its caches; which `Implementation` runs a task

Imports `ops`, `score`, `masks` and `modifiers`. Start with `task`.
"""
