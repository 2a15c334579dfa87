"""A dot product, the reason to give other scores up, by the best of what others have for it.

The product is scaled by 1/√H in all.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from anyscore.lab.bench.rivals import Call, Unavailable, Variant
from anyscore.lab.bench.variants import Attend, dot, dot_call, products
from benchmarks import packed
from benchmarks.variants_jax import called, load
from benchmarks.work import Work


def in_torch(work: Work) -> list[Variant]:
    """List PyTorch's fused attention, and the products with a softmax between them."""
    if isinstance(work, packed.PackedWork):
        return packed.dot(work)
    if work.task == "cache":
        fused = torch.nn.functional.scaled_dot_product_attention
        how = "scaled_dot_product_attention, 4-D, with a preallocated cache"
        return [Variant(how, partial(_step, fused, work, True))]
    return [*_kernels(work), *dot(work)] if work.query.is_cuda else dot(work)


def _kernels(work: Work) -> list[Variant]:
    """List PyTorch's fused attention by single kernels; its own choice is in `dot`."""
    fused: Attend = torch.nn.functional.scaled_dot_product_attention

    def attend(backend: SDPBackend, *tensors: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return fused(*tensors)

    return [
        Variant(
            f"scaled_dot_product_attention, 4-D, {name}",
            partial(dot_call, partial(attend, backend), work, heads=True),
        )
        for name, backend in (
            ("FlashAttention", SDPBackend.FLASH_ATTENTION),
            ("cuDNN", SDPBackend.CUDNN_ATTENTION),
        )
    ]


def products_of_cache(work: Work) -> list[Variant]:
    """List a step by two products with a softmax between them."""
    how = "bmm, softmax, bmm, with a preallocated cache"
    return [Variant(how, partial(_step, products, work))]


def _step(attend: Attend, work: Work, heads: bool = False) -> Call:
    """Make a call that writes the last token to its place, and attends to the tokens until it."""
    batch, _, tokens, *widths = work.shape
    rooms = [work.key.new_zeros(batch, tokens + 600, width) for width in widths]
    rows = work.key[:, -1:].contiguous(), work.value[:, -1:].contiguous()
    for room, x in zip(rooms, (work.key, work.value), strict=True):
        room[:, :tokens] = x

    def call() -> Sequence[Tensor]:
        for room, row in zip(rooms, rows, strict=True):
            room[:, tokens - 1 : tokens] = row
        tensors = work.query, *(room[:, :tokens] for room in rooms)
        if heads:
            return (attend(*(x[:, None] for x in tensors))[:, 0],)
        return (attend(*tensors),)

    return call


def compiled(work: Work) -> list[Variant]:
    """List the products compiled by `torch.compile`, and FlexAttention."""
    flex = importlib.import_module("torch.nn.attention.flex_attention").flex_attention

    def build(attend: Attend, heads: bool = False, **options: Any) -> Call:
        attend = torch.compile(attend, fullgraph=True, dynamic=False, **options)
        return dot_call(attend, work, heads)

    tuned = partial(build, products, mode="max-autotune-no-cudagraphs")
    return [
        Variant("torch.compile of bmm, softmax, bmm, max-autotune", tuned, compiles=True),
        Variant("flex_attention, compiled", partial(build, flex, heads=True), compiles=True),
    ]


def in_jax(work: Work) -> list[Variant]:
    """List jax.nn.dot_product_attention, and the products, under jax.jit."""
    jax = load("jax")

    def products(q: Any, k: Any, v: Any, w: Any) -> Any:
        return jax.nn.softmax(q @ k.mT * w, -1) @ v

    def own(q: Any, k: Any, v: Any, w: Any) -> Any:
        return jax.nn.dot_product_attention(*(x[:, :, None] for x in (q, k, v)))[:, :, 0]

    return [
        Variant(f"jax.jit of {how}", partial(called, attend, work), compiles=True)
        for how, attend in (("jax.nn.dot_product_attention", own), ("the products", products))
    ]


def in_onnxruntime(work: Work) -> list[Variant]:
    """List ONNX Runtime's MultiHeadAttention of one head, its inputs and output bound."""
    if work.training:
        raise Unavailable("computes no gradients")
    if work.dtype != "float32":
        raise Unavailable(f"computes no {work.dtype} on a CPU")
    onnx, runtime = (importlib.import_module(name) for name in ("onnx", "onnxruntime"))
    make, names = onnx.helper, ("query", "key", "value")
    shapes = {name: list(getattr(work, name).shape) for name in names}
    shapes["output"] = list(work.upstream.shape)
    told = {
        name: make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    node = make.make_node(
        "MultiHeadAttention", names, ["output"], domain="com.microsoft", num_heads=1
    )
    graph = make.make_graph([node], "dot", [told[name] for name in names], [told["output"]])
    domains = [make.make_opsetid("", 17), make.make_opsetid("com.microsoft", 1)]
    model = make.make_model(graph, opset_imports=domains, ir_version=8)

    def build() -> Call:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        # Its threads would go on spinning into the turns of others.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = runtime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        bound, output = session.io_binding(), work.upstream.numpy().copy()
        for name in names:
            bound.bind_cpu_input(name, getattr(work, name).numpy())
        held = runtime.OrtValue.ortvalue_from_numpy(output)
        bound.bind_ortvalue_output("output", held)

        def call() -> tuple[Any]:
            session.run_with_iobinding(bound)
            return (held.numpy(),)

        return call

    return [Variant("onnxruntime, MultiHeadAttention, inputs and output bound", build)]
