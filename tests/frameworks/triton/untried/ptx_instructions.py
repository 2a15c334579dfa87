"""Effects of the instructions of PTX on programs of the emulator; see `ptx`.

Approximate functions are as exact as NumPy's.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from frameworks.triton.untried.ptx import Kernel, Programs

Array = NDArray[Any]
Effect = Callable[["Programs"], None]
Reader = Callable[["Programs"], Array]

WARP = 32
WAITS, ENDED = 1 << 20, 1 << 30
"""Added to the block of a thread at a barrier; the block of a thread that has returned."""


@dataclass(frozen=True)
class Guard:
    slot: int
    negated: bool


@dataclass(frozen=True)
class Kind:
    """A type of operands: its bytes in a register (0: a predicate), and its values as an array."""

    name: str
    size: int
    decode: Callable[[Array], Array]
    encode: Callable[[Array], Array]


@functools.cache
def kind_of(name: str) -> Kind:
    """Return the kind of a type. Two packed numbers are neighbours: arrays are twice as long."""
    if name == "pred":
        return Kind(name, 0, lambda x: x, lambda x: x)
    found = re.fullmatch(r"(?:[sub](?:8|16|32|64)|f(?:16|32|64)|bf16)|(b?f16)x2", name)
    if not found:
        raise NotImplementedError(name)
    letters, number = re.findall(r"[a-z]+|\d+", found.group(1) or name)
    size, packed = int(number) // 8, found.group(1) is not None
    dtype = np.dtype(f"{letters if letters == 'f' else 'i' if letters == 's' else 'u'}{size}")
    register = np.dtype(f"u{2 * size if packed else size}")

    def decode(x: Array) -> Array:
        x = (x if x.itemsize == register.itemsize else x.astype(register)).view(dtype)
        if letters == "bf":
            return (x.astype(np.uint32) << 16).view(np.float32)
        return x.astype(np.float32) if dtype == np.float16 else x

    def encode(x: Array) -> Array:
        x = bf16_bits(x) if letters == "bf" else x.astype(dtype, copy=False)
        return x.view(register) if packed else x

    return Kind(name, register.itemsize, decode, encode)


def bf16_bits(x: Array) -> Array:
    """Return the bfloat16 nearest to float32, ties to even; NaN is 0x7FFF."""
    bits = x.astype(np.float32, copy=False).view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


class Instruction:
    """The parts of an instruction's text. Those that the effect knows are taken away."""

    def __init__(self, kernel: Kernel, text: str) -> None:
        found = re.fullmatch(r"(?:@(!?)(\S+) )?([\w.:]+) ?(.*)", text)
        if not found:
            raise NotImplementedError
        negated, guard, opcode, rest = found.groups()
        self.kernel = kernel
        self.guard = Guard(kernel.slot(guard, 0), bool(negated)) if guard else None
        self.name, *self.modifiers = opcode.split(".")
        self.operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)

    def take(self, *names: str) -> bool:
        """Return whether the instruction has one of some modifiers; take these away."""
        found = [x for x in self.modifiers if x not in names]
        had, self.modifiers = len(found) < len(self.modifiers), found
        return had

    def kind(self) -> Kind:
        """Take away the last modifier, a type."""
        return kind_of(self.modifiers.pop())

    def nothing_left(self, *modifiers: str) -> None:
        if self.modifiers != list(modifiers):
            raise NotImplementedError(self.modifiers)

    def slots(self, operand: str, size: int) -> list[int]:
        """Return the registers of a vector, or of one operand."""
        return [self.kernel.slot(x, size) for x in re.findall(r"[^{},\s]+", operand)]

    def reader(self, operand: str, kind: str | Kind) -> Reader:
        kind = kind if isinstance(kind, Kind) else kind_of(kind)
        slot, decode = self.kernel.slot(operand.lstrip("!").strip(), kind.size), kind.decode
        if operand.startswith("!"):
            return lambda p: ~p.registers[slot]
        return lambda p: decode(p.registers[slot])

    def address(self, operand: str) -> Reader:
        base, _, offset = operand.strip("[] ").partition("+")
        slot, more = self.kernel.slot(base.strip(), 8), int(offset or 0)
        return lambda p: p.registers[slot].astype(np.int64) + more

    def elementwise(
        self, function: Callable[..., Array], result: Kind, *kinds: str | Kind
    ) -> Effect:
        """Return the effect: the first operand is a function of the others, of some kinds."""
        self.nothing_left()
        to, *operands = self.operands
        (slot,), guard, encode = self.slots(to, result.size), self.guard, result.encode
        reads = [self.reader(*x) for x in zip(operands, kinds, strict=True)]
        return lambda p: p.write(slot, encode(function(*[r(p) for r in reads])), p.those(guard))


