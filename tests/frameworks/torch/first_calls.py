"""Each call is the first of a process, a fork of a process that has imported PyTorch alone.

    python first_calls.py "attention: compiled" …

A call runs in a named way, then eagerly, then in the named way again. All results agree, and
nothing is compiled a second time. The script prints problems as JSON, by the names of cases.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._dynamo
import torch.export
from torch import Tensor, nn

Call = Callable[[Tensor], Any]


def function_of(name: str) -> Call:
    """Import the modules that a call needs, and no more; return the call."""
    import anyscore
    from anyscore import attention

    if name == "anyscore.torch imported after anyscore":
        import anyscore.torch

    a = torch.linspace(-1, 1, 8)
    calls: dict[str, Call] = {
        "attention": lambda x: attention(x, x, x),
        "anyscore.torch imported after anyscore": lambda x: attention(x, x, x),
        "a score": lambda x: attention(x, x, x, score=anyscore.Laplace()),
        "a callable": lambda x: attention(x, x, x, score=lambda q, k: q @ k.mT),
        "lengths": lambda x: attention(x, x, x, valid_lens=torch.tensor([[5], [2]])),
        "a mask": lambda x: attention(x, x, x, mask=anyscore.Causal()),
        "weights": lambda x: tuple(attention(x, x, x, return_weights=True, return_lse=True)),
        "options": lambda x: attention(
            x, x, x, bias=anyscore.Relative(torch.ones(2, 3)), softcap=2.0, sink=0.5
        ),
        "entmax15": lambda x: attention(x, x, x, normalizer="entmax15"),
        "sigmoid": lambda x: attention(x, x, x, normalizer=anyscore.Sigmoid(0.3)),
        "the reference": lambda x: attention(x, x, x, impl="reference"),
        "scores": lambda x: anyscore.scores(x, x),
        "log_weights": lambda x: anyscore.log_weights(x, x),
        "log_sum_exp": lambda x: anyscore.log_sum_exp(x, x),
        "prepared keys": lambda x: attention(
            x,
            anyscore.prepare_keys(x, score=anyscore.Additive(None, None, a)),
            x,
            score=anyscore.Additive(None, None, a),
        ),
        "a cache": _steps,
    }
    if name in calls:
        return calls[name]
    import anyscore.torch as ours

    torch.manual_seed(0)
    offsets = torch.tensor([0, 2, 5])
    layers: dict[str, Call] = {
        "Attention": _thrice(ours.Attention("additive", hidden=6, d_q=8, d_k=8)),
        "Attention of widths not known": _thrice(ours.Attention("scaled_dot")),
        "MultiHeadAttention": _of_one(ours.MultiHeadAttention(8, 2, score="gatv2")),
        "varlen_attention": lambda x: ours.varlen_attention(
            *[x[0, 0, :, None]] * 3, offsets, offsets
        ),
    }
    return layers[name]


def _thrice(layer: Any) -> Call:
    return _Module(lambda x: layer(x, x, x), layer)


def _of_one(layer: Any) -> Call:
    return _Module(lambda x: layer(x[0]), layer)


def _steps(x: Tensor) -> Tensor:
    from anyscore import make_cache

    token = x[..., :1, :]
    cache = make_cache(x, x, capacity=6).append(token, token)
    output: Tensor = cache.attend(token)
    return output


class _Module(nn.Module):
    def __init__(self, call: Call, layer: nn.Module | None = None) -> None:
        super().__init__()
        self.call, self.layer = call, layer

    def forward(self, x: Tensor) -> Any:
        return self.call(x)


def _compiled(**options: Any) -> Callable[[Call], Call]:
    return lambda f: torch.compile(f, backend="aot_eager", **options)


def _exported(strict: bool) -> Callable[[Call], Call]:
    def way(f: Call) -> Call:
        module = f if isinstance(f, nn.Module) else _Module(f)
        return lambda x: torch.export.export(module, (x,), strict=strict).module()(x)

    return way


def _in_a_thread(f: Call) -> Call:
    def run(x: Tensor) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(f(x)))
        thread.start()
        thread.join()
        return found[0]

    return run


def _in_a_child(f: Call) -> Call:
    def run(x: Tensor) -> Any:
        f(x)
        wrong = in_a_child(lambda: torch.testing.assert_close(f(x), f(x), rtol=0, atol=0))
        assert wrong is None, wrong
        return f(x)

    return run


WAYS: dict[str, Callable[[Call], Call]] = {
    "compiled": _compiled(),
    "compiled whole": _compiled(fullgraph=True),
    "compiled for any size": _compiled(fullgraph=True, dynamic=True),
    "exported": _exported(strict=False),
    "exported strictly": _exported(strict=True),
    "traced": lambda f: lambda x: torch.jit.trace(f, x)(x),
    "mapped": torch.vmap,
    "differentiated": lambda f: torch.func.grad(lambda x: f(x).square().sum()),
    "in forward mode": lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),)),
    "compiled in inference": lambda f: torch.inference_mode()(_compiled()(f)),
    "in a thread": _in_a_thread,
    "in a child": _in_a_child,
    "compiled in a thread": lambda f: _in_a_thread(_compiled()(f)),
}
EVERYWHERE = "compiled whole", "exported strictly"
CALLS = (
    "anyscore.torch imported after anyscore",
    "a score",
    "a callable",
    "lengths",
    "a mask",
    "weights",
    "options",
    "entmax15",
    "sigmoid",
    "the reference",
    "scores",
    "log_weights",
    "log_sum_exp",
    "prepared keys",
    "Attention",
    "MultiHeadAttention",
    "varlen_attention",
)
_WHOLE = {"compiled whole", "compiled for any size", "exported strictly"}
REFUSED = {
    "a cache": {"mapped", "differentiated", *_WHOLE},  # a call makes the cache and writes to it
    "Attention of widths not known": _WHOLE,  # a call makes the parameters
    "lengths": {"traced"},  # PyTorch warns of numbers that a trace reads
    "options": {"traced"},
    "varlen_attention": {"mapped"},
    "weights": {"differentiated"},  # three results
}
"""Ways in which a call raises an error."""
FEW = "attention: compiled", "attention: exported strictly"
CASES = (
    *(f"attention: {way}" for way in WAYS),
    *(f"{call}: compiled whole" for call in CALLS),
    *(f"{call}: exported strictly" for call in ("a mask", "weights", "MultiHeadAttention")),
    *(f"a cache: {way}" for way in ("compiled", "exported")),
    "Attention of widths not known: compiled",
)


def first(cases: str) -> None:
    """Make the calls of one case, or of several cases with "; " between them, in order.

    Raise an error if results differ.
    """
    assert not any(name.partition(".")[0] == "anyscore" for name in sys.modules)
    for case in cases.split("; "):
        _make(case)


def _make(case: str) -> None:
    name, _, way = case.partition(": ")
    call = function_of(name)
    x = torch.randn(2, 2, 5, 8)
    again = WAYS[way](call)
    found = again(x)
    one_by_one = way not in ("mapped", "differentiated", "in forward mode")
    expected = call(x) if one_by_one else WAYS[way](call)(x)
    torch.testing.assert_close(found, expected)
    import anyscore

    anyscore.attention(*[x.numpy()] * 3)  # in another framework
    compiled_once = "compiled" in way and name != "Attention of widths not known"
    with torch.compiler.set_stance("fail_on_recompile" if compiled_once else "default"):
        torch.testing.assert_close(again(x), expected)


def in_a_child(work: Callable[[], None]) -> str | None:
    """Do work in a forked child; return the child's problem, None if there was none."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        os.close(reads)
        problem = ""
        try:
            work()
        except BaseException:
            problem = traceback.format_exc()
        with os.fdopen(writes, "w") as pipe:
            pipe.write(problem)
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        problem = pipe.read()
    _, status = os.waitpid(child, 0)
    return problem or (f"ended by {status}" if status else None)


def main(cases: Sequence[str]) -> None:
    """Print the problems of cases."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    torch.set_num_threads(1)
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(2))  # all children need this
    print(json.dumps({case: in_a_child(lambda case=case: first(case)) for case in cases}))


if __name__ == "__main__":
    main(sys.argv[1:] or CASES)
