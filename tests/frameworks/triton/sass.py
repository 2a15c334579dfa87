"""Helpers compile kernels without a GPU; for NVIDIA's they count registers and instructions."""

from __future__ import annotations

import heapq
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.experimental.gluon._runtime import GluonASTSource

BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
NAMES = {
    torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16",
    torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8", torch.bool: "i1",
}  # fmt: skip
LINE = re.compile(r"\s*/\*([0-9a-f]+)\*/\s+(@!?U?P\w+\s+)?([A-Z0-9_]+)(\S*)\s*(.*)")
JUMPS = "BRA", "CALL", "EXIT", "RET", "BRX"


@dataclass(frozen=True)
class Instruction:
    opcode: str
    conditional: bool
    target: str | None


@dataclass
class Compiled:
    """One kernel for one chip: its resources and its code."""

    registers: int
    stack: int
    shared: int
    cubin: bytes

    @cached_property
    def blocks(self) -> dict[str, list[Instruction]]:
        """Return blocks of SASS by label, in order. Slow disassembly waits for the first use."""
        return blocks_of(tool("nvdisasm", self.cubin, "-c"))

    @cached_property
    def next(self) -> dict[str, list[str]]:
        """Return the possible successors of each block."""
        names = list(self.blocks)
        found: dict[str, list[str]] = {}
        for name, following in zip(names, [*names[1:], None], strict=True):
            last = self.blocks[name][-1]
            to = [x.target for x in self.blocks[name] if x.target]
            ends = last.opcode in JUMPS and not last.conditional
            found[name] = to if ends or following is None else [*to, following]
        return found

    def path(self, start: str, end: str, without: frozenset[str] = frozenset()) -> list[str] | None:
        """Return the path between two blocks with the fewest instructions, or None."""
        queue, seen = [(0, start, [start])], set()
        while queue:
            length, at, way = heapq.heappop(queue)
            if at == end and len(way) > (start == end):
                return way
            if at in seen and at != start:
                continue
            seen.add(at)
            for to in self.next[at]:
                if to in self.blocks and to not in without:
                    heapq.heappush(queue, (length + len(self.blocks[to]), to, [*way, to]))
        return None

    @cached_property
    def innermost(self) -> list[str]:
        """Return the blocks that repeat themselves."""
        return [name for name in self.blocks if name in self.next[name]]

    def count(self, names: list[str]) -> Counter[str]:
        return Counter(x.opcode for name in names for x in self.blocks[name])

    def around(self, loop: str) -> list[str]:
        """Return the blocks, without `loop`, of the shortest round of the loop around `loop`.

        The round passes no other innermost loop.
        """
        others = frozenset(self.innermost) - {loop}
        away = [x for x in self.next[loop] if x != loop]
        ways = [self.path(x, loop, others) for x in away if x not in others]
        best = min((w for w in ways if w), key=lambda w: sum(len(self.blocks[x]) for x in w))
        return best[:-1]


def signature(x: Any, path: tuple[int, ...], constants: dict, attributes: dict) -> Any:
    """Return the compiler's type of an argument; note constants and divisibility."""
    if isinstance(x, tuple):
        types = [signature(y, (*path, i), constants, attributes) for i, y in enumerate(x)]
        return type(x)(*types) if hasattr(x, "_fields") else tuple(types)
    if x is None or (isinstance(x, int) and x == 1):
        constants[path] = x
        return "constexpr"
    if isinstance(x, Tensor):
        attributes[path] = [["tt.divisibility", 16]]
        return "*" + NAMES[x.dtype]
    if isinstance(x, int):
        if x % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return "i32" if -(2**31) <= x < 2**31 else "i64"
    return "fp32"


def compile(
    kernel: Any, capability: int, args: tuple[Any, ...], warps: int = 4, **options: Any
) -> Compiled:
    """Compile `kernel[...](*args, **options)` for a chip of NVIDIA."""
    made = compile_for(GPUTarget("cuda", capability, 32), kernel, args, warps, **options)
    return read(made.asm["cubin"], made.metadata.shared)


def compile_for(
    target: GPUTarget, kernel: Any, args: tuple[Any, ...], warps: int, **options: Any
) -> Any:
    """Compile `kernel[...](*args, **options)` for a target; return Triton's compiled kernel."""
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    names = kernel.arg_names
    types = {
        name: signature(x, (i,), constants, attributes)
        for i, (name, x) in enumerate(zip(names, args, strict=False))
    }
    settings = {"num_warps": warps, "enable_fp_fusion": True}
    for name, x in options.items():
        if name in names:
            types[name] = "constexpr"
            constants[(names.index(name),)] = x
        else:
            settings[name] = x
    source_of = GluonASTSource if kernel.is_gluon() else ASTSource
    source = source_of(kernel, types, constants, attributes)
    known = make_backend(target).parse_options(settings).__dict__
    assert settings.keys() <= known.keys(), "a launch takes no other options"
    return triton.compile(source, target=target, options=settings)


def read(cubin: bytes, shared: int) -> Compiled:
    usage = tool("cuobjdump", cubin, "--dump-resource-usage")
    number = lambda what: int(re.search(rf"{what}:(\d+)", usage).group(1))  # noqa: E731
    return Compiled(number("REG"), number("STACK"), shared, cubin)


def tool(name: str, cubin: bytes, *flags: str) -> str:
    """Return the output of one of Triton's tools for a kernel."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        run = [str(BIN / name), *flags, str(path)]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout


def blocks_of(text: str) -> dict[str, list[Instruction]]:
    blocks: dict[str, list[Instruction]] = {"start": []}
    name = "start"
    for line in text.splitlines():
        label, code = re.match(r"\s*(\.L_\S+):", line), LINE.match(line)
        if label:
            name = label.group(1)
            blocks[name] = []
        elif code:
            _, predicate, opcode, _, rest = code.groups()
            target = re.search(r"`\((\.L_\w+)\)", rest) if opcode in JUMPS else None
            last = blocks[name][-1].opcode if blocks[name] else None
            if last in JUMPS and last != "CALL":  # an exit of a loop, before its jump back
                name += "'"
                blocks[name] = []
            blocks[name].append(
                Instruction(opcode, predicate is not None, target and target.group(1))
            )
    return {k: v for k, v in blocks.items() if v}