def effect_of(kernel: Kernel, text: str) -> Effect:
    """Return the effect of an instruction. An unknown one raises, where a thread comes to it."""
    try:
        x = Instruction(kernel, text)
        return EFFECTS.get(x.name, arithmetic)(x)
    except (NotImplementedError, LookupError, ValueError) as error:
        message = f"{text}: {error}"

    def unknown(p: Programs) -> None:
        raise NotImplementedError(message)

    return unknown


EFFECTS: dict[str, Callable[[Instruction], Effect]] = {}
"""Instructions with a form of their own. Others are in `FUNCTIONS`."""


def effect(*names: str) -> Callable[[Callable[[Instruction], Effect]], None]:
    return lambda function: EFFECTS.update(dict.fromkeys(names, function))


def fused(a: Array, b: Array, c: Array) -> Array:
    """Return a · b + c. The product is exact, or has 64 bits for float64, before the sum."""
    if a.dtype.kind != "f":
        return a * b + c
    wide = np.longdouble if a.dtype == np.float64 else np.float64
    return (a.astype(wide) * b + c).astype(a.dtype)


def quotient(a: Array, b: Array) -> Array:
    """Return a / b; of integers rounded towards zero."""
    return a / b if a.dtype.kind == "f" else a // b + ((a % b != 0) & ((a < 0) != (b < 0)))


def shifted(function: Callable[..., Array], a: Array, n: Array) -> Array:
    return function(a, np.minimum(n, 8 * a.itemsize).astype(a.dtype))


def bits_from(a: Array, at: Array, n: Array) -> Array:
    """Return n bits of a from bit `at` on, with the sign of the last."""
    at, n = at & 255, n & 255
    bits = 8 * a.itemsize
    above = bits - np.minimum(at + n, bits)
    found = shifted(np.right_shift, shifted(np.left_shift, a, above), above + at)
    return np.where(n == 0, 0, found)


def bits_inserted(a: Array, b: Array, at: Array, n: Array) -> Array:
    """Return b with the n lowest bits of a from bit `at` on."""
    mask = shifted(np.left_shift, ~shifted(np.left_shift, ~np.zeros_like(a), n), at)
    return b & ~mask | shifted(np.left_shift, a, at) & mask


def bytes_permuted(a: Array, b: Array, choice: Array) -> Array:
    choices = choice[:, None] >> np.arange(0, 16, 4, dtype=np.uint32) & 15
    both = np.stack([a, b], -1).view(np.uint8)
    found = np.take_along_axis(both, (choices & 7).astype(np.int64), -1)
    signs = (found >> 7) * np.uint8(255)
    return np.where(choices & 8, signs, found).view(np.uint32)[:, 0]


def flushed(x: Array) -> Array:
    return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x)


def towards_zero(function: Callable[..., Array]) -> Callable[..., Array]:
    """Return a function of float32 that rounds towards zero."""

    def run(*values: Array) -> Array:
        wide = function(*(x.astype(np.float64) for x in values))
        near = wide.astype(np.float32)
        return np.where(np.abs(near) > np.abs(wide), np.nextafter(near, np.float32(0)), near)

    return run


FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "fma": fused, "mad": fused,
    "div": quotient, "rem": np.fmod, "min": np.fmin, "max": np.fmax, "neg": np.negative,
    "abs": np.abs, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "sqrt": np.sqrt, "rcp": np.reciprocal, "ex2": np.exp2, "lg2": np.log2,
    "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "rsqrt": lambda x: 1 / np.sqrt(x),
    "copysign": lambda sign, x: np.copysign(x, sign), "cvta": np.copy,
    "selp": lambda a, b, p: np.where(p, a, b), "bfe": bits_from, "bfi": bits_inserted,
    "prmt": bytes_permuted, "shl": functools.partial(shifted, np.left_shift),
    "shr": functools.partial(shifted, np.right_shift),
}  # fmt: skip
KINDS = {
    "selp": {2: "pred"}, "shl": {1: "u32"}, "shr": {1: "u32"}, "bfe": {1: "u32", 2: "u32"},
    "bfi": {2: "u32", 3: "u32"},
}  # fmt: skip
"""Operands of other types than an instruction's own."""


def arithmetic(x: Instruction) -> Effect:
    function, kind, others = FUNCTIONS[x.name], x.kind(), KINDS.get(x.name, {})
    if x.take("NaN"):
        function = {"min": np.minimum, "max": np.maximum}[x.name]
    if kind.name == "f32" and x.take("rz"):
        function = towards_zero(function)
    if x.take("ftz") and kind.name == "f32":
        plain, function = function, lambda *y: flushed(plain(*map(flushed, y)))
    x.take("rn", "approx", "full", "lo", "to", "global")
    kinds = [others.get(i, kind) for i in range(len(x.operands) - 1)]
    return x.elementwise(function, kind, *kinds)


@effect("mul", "mad")
def multiply(x: Instruction) -> Effect:
    if not {"wide", "hi"} & set(x.modifiers):
        return arithmetic(x)
    kind, high = x.kind(), x.take("hi")
    x.take("wide")
    letter, bits = kind.name[0], 8 * kind.size
    result = kind if high else kind_of(f"{letter}{2 * bits}")
    dtype: Any = object if bits == 64 else f"{'i' if letter == 's' else 'u'}{2 * kind.size}"

    def function(a: Array, b: Array, c: Any = 0) -> Array:
        product = a.astype(dtype) * b
        return (product >> bits if high else product) + c

    return x.elementwise(function, result, *[kind, kind, result][: len(x.operands) - 1])


@effect("shf")
def shift_two(x: Instruction) -> Effect:
    kind, left, wraps = x.kind(), x.take("l"), x.take("wrap")
    x.take("r", "clamp")

    def function(low: Array, high: Array, n: Array) -> Array:
        both = shifted(np.left_shift, high.astype(np.uint64), np.uint32(32)) | low
        n = (n & 31 if wraps else np.minimum(n, 32)).astype(np.uint64)
        return (both << n >> np.uint64(32) if left else both >> n).astype(np.uint32)

    return x.elementwise(function, kind, "u32", "u32", "u32")


@effect("lop3")
def logic(x: Instruction) -> Effect:
    kind, table = x.kind(), int(x.operands.pop(), 0)
    rows = [i for i in range(8) if table >> i & 1]

    def function(a: Array, b: Array, c: Array) -> Array:
        yes, no = (a, b, c), (~a, ~b, ~c)
        terms = [
            functools.reduce(np.bitwise_and, [(no, yes)[i >> 2 - j & 1][j] for j in range(3)])
            for i in rows
        ]
        return functools.reduce(np.bitwise_or, terms, np.zeros_like(a))

    return x.elementwise(function, kind, kind, kind, kind)


ROUNDINGS = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@effect("cvt")
def convert(x: Instruction) -> Effect:
    if x.modifiers == ["rna", "tf32", "f32"]:  # ties away from zero, to 10 bits
        x.modifiers, bits = [], kind_of("b32")
        return x.elementwise(lambda a: a + 0x1000 & 0xFFFFE000, bits, bits)
    source, target = x.kind(), x.kind()
    to_integer = "f" in source.name and "f" not in target.name
    flushes = x.take("ftz") and source.name == "f32"
    rounding = next((y for name, y in ROUNDINGS.items() if x.take(name)), None)
    x.take("rn")

    def function(*values: Array) -> Array:
        v = np.stack(values[::-1], -1).ravel()  # the first of two is the upper half
        v = flushed(v) if flushes else v
        v = rounding(v) if rounding else v
        if not to_integer:
            return v
        limits = np.iinfo(target.encode(np.zeros(1)).dtype)
        v = np.clip(v.astype(np.longdouble), limits.min, limits.max)
        return np.where(np.isnan(v), 0, v).astype(limits.dtype)

    return x.elementwise(function, target, *[source] * (len(x.operands) - 1))


COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
    "ne": lambda a, b: (a < b) | (a > b), "nan": lambda a, b: (a != a) | (b != b),
}  # fmt: skip
CONTRARY = {
    "equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt", "num": "nan",
}  # fmt: skip
"""Comparisons that are true where another is false, for NaN too."""
JOINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@effect("setp")
def compare(x: Instruction) -> Effect:
    kind, flushes = x.kind(), x.take("ftz")
    name = x.modifiers.pop(0)
    ordered, contrary = COMPARISONS[CONTRARY.get(name, name)], name in CONTRARY
    join = JOINED[x.modifiers.pop()] if x.modifiers else None

    def function(a: Array, b: Array, *c: Array) -> Array:
        found = ordered(*map(flushed, (a, b))) if flushes else ordered(a, b)
        found = found != contrary
        return join(found, *c) if join else found

    kinds = [kind, kind, *["pred"] * (join is not None)]
    return x.elementwise(function, kind_of("pred"), *kinds)


@effect("set")
def compare_to_number(x: Instruction) -> Effect:
    source, target = x.kind(), x.kind()
    ordered = COMPARISONS[x.modifiers.pop(0)]
    return x.elementwise(lambda a, b: ordered(a, b).astype(np.float32), target, source, source)


@effect("mov")
def move(x: Instruction) -> Effect:
    kind, guard, (to, source) = x.kind(), x.guard, x.operands
    if "{" not in to + source:
        return x.elementwise(np.copy, kind, kind)
    x.nothing_left()
    size = kind.size // ((to + source).count(",") + 1)
    left, right = x.slots(to, size), x.slots(source, size)

    def run(p: Programs) -> None:
        where = p.those(guard)
        bits = np.stack([p.registers[i] for i in right], -1).view(f"u{kind.size // len(left)}")
        for i, slot in enumerate(left):
            p.write(slot, bits[:, i], where)

    return run


WITHOUT_EFFECT = (
    "volatile", "relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys", "nc", "noftz",
    "L1::evict_first", "L1::evict_last", "L1::no_allocate", "L2::cache_hint", "L2::128B",
)  # fmt: skip


def space_of(x: Instruction) -> str:
    """Take away the modifiers of an access; return its memory."""
    x.take(*WITHOUT_EFFECT)
    (space,) = (y for y in ("global", "shared") if x.take(y, f"{y}::cta"))
    return space


@effect("ld")
def load(x: Instruction) -> Effect:
    kind, guard, (to, source, *_) = x.kind(), x.guard, x.operands
    if x.take("param"):
        x.operands = [to, source.strip("[ ]")]
        return x.elementwise(np.copy, kind, kind)
    space, slots, address = space_of(x), x.slots(to, kind.size), x.address(source)
    x.take("v2", "v4")
    x.nothing_left()

    def run(p: Programs) -> None:
        where = p.those(guard)
        found = p.load(space, address(p), kind.size * len(slots), kind.size, where)
        for i, slot in enumerate(slots):
            p.write(slot, kind.decode(found[:, i]), where)

    return run


@effect("st")
def store(x: Instruction) -> Effect:
    kind, guard, (to, source, *_) = x.kind(), x.guard, x.operands
    space, address = space_of(x), x.address(to)
    reads = [x.reader(y, kind) for y in re.findall(r"[^{},\s]+", source)]
    x.take("v2", "v4")
    x.nothing_left()

    def run(p: Programs) -> None:
        where = p.those(guard)
        units, index = p.place(space, address(p), kind.size * len(reads), kind.size, where)
        values = np.stack([r(p) for r in reads], -1).view(units.dtype)
        units[index] = values if where is None else values[where]

    return run


