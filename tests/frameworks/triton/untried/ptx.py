"""An emulator runs NVIDIA's PTX on tensors of the CPU, all threads at once, and checks addresses.

Compiled kernels run without a GPU: layouts, shared memory, copies and inline assembly included.
Registers and shared memory are NaN before they are written.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from anyscore.kernels.triton import call as calls
from anyscore.kernels.triton import targets
from frameworks.triton.sass import compile_for
from frameworks.triton.untried.ptx_instructions import (
    ENDED,
    WAITS,
    WARP,
    Array,
    Effect,
    Guard,
    Reader,
    effect_of,
    kind_of,
)

THREADS = 4096
"""Threads that run together: more need fewer calls of NumPy, but leave the processor's cache."""
SPECIAL = re.compile(r"%n?(tid|ctaid)\.[xyz]|%laneid|_")
ENDS = re.compile(r"(@\S+ )?(bra|ret|exit|barrier|bar(?!\.warp))\b")


@contextmanager
def emulated(
    chip: int = 80, *, apart: bool = False, chips: Mapping[str, int] | None = None
) -> Iterator[None]:
    """Compile each launch for a chip, and run its PTX on tensors of the CPU; see `launch`.

    Products of chips from 90 on have instructions that the emulator lacks. chips: other chips of
    kernels, by name.
    """

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        options.pop("enable_fp_fusion", None)
        warps = options.pop("num_warps", 4)
        target = GPUTarget("cuda", (chips or {}).get(self.fn.__name__, chip), WARP)
        made = compile_for(target, self, args, warps, **options)
        launch(made.asm["ptx"], grid, args, made.metadata.shared, apart=apart)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run)
        patch.setattr(calls, "target_of", lambda x: targets.NVIDIA)
        yield


