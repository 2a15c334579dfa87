"""An emulator runs NVIDIA's PTX on tensors of the CPU, all threads at once, and checks addresses.

Compiled kernels are run without a GPU: layouts, shared memory, copies and inline assembly too.
Instructions that the emulator lacks raise NotImplementedError.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from anyscore.kernels.triton import call as calls
from anyscore.kernels.triton import targets
from frameworks.triton.sass import compile_for

Array = NDArray[Any]
Run = Callable[["Programs"], None]

WARP = 32
THREADS = 4096
"""Threads that run together: more take longer to leave the processor's cache."""
WAITS, ENDED = 1 << 20, 1 << 30
"""Added to the block of a thread at a barrier; the block of a thread that has returned."""


@contextmanager
def emulated(chip: int = 80) -> Iterator[None]:
    """Compile every launch for a chip, and run its PTX on the tensors of the CPU."""

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        options.pop("enable_fp_fusion", None)
        warps = options.pop("num_warps", 4)
        made = compile_for(GPUTarget("cuda", chip, 32), self, args, warps, **options)
        launch(made.asm["ptx"], grid, args, made.metadata.shared)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        patch.setattr(calls, "target_of", lambda x: targets.NVIDIA)
        yield


def launch(ptx: str, grid: tuple[int, ...], args: Iterable[Any], shared: int) -> None:
    """Run a kernel on its arguments; constants among these are no parameters of the kernel."""
    leaves = [x for x in leaves_of(args) if not (x is None or (isinstance(x, int) and x == 1))]
    tensors = [x for x in leaves if isinstance(x, Tensor)]
    numbers = [x.data_ptr() if isinstance(x, Tensor) else x for x in leaves]
    kernel = parsed(ptx)
    memory = Global([x.untyped_storage() for x in tensors])
    everyone = itertools.product(*(range(n) for n in (*grid, 1, 1)[2::-1]))  # x is the fastest
    together = max(1, THREADS // kernel.threads)
    with np.errstate(all="ignore"):
        for some in iter(lambda: list(itertools.islice(everyone, together)), []):
            Programs(kernel, some, grid, numbers, memory, shared).run()


def leaves_of(args: Iterable[Any]) -> Iterator[Any]:
    for x in args:
        yield from leaves_of(x) if isinstance(x, tuple) else (x,)


class Global:
    """The storages of tensors, at their addresses."""

    def __init__(self, storages: list[Any]) -> None:
        spans = sorted({(x.data_ptr(), x.data_ptr() + x.nbytes()) for x in storages if x.nbytes()})
        self.starts, self.ends = np.array(spans or [(0, 0)], np.int64).T
        self.origin = int(self.starts[0]) & -16
        length = max(16, int(self.ends.max()) - self.origin)
        span = (ctypes.c_uint8 * length).from_address(self.origin or id(self))
        self.bytes = np.frombuffer(span, np.uint8)

    def place(self, address: Array, owner: Array, size: int) -> tuple[Array, Array]:
        """Return (offsets in bytes, which are valid)."""
        i = np.searchsorted(self.starts, address, "right") - 1
        return address - self.origin, (i >= 0) & (address + size <= self.ends[i])


class Private:
    """Memory of each program, or of each thread: as many bytes for each owner, NaN at first."""

    def __init__(self, owners: int, size: int) -> None:
        self.size, self.stride = size, -(-size // 16) * 16
        self.bytes = np.full(owners * self.stride + 16, 0xFF, np.uint8)

    def place(self, address: Array, owner: Array, size: int) -> tuple[Array, Array]:
        return address + owner * self.stride, (address >= 0) & (address + size <= self.size)


class Programs:
    """Programs of a grid: the registers of all their threads, and their memory."""

    def __init__(
        self, kernel: Kernel, ids: list[tuple[int, ...]], grid: tuple[int, ...],
        args: list[Any], memory: Global, shared: int,
    ) -> None:  # fmt: skip
        threads = kernel.threads
        self.kernel, self.count = kernel, len(ids) * threads
        self.program = np.repeat(np.arange(len(ids)), threads)
        thread = np.tile(np.arange(threads), len(ids))
        self.lane = thread % WARP
        self.memory = {
            "global": memory,
            "shared": Private(len(ids), shared),
            "local": Private(self.count, kernel.local),
        }
        self.owner = {"global": thread, "shared": self.program, "local": np.arange(self.count)}
        self.block = np.zeros(self.count, np.int64)
        self.active: Array | None = None  # all threads
        self.committed = np.zeros(self.count, np.int64)
        self.copies: list[tuple[Array, ...]] = []
        values: dict[str, Any] = {f"{kernel.name}_param_{i}": x for i, x in enumerate(args)}
        values |= dict.fromkeys(kernel.symbols, 0)
        values |= {"%tid.x": thread, "%ntid.x": threads, "%laneid": self.lane}
        values |= {"%tid.y": 0, "%tid.z": 0, "%ntid.y": 1, "%ntid.z": 1}
        for axis, at, n in zip("zyx", np.array(ids).T, (*grid, 1, 1)[2::-1], strict=True):
            values |= {f"%ctaid.{axis}": at[self.program], f"%nctaid.{axis}": n}
        self.registers = [
            self.first(values.get(name, immediate(name)), kind)
            for (name, _), kind in zip(kernel.slots, kernel.kinds, strict=True)
        ]

    def first(self, value: Any, kind: np.dtype[Any]) -> Array:
        """Return a register's first value; one that is never written has all bits set."""
        if isinstance(value, float):
            value = int(np.array(value, f"f{kind.itemsize}").view(kind))
        if value is None:
            value = -1
        if isinstance(value, int):
            bits = value != 0 if kind.kind == "b" else value & ((1 << 8 * kind.itemsize) - 1)
            return np.full(self.count, bits, kind)
        return np.asarray(value).astype(kind)

    def run(self) -> None:
        while (at := int(self.block.min())) < ENDED:
            if at >= WAITS:  # each program waits, or has ended: barriers open
                self.block[self.block < ENDED] -= WAITS
                continue
            here = self.block == at
            self.active = None if here.all() else here
            self.at = at
            self.go(here, at + 1)
            for line, op in self.kernel.blocks[at]:
                try:
                    op(self)
                except AssertionError as error:
                    raise AssertionError(f"{self.kernel.name}, {line}: {error}") from None

    def go(self, where: Array | None, to: int) -> None:
        self.block = np.where(True if where is None else where, to, self.block)

    def commit(self, where: Array | None) -> None:
        self.committed = self.committed + (1 if where is None else where)

    def land(self, where: Array | None, pending: int) -> None:
        """Finish the copies of some threads, without their latest `pending` groups."""
        copies, self.copies = self.copies, []
        for threads, group, units, index, data in copies:
            due = group < self.committed[threads] - pending
            due = due if where is None else due & where[threads]
            units[index[due]] = data[due]
            if not due.all():
                left = ~due
                self.copies.append((threads[left], group[left], units, index[left], data[left]))

    def those(self, guard: Guard | None) -> Array | None:
        """Return the threads that execute an instruction; None means all."""
        if guard is None:
            return self.active
        found = self.registers[guard.slot] != guard.negated
        found = found if self.active is None else found & self.active
        return None if found.all() else found

    def write(self, slot: int, value: Array, where: Array | None) -> None:
        kind = self.kernel.kinds[slot]
        if value.dtype != kind:
            same = value.dtype.itemsize == kind.itemsize and kind.kind != "b"
            value = np.ascontiguousarray(value).view(kind) if same else value.astype(kind)
        if where is not None:
            value = np.where(where, value, self.registers[slot])
        self.registers[slot] = np.ascontiguousarray(value)

    def place(
        self, space: str, address: Array, size: int, unit: int, where: Array | None
    ) -> tuple[Array, Array]:
        """Return (memory of units, (threads, size / unit) indices of the threads' units)."""
        memory, owner = self.memory[space], self.owner[space]
        if where is not None:
            address, owner = address[where], owner[where]
        offset, valid = memory.place(address, owner, size)
        assert valid.all(), f"out of bounds of {space} memory, {(~valid).sum()} threads"
        assert not (address % size).any(), "a misaligned address"
        length = len(memory.bytes) // unit * unit
        units = memory.bytes[:length].view(f"u{unit}")
        return units, offset[:, None] // unit + np.arange(size // unit)

    def load(self, space: str, address: Array, size: int, unit: int, where: Array | None) -> Array:
        """Return (threads, size / unit) units."""
        units, index = self.place(space, address, size, unit, where)
        if where is None:
            return units[index]
        found = np.zeros((self.count, size // unit), units.dtype)
        found[where] = units[index]
        return found

    def whole_warps(
        self, guard: Guard | None, members: Callable[[Programs], Array] | None = None
    ) -> Array | None:
        """Return the threads that execute an instruction of whole warps."""
        where = self.those(guard)
        if members:
            found = members(self) if where is None else members(self)[where]
            assert (found == 0xFFFFFFFF).all(), "a part of a warp"
        if where is not None:
            warps = where.reshape(-1, WARP)
            assert (warps.all(1) == warps.any(1)).all(), "a warp has diverged"
        return where


@dataclass(frozen=True)
class Guard:
    slot: int
    negated: bool


@dataclass
class Kernel:
    """Parsed PTX. A block is a run of instructions with one entry; each knows its line."""

    name: str
    threads: int
    local: int = 0
    slots: dict[tuple[str, int], int] = field(default_factory=dict)  # of a name and its bytes
    kinds: list[np.dtype[Any]] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)  # bytes of declared registers; 0: bool
    blocks: list[list[tuple[str, Run]]] = field(default_factory=lambda: [[]])
    labels: dict[str, int] = field(default_factory=dict)
    symbols: list[str] = field(default_factory=list)  # the only names of shared and local memory

    def slot(self, name: str, size: int) -> int:
        """Return the register of a name or of a constant; constants have the width of a type."""
        found = self.widths.get(name, self.widths.get(name.rstrip("0123456789")))
        if found is None and immediate(name) is None and not SPECIAL.fullmatch(name):
            raise NotImplementedError(name)
        key = name, size if found is None else found
        if key not in self.slots:
            self.slots[key] = len(self.kinds)
            self.kinds.append(np.dtype(f"u{key[1]}") if key[1] else np.dtype(bool))
        return self.slots[key]


SPECIAL = re.compile(r"%(tid|ntid|ctaid|nctaid)\.[xyz]|%laneid|_")


def immediate(name: str) -> int | None:
    """Return the bits of a constant; None for other names."""
    if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", name):
        return int(name[2:], 16)
    return int(name.rstrip("U"), 0) if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", name) else None


@functools.cache
def parsed(ptx: str) -> Kernel:
    """Parse the only kernel of a module."""
    (name,) = re.findall(r"\.entry\s+(\w+)", ptx)
    (threads,) = re.findall(r"\.reqntid\s+(\d+)", ptx)
    kernel = Kernel(name, int(threads))
    head, _, body = ptx[ptx.index(".entry") :].partition("{")
    for kind, parameter in re.findall(r"\.param \.(\w+)(?: \.ptr[^,\n]*)? (\w+)(?=,|\s)", head):
        kernel.widths[parameter] = int(kind[1:]) // 8
    for symbol in re.findall(r"\.shared \.align \d+ \.b8 (\w+)\[\]", ptx):
        kernel.symbols.append(symbol)
        kernel.widths[symbol] = 4
    jumps = set(re.findall(r"\bbra(?:\.uni)?\s+([$\w]+)", body))
    at, rest = "", ""
    for line in re.split(r"\n\}", body)[0].splitlines():
        code, _, comment = line.partition("//")
        if code.strip().startswith(".loc"):
            at = comment.split("@")[0].strip()
            continue
        label = re.fullmatch(r"\s*([$\w]+):\s*", code)
        if label and label.group(1) not in jumps:
            continue
        if label:
            kernel.blocks.append([])
            kernel.labels[label.group(1)] = len(kernel.blocks) - 1
            continue
        *statements, rest = f"{rest} {code}".split(";")
        for statement in statements:
            text = " ".join(re.sub(r"^[\s{}]+", "", statement).split())
            if text.startswith("."):
                declare(kernel, text)
            elif text:
                kernel.blocks[-1].append((f"{at}: {text}", instruction(kernel, text)))
                if ENDS.match(text):
                    kernel.blocks.append([])
    return kernel


ENDS = re.compile(r"(@\S+ )?(bra|ret|exit|bar|barrier|trap)\b(?!\.warp)")


def declare(kernel: Kernel, text: str) -> None:
    if found := re.fullmatch(r"\.reg \.(\w+) (.*)", text):
        size = kind_of(found.group(1)).size
        for name in found.group(2).split(","):
            kernel.widths[re.sub(r"<\d+>", "", name.strip())] = size
    elif found := re.fullmatch(r"\.local \.align \d+ \.b8 (\w+)\[(\d+)\]", text):
        kernel.symbols.append(found.group(1))
        kernel.widths[found.group(1)], kernel.local = 8, int(found.group(2))
    elif not text.startswith(".pragma"):
        raise NotImplementedError(text)


@dataclass(frozen=True)
class Kind:
    """A type of operands: its bytes in a register (0: a predicate), and its values as an array."""

    name: str
    size: int
    decode: Callable[[Array], Array]
    encode: Callable[[Array], Array]

    @property
    def floats(self) -> bool:
        return "f" in self.name


@functools.cache
def kind_of(name: str) -> Kind:
    if name == "pred":
        return Kind(name, 0, lambda x: x, lambda x: x)
    found = re.fullmatch(r"(bf|f|s|u|b)(8|16|32|64)(x2)?", name)
    if not found or (found.group(3) and found.group(1) not in ("f", "bf")):
        raise NotImplementedError(name)
    letters, size = found.group(1), int(found.group(2)) // 8
    bits = np.dtype(f"u{size}")
    dtype = np.dtype(f"{ {'s': 'i', 'f': 'f'}.get(letters, 'u') }{size}".replace(" ", ""))
    in_register = size * (2 if found.group(3) else 1)

    def decode(x: Array) -> Array:
        """Two packed numbers are neighbours: their array is twice as long."""
        x = (x if x.itemsize == in_register else x.astype(f"u{in_register}")).view(bits)
        if letters == "bf":
            return (x.astype(np.uint32) << 16).view(np.float32)
        return x.view(dtype).astype(np.float32) if dtype == np.float16 else x.view(dtype)

    def encode(x: Array) -> Array:
        x = bf16_bits(x) if letters == "bf" else x.astype(dtype, copy=False)
        return x.view(f"u{in_register}") if found.group(3) else x

    return Kind(name, in_register, decode, encode)


def bf16_bits(x: Array) -> Array:
    """Return bfloat16 nearest to float32, ties to even; NaN is 0x7FFF."""
    bits = x.astype(np.float32, copy=False).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


class Instruction:
    """The parts of an instruction's text."""

    def __init__(self, kernel: Kernel, text: str) -> None:
        found = re.fullmatch(r"(?:@(!?)(\S+) )?([\w.:]+) ?(.*)", text)
        if not found:
            raise NotImplementedError(text)
        negated, guard, opcode, rest = found.groups()
        self.kernel = kernel
        self.guard = Guard(kernel.slot(guard, 0), negated == "!") if guard else None
        self.name, *self.modifiers = opcode.split(".")
        self.operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)

    def take(self, *names: str) -> bool:
        """Return whether the instruction has one of some modifiers, and forget these."""
        had = len(self.modifiers)
        self.modifiers = [x for x in self.modifiers if x not in names]
        return len(self.modifiers) < had

    def kind(self) -> Kind:
        """Return the last modifier, the type."""
        return kind_of(self.modifiers.pop())

    def slots(self, operand: str, size: int) -> list[int]:
        """Return the registers of a vector or of one operand."""
        return [self.kernel.slot(x, size) for x in re.findall(r"[^{},\s]+", operand)]

    def reader(self, operand: str, kind: Kind) -> Callable[[Programs], Array]:
        slot, decode = self.kernel.slot(operand.strip().lstrip("!"), kind.size), kind.decode
        if operand.startswith("!"):
            return lambda p: ~p.registers[slot]
        return lambda p: decode(p.registers[slot])

    def address(self, operand: str) -> Callable[[Programs], Array]:
        base, _, offset = operand.strip("[] ").partition("+")
        slot, more = self.kernel.slot(base.strip(), 8), int(offset or 0)
        return lambda p: p.registers[slot].astype(np.int64) + more

    def elementwise(self, kinds: list[Kind], result: Kind, function: Callable[..., Array]) -> Run:
        """Return the first operand := function(the others)."""
        if self.modifiers:
            raise NotImplementedError(self.modifiers)
        (slot,), guard = self.slots(self.operands[0], result.size), self.guard
        reads = [self.reader(*x) for x in zip(self.operands[1:], kinds, strict=True)]
        encode = result.encode
        return lambda p: p.write(slot, encode(function(*[r(p) for r in reads])), p.those(guard))


def instruction(kernel: Kernel, text: str) -> Run:
    """Return the effect of an instruction on programs."""
    try:
        x = Instruction(kernel, text)
        return BY_NAME.get(x.name, arithmetic)(x)
    except (NotImplementedError, KeyError, IndexError, ValueError) as error:
        raise NotImplementedError(f"{text} ({error})") from error


BY_NAME: dict[str, Callable[[Instruction], Run]] = {}
"""Instructions with a form of their own; others are arithmetic with operands of one type."""


def opcode(*names: str) -> Callable[[Callable[[Instruction], Run]], Callable[[Instruction], Run]]:
    return lambda function: [BY_NAME.__setitem__(x, function) for x in names] and function


def fused(a: Array, b: Array, c: Array) -> Array:
    """Return a · b + c, rounded twice at most: the product is exact, or has 64 bits for float64."""
    if a.dtype.kind != "f":
        return a * b + c
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    return (a.astype(wide) * b + c).astype(a.dtype)


def quotient(a: Array, b: Array) -> Array:
    """Return a / b; of integers towards zero."""
    return a / b if a.dtype.kind == "f" else a // b + ((a % b != 0) & ((a < 0) != (b < 0)))


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


PLAIN: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": fused, "mad": fused,
    "div": quotient, "rem": np.fmod, "min": np.fmin, "max": np.fmax, "neg": np.negative,
    "abs": np.abs, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "sqrt": np.sqrt, "rcp": np.reciprocal, "ex2": np.exp2, "lg2": np.log2,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "rsqrt": lambda x: 1 / np.sqrt(x),
    "copysign": lambda a, b: np.copysign(b, a), "cvta": np.copy,
}  # fmt: skip
"""Approximations are as exact as NumPy here."""


@opcode("mul", "mad")
def multiply(x: Instruction) -> Run:
    if not (x.take("wide") if "wide" in x.modifiers else "hi" in x.modifiers):
        return arithmetic(x)
    high, kind = x.take("hi"), x.kind()
    signed, bits = "i" if kind.name[0] == "s" else "u", 8 * kind.size
    wide = kind_of(f"{kind.name[0]}{2 * bits}") if not high else kind
    dtype: Any = object if bits == 64 else f"{signed}{2 * kind.size}"
    if high:
        return x.elementwise(
            [kind] * (len(x.operands) - 1),
            kind,
            lambda a, b, c=0: (a.astype(dtype) * b >> bits) + c,
        )
    kinds = [kind, kind, wide][: len(x.operands) - 1]
    return x.elementwise(kinds, wide, lambda a, b, c=0: a.astype(dtype) * b + c)


def arithmetic(x: Instruction) -> Run:
    function, kind = PLAIN[x.name], x.kind()
    if x.take("NaN"):
        function = {"min": np.minimum, "max": np.maximum}[x.name]
    x.take("rn", "approx", "full", "lo", "to", "global", "local")
    kinds = [kind] * (len(x.operands) - 1)
    if x.take("ftz") and kind.name == "f32":
        return x.elementwise(kinds, kind, lambda *y: flushed(function(*map(flushed, y))))
    return x.elementwise(kinds, kind, function)


@opcode("shl", "shr")
def shift(x: Instruction) -> Run:
    kind, function = x.kind(), np.left_shift if x.name == "shl" else np.right_shift
    most = np.uint32(8 * kind.size)
    return x.elementwise(
        [kind, kind_of("u32")], kind, lambda a, n: function(a, np.minimum(n, most).astype(a.dtype))
    )


@opcode("shf")
def funnel_shift(x: Instruction) -> Run:
    kind, left, wraps = x.kind(), x.take("l"), x.take("wrap")
    x.take("r", "clamp")

    def function(low: Array, high: Array, n: Array) -> Array:
        both = high.astype(np.uint64) << np.uint64(32) | low
        n = (n & 31 if wraps else np.minimum(n, 32)).astype(np.uint64)
        return (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)

    return x.elementwise([kind] * 3, kind, function)


@opcode("bfe")
def extract_bits(x: Instruction) -> Run:
    kind = x.kind()
    bits = 8 * kind.size

    def function(a: Array, at: Array, n: Array) -> Array:
        at, n = at & 255, n & 255
        above = bits - np.minimum(at + n, bits)
        found = a << above.astype(a.dtype) >> np.minimum(above + at, bits).astype(a.dtype)
        return np.where(n == 0, 0, found).astype(a.dtype)

    return x.elementwise([kind, kind_of("u32"), kind_of("u32")], kind, function)


@opcode("bfi")
def insert_bits(x: Instruction) -> Run:
    kind = x.kind()

    def function(a: Array, b: Array, at: Array, n: Array) -> Array:
        at, one = at.astype(a.dtype), np.ones((), a.dtype)
        mask = (one << n.astype(a.dtype)) - one << at
        return b & ~mask | a << at & mask

    return x.elementwise([kind, kind, kind_of("u32"), kind_of("u32")], kind, function)


@opcode("lop3")
def logic(x: Instruction) -> Run:
    kind, table = x.kind(), int(x.operands.pop(), 0)

    def function(*abc: Array) -> Array:
        terms = [
            functools.reduce(
                np.bitwise_and,
                [v if i >> j & 1 else ~v for j, v in zip((2, 1, 0), abc, strict=True)],
            )
            for i in range(8)
            if table >> i & 1
        ]
        return functools.reduce(np.bitwise_or, terms, np.zeros_like(abc[0]))

    return x.elementwise([kind] * 3, kind, function)


@opcode("prmt")
def permute_bytes(x: Instruction) -> Run:
    kind = x.kind()

    def function(a: Array, b: Array, choice: Array) -> Array:
        choices = choice[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15
        both = np.stack([a, b], -1).view(np.uint8)
        found = np.take_along_axis(both, (choices & 7).astype(np.int64), -1)
        return np.where(choices & 8, (found >> 7) * np.uint8(255), found).view(np.uint32)[:, 0]

    return x.elementwise([kind] * 3, kind, function)


ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@opcode("cvt")
def convert(x: Instruction) -> Run:
    if "tf32" in x.modifiers and x.take("rna"):  # ties away from zero, to 10 bits
        kind = kind_of("b32")
        x.take("tf32", "f32")
        return x.elementwise([kind], kind, lambda a: a + 0x1000 & 0xFFFFE000)
    source, target = x.kind(), x.kind()
    rounding = next((y for name, y in ROUNDINGS.items() if x.take(name)), None)
    flushes = x.take("ftz") and source.name == "f32"
    x.take("rn")

    def function(*values: Array) -> Array:  # the first of two is the upper half
        v = values[0] if len(values) == 1 else np.stack(values[::-1], -1).ravel()
        v = flushed(v) if flushes else v
        v = rounding(v) if rounding else v
        if source.floats and not target.floats:  # out of range is the nearest integer, NaN is 0
            range_ = np.iinfo(target.encode(np.zeros(1)).dtype)
            v = np.clip(v.astype(np.longdouble), range_.min, range_.max)
            return np.where(np.isnan(v), 0, v).astype(range_.dtype)
        return v

    return x.elementwise([source] * (len(x.operands) - 1), target, function)


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "ne": lambda a, b: (a < b) | (a > b), "nan": lambda a, b: (a != a) | (b != b),
    "num": lambda a, b: (a == a) & (b == b),
}  # fmt: skip
UNORDERED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
"""Comparisons that are true for NaN, by the ordered ones of which they are the contrary."""
COMBINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@opcode("setp")
def compare(x: Instruction) -> Run:
    kind, predicate = x.kind(), kind_of("pred")
    flush = flushed if x.take("ftz") else lambda y: y
    name, *combined = x.modifiers
    ordered, contrary = COMPARISONS[UNORDERED.get(name, name)], name in UNORDERED
    join = COMBINED[combined[0]] if combined else None
    x.modifiers = combined[1:]

    def function(a: Array, b: Array, *c: Array) -> Array:
        found = ordered(flush(a), flush(b)) != contrary
        return join(found, *c) if join else found

    kinds = [kind, kind, predicate]
    return x.elementwise(kinds[: 3 if join else 2], predicate, function)


@opcode("selp")
def select(x: Instruction) -> Run:
    kind = x.kind()
    return x.elementwise([kind, kind, kind_of("pred")], kind, lambda a, b, p: np.where(p, a, b))


@opcode("mov")
def move(x: Instruction) -> Run:
    kind, guard, (to, source) = x.kind(), x.guard, x.operands
    if "{" not in to + source:
        return x.elementwise([kind], kind, np.copy)
    size = kind.size // ((to + source).count(",") + 1)
    left, right = x.slots(to, size), x.slots(source, size)

    def run(p: Programs) -> None:
        where = p.those(guard)
        parts = np.stack([p.registers[i] for i in right], -1).view(f"u{kind.size // len(left)}")
        for i, slot in enumerate(left):
            p.write(slot, parts[:, i], where)

    return run


CACHING = (
    "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "nc", "noftz",
    "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::cache_hint", "L2::128B",
    "ca", "cg",
)  # fmt: skip
SPACES = "global", "shared", "local"


def space_of(x: Instruction) -> str:
    """Return the memory of an access; forget modifiers that change no result here."""
    x.take(*CACHING)
    found = [y for y in SPACES if x.take(y, f"{y}::cta")]
    x.take("v2", "v4")
    if x.modifiers or not found:
        raise NotImplementedError(x.modifiers)
    return found[-1]


@opcode("ld")
def load(x: Instruction) -> Run:
    kind, guard = x.kind(), x.guard
    if x.take("param"):
        x.operands[1] = x.operands[1].strip("[ ]")
        return x.elementwise([kind], kind, np.copy)
    space, slots, address = space_of(x), x.slots(x.operands[0], kind.size), x.address(x.operands[1])

    def run(p: Programs) -> None:
        where = p.those(guard)
        found = p.load(space, address(p), kind.size * len(slots), kind.size, where)
        for i, slot in enumerate(slots):
            p.write(slot, kind.decode(found[:, i]), where)

    return run


@opcode("st")
def store(x: Instruction) -> Run:
    kind, guard, space, address = x.kind(), x.guard, "", x.address(x.operands[0])
    space = space_of(x)
    reads = [x.reader(y, kind) for y in re.findall(r"[^{},\s]+", x.operands[1])]

    def run(p: Programs) -> None:
        where = p.those(guard)
        values = np.stack([r(p) for r in reads], -1)
        size = kind.size * len(reads)
        units, index = p.place(space, address(p), size, kind.size, where)
        units[index] = (values if where is None else values[where]).view(units.dtype)

    return run


@opcode("atom", "red")
def update(x: Instruction) -> Run:
    """Threads take turns."""
    kind, guard = x.kind(), x.guard
    name = x.modifiers.pop(-1 if x.modifiers[-1] != "noftz" else -2)
    space, change = space_of(x), PLAIN.get(name)
    to = x.slots(x.operands.pop(0), kind.size) if x.name == "atom" else []
    address, slots = x.address(x.operands[0]), [x.kernel.slot(y, kind.size) for y in x.operands[1:]]
    if change is None and name not in ("exch", "cas"):
        raise NotImplementedError(name)

    def run(p: Programs) -> None:
        where = p.those(guard)
        threads = np.arange(p.count) if where is None else np.flatnonzero(where)
        units, index = p.place(space, address(p), kind.size, kind.size, where)
        found = np.zeros(p.count, units.dtype)
        for thread, (i,) in zip(threads, index, strict=True):
            old = found[thread] = units[i]
            first, *rest = (p.registers[s][thread : thread + 1] for s in slots)
            if change:
                units[i] = kind.encode(
                    change(kind.decode(units[i : i + 1]), kind.decode(first))
                ).view(units.dtype)[0]
            elif not rest or old == first[0]:
                units[i] = (rest[0] if rest else first)[0]
        for slot in to:
            p.write(slot, found, where)

    return run


@opcode("cp")
def copy(x: Instruction) -> Run:
    """Copies land as late as they may, when their thread waits for them."""
    guard, operands = x.guard, x.operands
    if x.modifiers == ["async", "commit_group"]:
        return lambda p: p.commit(p.those(guard))
    if x.modifiers == ["async", "wait_group"]:
        pending = int(operands[0])
        return lambda p: p.land(p.those(guard), pending)
    if x.modifiers == ["async", "wait_all"]:
        return lambda p: p.land(p.those(guard), -1)
    if not x.take("async") or space_of(x) != "shared":
        raise NotImplementedError
    to, source, size = x.address(operands[0]), x.address(operands[1]), int(operands[2], 0)
    read = x.reader(operands[3] if len(operands) > 3 else str(size), kind_of("u32"))

    def run(p: Programs) -> None:
        where = p.those(guard)
        some = read(p) > 0
        if where is not None:
            some &= where
        if ((read(p) != size) & some).any():
            raise NotImplementedError("a copy of fewer bytes, and not of none")
        threads = np.arange(p.count) if where is None else np.flatnonzero(where)
        data = p.load("global", source(p), size, 4, some)[threads]
        units, index = p.place("shared", to(p), size, 4, where)
        p.copies.append((threads, p.committed[threads], units, index, data))

    return run


@opcode("bar", "barrier")
def barrier(x: Instruction) -> Run:
    if x.take("warp"):
        return lambda p: None
    guard = x.guard
    if x.modifiers not in (["sync"], ["sync", "aligned"]) or len(x.operands) != 1:
        raise NotImplementedError
    return lambda p: p.go(p.those(guard), p.at + 1 + WAITS)


@opcode("bra", "ret", "exit")
def branch(x: Instruction) -> Run:
    guard, label = x.guard, x.operands[0] if x.name == "bra" else None
    return lambda p: p.go(p.those(guard), p.kernel.labels[label] if label else ENDED)


@opcode("createpolicy", "fence", "membar", "prefetch")
def nothing(x: Instruction) -> Run:
    return lambda p: None


@opcode("shfl")
def shuffle(x: Instruction) -> Run:
    guard, mode = x.guard, x.modifiers[1]
    (to,), word = x.slots(x.operands[0], 4), kind_of("u32")
    value, b, c, members = (x.reader(y, word) for y in x.operands[1:])

    def run(p: Programs) -> None:
        where = p.whole_warps(guard, members)
        lane, n, bound = p.lane, (b(p) & 31).astype(np.int64), c(p).astype(np.int64)
        segment, clamp = bound >> 8 & 31, bound & 31
        last = lane & segment | clamp & ~segment
        source = {"up": lane - n, "down": lane + n, "bfly": lane ^ n}.get(
            mode, lane & segment | n & ~segment
        )
        valid = source >= last if mode == "up" else source <= last
        source = np.where(valid, source, lane)
        p.write(to, value(p)[np.arange(p.count) - lane + source], where)

    return run


@opcode("redux")
def reduce_warp(x: Instruction) -> Run:
    kind, guard, function = x.kind(), x.guard, PLAIN[x.modifiers[-1]]
    (to,), value = x.slots(x.operands[0], 4), x.reader(x.operands[1], kind)
    members = x.reader(x.operands[2], kind_of("u32"))

    def run(p: Programs) -> None:
        where = p.whole_warps(guard, members)
        found = function.reduce(value(p).reshape(-1, WARP), axis=1)
        p.write(to, np.repeat(found, WARP), where)

    return run


@opcode("vote")
def vote(x: Instruction) -> Run:
    mode, guard, value = x.modifiers[1], x.guard, x.reader(x.operands[1], kind_of("pred"))
    (to,) = x.slots(x.operands[0], 0 if mode != "ballot" else 4)
    members = x.reader(x.operands[2], kind_of("u32"))
    function = {
        "any": lambda y: y.any(1),
        "all": lambda y: y.all(1),
        "ballot": lambda y: (y << np.arange(WARP, dtype=np.uint32)).sum(1, dtype=np.uint32),
    }[mode]

    def run(p: Programs) -> None:
        where = p.whole_warps(guard, members)
        p.write(to, np.repeat(function(value(p).reshape(-1, WARP)), WARP), where)

    return run


@opcode("ldmatrix")
def load_matrices(x: Instruction) -> Run:
    """Each lane has the address of one row of 16 bytes; lane i gets a word i of each matrix."""
    guard, transposed = x.guard, x.take("trans")
    slots, address = x.slots(x.operands[0], 4), x.address(x.operands[1])
    if x.modifiers not in [
        ["sync", "aligned", "m8n8", f"x{len(slots)}", y, "b16"] for y in ("shared", "shared::cta")
    ]:
        raise NotImplementedError(x.modifiers)

    def run(p: Programs) -> None:
        where = p.whole_warps(guard)
        reads = p.lane < 8 * len(slots)
        rows = p.load("shared", address(p), 16, 4, reads if where is None else reads & where)
        words = rows.reshape(-1, WARP, 4)[:, : 8 * len(slots)].reshape(-1, len(slots), 8, 4)
        if transposed:
            halves = words.view(np.uint16).swapaxes(-1, -2)
            words = np.ascontiguousarray(halves).view(np.uint32)
        for i, slot in enumerate(slots):
            p.write(slot, words[:, i].ravel(), where)

    return run


@opcode("mma")
def multiply_matrices(x: Instruction) -> Run:
    """Sum exact products in float64 and round once: hardware rounds more often, in any order."""
    *modifiers, shape, row, col, result, a_type, b_type, c_type = x.modifiers
    m, n, k = map(int, re.findall(r"\d+", shape))
    word = 8 if a_type == "f64" else 4
    if (
        modifiers != ["sync", "aligned"] or (row, col) != ("row", "col") or a_type != b_type
        or result != c_type or result != ("f64" if word == 8 else "f32")
    ):  # fmt: skip
        raise NotImplementedError(x.modifiers)
    values = {"bf16": kind_of("bf16x2"), "f16": kind_of("f16x2")}.get(a_type)
    values = values or kind_of("f64" if word == 8 else "f32")
    accumulator, guard = kind_of(result), x.guard
    d, a, b, c = (x.slots(y, word) for y in x.operands)
    each = 2 if values.name.endswith("x2") else 1  # numbers in a register

    lane, e = np.arange(WARP)[:, None], np.arange(each)
    group, one = lane // 4, lane % 4
    i_a, i_b, i_c = (np.arange(len(y))[:, None, None] for y in (a, b, c))
    at_a = group + 8 * (i_a % 2), each * one + e + 4 * each * (i_a // 2)
    at_b = each * one + e + 4 * each * i_b, group
    at_c = group + 8 * (i_c // 2), 2 * one + i_c % 2

    def matrix(
        p: Programs, slots: list[int], kind: Kind, at: tuple[Array, Array], size: tuple[int, int]
    ) -> Array:
        found = np.empty((p.count // WARP, *size))
        registers = np.stack([p.registers[i] for i in slots]).reshape(len(slots), -1, WARP)
        numbers = kind.decode(registers.swapaxes(0, 1).copy().ravel())
        found[:, at[0], at[1]] = numbers.reshape(
            -1, len(slots), WARP, numbers.size // registers.size
        )
        return found

    def run(p: Programs) -> None:
        where = p.whole_warps(guard)
        left, right = matrix(p, a, values, at_a, (m, k)), matrix(p, b, values, at_b, (k, n))
        found = left @ right + matrix(p, c, accumulator, at_c, (m, n))
        for i, slot in enumerate(d):
            at = at_c[0][i % len(at_c[0])], at_c[1][i % len(at_c[1])]
            p.write(slot, accumulator.encode(found[:, at[0], at[1]].reshape(-1)), where)

    return run