@effect("atom", "red")
def update(x: Instruction) -> Effect:
    """Threads take turns."""
    kind, guard, space = x.kind(), x.guard, space_of(x)
    name = x.modifiers.pop()
    x.nothing_left()
    change = None if name in ("exch", "cas") else FUNCTIONS[name]
    to = x.slots(x.operands.pop(0), kind.size) if x.name == "atom" else []
    address, *reads = x.address(x.operands[0]), *(x.reader(y, kind) for y in x.operands[1:])

    def run(p: Programs) -> None:
        where = p.those(guard)
        units, index = p.place(space, address(p), kind.size, kind.size, where)
        found, given = np.zeros(p.count, units.dtype), [r(p) for r in reads]
        threads = np.arange(p.count) if where is None else np.flatnonzero(where)
        for thread, at in zip(threads, index, strict=True):
            found[thread] = units[at][0]
            old, (new, *rest) = kind.decode(units[at]), (y[thread : thread + 1] for y in given)
            if change:
                new = change(old, new)
            elif rest:  # compare and swap
                new = rest[0] if old == new else old
            units[at] = kind.encode(new).view(units.dtype)
        for slot in to:
            p.write(slot, found, where)

    return run


@effect("cp")
def copy(x: Instruction) -> Effect:
    """Copies land as late as they may, when their thread waits for them."""
    guard, operands = x.guard, x.operands
    if x.take("commit_group"):
        return commit(x)
    if x.take("wait_group", "wait_all"):
        x.nothing_left("async")
        pending = int(operands[0]) if operands else -1
        return lambda p: p.land(p.those(guard), pending)
    x.take("ca", "cg", "global")
    space = space_of(x)
    x.nothing_left("async")
    to, source, size = x.address(operands[0]), x.address(operands[1]), int(operands[2], 0)
    read = x.reader(operands[3] if len(operands) > 3 else str(size), "u32")

    def run(p: Programs) -> None:
        where, length = p.those(guard), read(p)
        reads = length > 0 if where is None else (length > 0) & where
        if (reads & (length != size)).any():
            raise NotImplementedError("a copy of a part")
        threads = np.arange(p.count) if where is None else np.flatnonzero(where)
        data = p.load("global", source(p), size, 4, reads)[threads]
        units, index = p.place(space, to(p), size, 4, where)
        p.copies.append((threads, p.committed[threads], units, index, data))

    return run


def commit(x: Instruction) -> Effect:
    guard = x.guard
    x.nothing_left("async")

    def run(p: Programs) -> None:
        where = p.those(guard)
        p.committed = p.committed + (1 if where is None else where)

    return run


@effect("bar", "barrier")
def barrier(x: Instruction) -> Effect:
    guard = x.guard
    if x.take("warp"):
        return lambda p: None
    x.take("aligned")
    x.nothing_left("sync")
    (_,) = x.operands
    return lambda p: p.go(p.those(guard), p.at + 1 + WAITS)


@effect("bra", "ret", "exit")
def branch(x: Instruction) -> Effect:
    guard = x.guard
    if not x.operands:
        return lambda p: p.go(p.those(guard), ENDED)
    (label,) = x.operands
    return lambda p: p.go(p.those(guard), p.kernel.labels[label])


@effect("createpolicy", "fence", "membar", "prefetch")
def nothing(x: Instruction) -> Effect:
    return lambda p: None


@effect("shfl")
def shuffle(x: Instruction) -> Effect:
    _, mode, _ = x.modifiers
    guard, (to,) = x.guard, x.slots(x.operands[0], 4)
    value, number, bounds, members = (x.reader(y, "u32") for y in x.operands[1:])
    sources: dict[str, Callable[[Array, Array, Array], Array]] = {
        "up": lambda lane, n, segment: lane - n,
        "down": lambda lane, n, segment: lane + n,
        "bfly": lambda lane, n, segment: lane ^ n,
        "idx": lambda lane, n, segment: lane & segment | n & ~segment,
    }
    source_of = sources[mode]

    def run(p: Programs) -> None:
        where, lane, bound = p.whole_warps(guard, members), p.lane, bounds(p).astype(np.int64)
        segment, clamp = bound >> 8 & 31, bound & 31
        source = source_of(lane, (number(p) & 31).astype(np.int64), segment)
        last = lane & segment | clamp & ~segment
        valid = source >= last if mode == "up" else source <= last
        first = np.arange(p.count) - lane
        p.write(to, value(p)[first + np.where(valid, source, lane)], where)

    return run