def launch(
    ptx: str, grid: tuple[int, ...], args: Iterable[Any], shared: int, *, apart: bool = False
) -> None:
    """Run a kernel; arguments that the compiler takes for constants are no parameters.

    shared: bytes for each program. apart: a warp runs until it waits before the warps below it do,
    so that a missing barrier shows; else threads with one place in the program run together.
    """
    leaves = [x for x in leaves_of(args) if not (x is None or (isinstance(x, int) and x == 1))]
    kernel, sizes = parsed(ptx), (*grid, 1, 1)[:3]
    numbers = [x.data_ptr() if isinstance(x, Tensor) else x for x in leaves]
    storages = [x.untyped_storage() for x in leaves if isinstance(x, Tensor)]
    spans = [(x.data_ptr(), x.data_ptr() + x.nbytes()) for x in storages if x.nbytes()]
    memory = Global(spans)
    programs = itertools.product(*map(range, reversed(sizes)))  # x is the fastest
    together = max(1, THREADS // kernel.threads)
    with np.errstate(all="ignore"):
        while ids := list(itertools.islice(programs, together)):
            Programs(kernel, ids, sizes, numbers, memory, shared).run(apart)


def leaves_of(args: Iterable[Any]) -> Iterator[Any]:
    for x in args:
        yield from leaves_of(x) if isinstance(x, tuple) else (x,)


class Global:
    """Memory of tensors: spans of addresses from the first byte to the one past the last."""

    def __init__(self, spans: list[tuple[int, int]]) -> None:
        self.starts, ends = np.array(sorted(spans), np.int64).T
        self.ends = np.maximum.accumulate(ends)  # spans may overlap
        self.origin = int(self.starts[0]) & -16
        span = ctypes.c_uint8 * (int(self.ends[-1]) - self.origin)
        self.bytes = np.frombuffer(span.from_address(self.origin), np.uint8)

    def place(self, address: Array, program: Array, size: int) -> tuple[Array, Array]:
        """Return (offsets in bytes, which are valid)."""
        i = np.searchsorted(self.starts, address, "right") - 1
        return address - self.origin, (i >= 0) & (address + size <= self.ends[i])


class Shared:
    """Shared memory: as many bytes for each program."""

    def __init__(self, programs: int, size: int) -> None:
        self.size, self.stride = size, -(-size // 16) * 16
        self.bytes = np.full(programs * self.stride, 0xFF, np.uint8)

    def place(self, address: Array, program: Array, size: int) -> tuple[Array, Array]:
        return address + program * self.stride, (address >= 0) & (address + size <= self.size)


class Programs:
    """Programs of a grid: the registers of all their threads, and their memory.

    Threads in `active` execute; None means all. A register's array is replaced, never changed.
    """

    def __init__(
        self, kernel: Kernel, ids: list[tuple[int, ...]], sizes: tuple[int, ...],
        args: list[Any], memory: Global, shared: int,
    ) -> None:  # fmt: skip
        self.kernel, self.count = kernel, len(ids) * kernel.threads
        self.thread = np.tile(np.arange(kernel.threads), len(ids))
        self.lane = self.thread % WARP
        self.program = np.repeat(np.arange(len(ids)), kernel.threads)
        self.memory = {"global": memory, "shared": Shared(len(ids), shared)}
        self.block, self.at = np.zeros(self.count, np.int64), 0
        self.active: Array | None = None
        self.committed = np.zeros(self.count, np.int64)
        self.copies: list[tuple[Array, ...]] = []

        values: dict[str, Any] = {f"{kernel.name}_param_{i}": x for i, x in enumerate(args)}
        values |= {"%tid.x": self.thread, "%ntid.x": kernel.threads, "%laneid": self.lane}
        for axis, at, n in zip("zyx", np.array(ids).T, reversed(sizes), strict=True):
            values |= {f"%ctaid.{axis}": at[self.program], f"%nctaid.{axis}": n}
        values |= dict.fromkeys(kernel.symbols, 0)
        self.registers = [
            self.first(values.get(name, immediate(name)), kind)
            for (name, _), kind in zip(kernel.slots, kernel.kinds, strict=True)
        ]

    def first(self, value: Any, kind: np.dtype[Any]) -> Array:
        """Return the first value of a register, with all bits set if the value is None."""
        if isinstance(value, float):
            value = int(np.array(value, f"f{kind.itemsize}").view(kind))
        if isinstance(value, np.ndarray):
            return value.astype(kind)
        value = -1 if value is None else int(value)
        bits = value != 0 if kind.kind == "b" else value & ((1 << 8 * kind.itemsize) - 1)
        return np.full(self.count, bits, kind)

    def run(self, apart: bool) -> None:
        while (self.block < ENDED).any():
            runs = self.block < WAITS
            if not runs.any():  # each program waits, or has ended: barriers open
                self.block = self.block - WAITS * (self.block < ENDED)
                continue
            if apart:
                warp = np.where(runs, self.thread // WARP, -1)
                runs &= warp == warp.max()
            self.at = int(self.block[runs].min())
            here = runs & (self.block == self.at)
            self.active = None if here.all() else here
            self.go(self.active, self.at + 1)
            for line, effect in self.kernel.blocks[self.at]:
                try:
                    effect(self)
                except AssertionError as error:
                    raise AssertionError(f"{self.kernel.name}, {line}: {error}") from None

    def go(self, where: Array | None, to: int) -> None:
        self.block = (
            np.full_like(self.block, to) if where is None else np.where(where, to, self.block)
        )

    def those(self, guard: Guard | None) -> Array | None:
        """Return the threads that execute an instruction; None means all."""
        if guard is None:
            return self.active
        found = self.registers[guard.slot] != guard.negated
        found = found if self.active is None else found & self.active
        return None if found.all() else found

    def whole_warps(self, guard: Guard | None, members: Reader | None = None) -> Array | None:
        """Return the threads that execute an instruction of whole warps."""
        where = self.those(guard)
        if members:
            found = members(self) if where is None else members(self)[where]
            assert (found == 0xFFFFFFFF).all(), "a part of a warp"
        if where is not None:
            warps = where.reshape(-1, WARP)
            assert (warps.all(1) == warps.any(1)).all(), "a warp has diverged"
        return where

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
        """Return (memory in units, the (threads, size / unit) indices of executing threads)."""
        memory, program = self.memory[space], self.program
        if where is not None:
            address, program = address[where], program[where]
        offset, valid = memory.place(address, program, size)
        assert valid.all(), f"{(~valid).sum()} threads are out of bounds of {space} memory"
        assert not (address % size).any(), "a misaligned address"
        units = memory.bytes[: len(memory.bytes) // unit * unit].view(f"u{unit}")
        return units, offset[:, None] // unit + np.arange(size // unit)

    def load(self, space: str, address: Array, size: int, unit: int, where: Array | None) -> Array:
        """Return (threads, size / unit) units."""
        units, index = self.place(space, address, size, unit, where)
        if where is None:
            return units[index]
        found = np.zeros((self.count, size // unit), units.dtype)
        found[where] = units[index]
        return found

    def land(self, where: Array | None, pending: int) -> None:
        """Finish the copies of some threads, but for their latest `pending` groups."""
        copies, self.copies = self.copies, []
        for threads, group, units, index, data in copies:
            due = group < self.committed[threads] - pending
            due = due if where is None else due & where[threads]
            units[index[due]] = data[due]
            if not due.all():
                self.copies.append((threads[~due], group[~due], units, index[~due], data[~due]))


@dataclass
class Kernel:
    """A parsed kernel.

    slots: registers of (name, bytes); constants are registers too. widths: bytes of declared names,
    0 for a predicate. blocks: instructions with one entry, and their lines. labels: blocks by name.
    symbols: names of shared memory, which begins at 0.
    """

    name: str
    threads: int
    slots: dict[tuple[str, int], int] = field(default_factory=dict)
    kinds: list[np.dtype[Any]] = field(default_factory=list)
    widths: dict[str, int] = field(default_factory=dict)
    blocks: list[list[tuple[str, Effect]]] = field(default_factory=lambda: [[]])
    labels: dict[str, int] = field(default_factory=dict)
    symbols: list[str] = field(default_factory=list)

    def slot(self, name: str, size: int) -> int:
        """Return the register of a name; names without a declaration have `size` bytes."""
        found = self.widths.get(name, self.widths.get(name.rstrip("0123456789")))
        if found is None and immediate(name) is None and not SPECIAL.fullmatch(name):
            raise NotImplementedError(name)
        key = name, size if found is None else found
        if key not in self.slots:
            self.slots[key] = len(self.kinds)
            self.kinds.append(np.dtype(f"u{key[1]}") if key[1] else np.dtype(bool))
        return self.slots[key]

    def declare(self, text: str) -> None:
        if found := re.fullmatch(r"\.reg \.(\w+) (.*)", text):
            for name in found.group(2).split(","):
                self.widths[name.strip().split("<")[0]] = kind_of(found.group(1)).size
        elif found := re.match(r"\.local .*?(\w+)\[", text):  # registers that a rare way spills
            self.widths[found.group(1)] = 8


def immediate(name: str) -> int | None:
    """Return the bits of a constant; None for other names."""
    if re.fullmatch(r"0[fFdD][0-9a-fA-F]+", name):
        return int(name[2:], 16)
    return int(name.rstrip("U"), 0) if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", name) else None


@functools.cache
def parsed(ptx: str) -> Kernel:
    """Parse the only kernel of a module."""
    start = ptx.index(".entry")
    head, _, body = ptx[start:].partition("\n{")
    ((name, parameters),) = re.findall(r"\.entry (\w+)\((.*?)\)", head, re.DOTALL)
    (threads,) = re.findall(r"\.reqntid (\d+)", head)
    kernel = Kernel(name, int(threads))
    for kind, parameter in re.findall(
        r"\.param \.(\w+).*?(\w+)(?:,|\s*$)", parameters, re.MULTILINE
    ):
        kernel.widths[parameter] = kind_of(kind).size
    for symbol in re.findall(r"\.extern \.shared \.align \d+ \.b8 (\w+)\[\]", ptx[:start]):
        kernel.symbols.append(symbol)
        kernel.widths[symbol] = 4
    jumps = set(re.findall(r"\bbra(?:\.uni)?\s+([$\w]+)", body))
    source, rest = "", ""
    for line in body.partition("\n}")[0].splitlines():
        code, _, comment = line.partition("//")
        label = re.fullmatch(r"\s*([$\w]+):\s*", code)
        if re.match(r"\s*\.loc\s", code):
            source = comment.split("@")[0].strip()
        elif label and label.group(1) in jumps:
            kernel.labels[label.group(1)] = len(kernel.blocks)
            kernel.blocks.append([])
        elif not label:
            *statements, rest = f"{rest} {code}".split(";")
            for statement in statements:
                text = " ".join(re.sub(r"^[\s{}]+", "", statement).split())
                if text.startswith("."):
                    kernel.declare(text)
                elif text:
                    kernel.blocks[-1].append((f"{source}: {text}", effect_of(kernel, text)))
                if ENDS.match(text):
                    kernel.blocks.append([])
    return kernel