@effect("redux", "vote")
def reduce_warps(x: Instruction) -> Effect:
    functions: dict[str, Callable[[Array], Array]] = {
        "any": lambda y: y.any(1), "all": lambda y: y.all(1),
        "ballot": lambda y: (y << np.arange(WARP, dtype=np.uint32)).sum(1, dtype=np.uint32),
    }  # fmt: skip
    _, name, kind = x.modifiers
    function, guard = (
        functions.get(name) or functools.partial(FUNCTIONS[name].reduce, axis=1),
        x.guard,
    )
    value = x.reader(x.operands[1], kind if x.name == "redux" else "pred")
    (to,), members = x.slots(x.operands[0], 4), x.reader(x.operands[2], "u32")

    def run(p: Programs) -> None:
        where = p.whole_warps(guard, members)
        p.write(to, np.repeat(function(value(p).reshape(-1, WARP)), WARP), where)

    return run


@effect("ldmatrix")
def load_matrices(x: Instruction) -> Effect:
    """Each lane has the address of a row of 16 bytes; lane i gets word i of each matrix."""
    guard, slots, address = x.guard, x.slots(x.operands[0], 4), x.address(x.operands[1])
    space, transposed, n = space_of(x), x.take("trans"), len(slots)
    x.nothing_left("sync", "aligned", "m8n8", f"x{n}", "b16")

    def run(p: Programs) -> None:
        where = p.whole_warps(guard)
        reads = p.lane < 8 * n if where is None else (p.lane < 8 * n) & where
        rows = p.load(space, address(p), 16, 2, reads)
        matrices = rows.reshape(-1, WARP, 8)[:, : 8 * n].reshape(-1, n, 8, 8)
        if transposed:
            matrices = matrices.swapaxes(-1, -2)
        words = np.ascontiguousarray(matrices).view(np.uint32)
        for i, slot in enumerate(slots):
            p.write(slot, words[:, i].ravel(), where)

    return run


@effect("mma")
def multiply_matrices(x: Instruction) -> Effect:
    """Sum exact products in float64 and round once: hardware rounds in ways of its own."""
    _, _, shape, _, _, result, name, *_ = x.modifiers
    x.nothing_left("sync", "aligned", shape, "row", "col", result, name, name, result)
    m, n, k = map(int, re.findall(r"\d+", shape))
    factors = kind_of({"bf16": "bf16x2", "f16": "f16x2", "tf32": "f32", "f64": "f64"}[name])
    sums, guard = kind_of({"f32": "f32", "f64": "f64"}[result]), x.guard
    d, a, b, c = (x.slots(y, factors.size) for y in x.operands)

    def factors_of(bits: Array) -> Array:  # TF32 leaves 13 bits of float32 out
        return factors.decode(bits & 0xFFFFE000 if name == "tf32" else bits)

    each = 2 if factors.name.endswith("x2") else 1  # numbers in a register
    lane, e = np.arange(WARP)[:, None], np.arange(each)
    group, column = lane // 4, each * (lane % 4) + e
    i, j, r = (np.arange(len(y))[:, None, None] for y in (a, b, c))
    in_a = group + 8 * (i % 2), column + 4 * each * (i // 2)
    in_b = column + 4 * each * j, group
    in_c = group + 8 * (r // 2), 2 * (lane % 4) + r % 2

    def matrix(
        p: Programs, slots: list[int], decode: Callable[[Array], Array],
        at: tuple[Array, Array], size: tuple[int, int],
    ) -> Array:  # fmt: skip
        bits = np.stack([p.registers[i].reshape(-1, WARP) for i in slots], 1)
        found = np.empty((len(bits), *size))
        found[:, at[0], at[1]] = decode(bits.ravel()).reshape(*bits.shape, -1)
        return found

    def run(p: Programs) -> None:
        where = p.whole_warps(guard)
        left, right = matrix(p, a, factors_of, in_a, (m, k)), matrix(p, b, factors_of, in_b, (k, n))
        found = left @ right + matrix(p, c, sums.decode, in_c, (m, n))
        for slot, *at in zip(d, *in_c, strict=True):
            p.write(slot, sums.encode(found[:, at[0], at[1]].ravel()), where)

    return run
