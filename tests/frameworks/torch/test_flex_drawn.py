"""`flex_attention` agrees with PyTorch's for 1,000 mods that are composed at random."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.flex import assert_same, eager, gradients, ours

DRAWS, SHARE = 1000, 40
Mod = Callable[..., Any]


def written(operation: Mod, x: Any, result: Any, *more: Any) -> Any:
    """Call an operation in place, drop what it returns, and return the tensor that it wrote."""
    operation(x, *more)
    return result


def everywhere(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Return true of every pair, as a tensor that other operations may write to."""
    return (b >= 0) & (h >= 0) & (i >= 0) & (j >= 0)


class Draw:
    """A call: tensors, a score_mod of composed parts, and a mask_mod; `parts` names the parts."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        rng, self.parts = self.rng, [f"seed {seed}"]
        self.batch, self.key_heads = rng.randint(1, 3), rng.randint(1, 2)
        self.heads = self.key_heads * rng.randint(1, 3)
        self.queries, self.keys = rng.randint(1, 14), rng.randint(1, 17)
        of_keys = rng.choice((1, self.batch, self.batch))
        width, of_values = rng.randint(1, 9), rng.randint(1, 5)
        self.leaves: list[Tensor] = []
        self.tensors = (
            self.leaf(self.batch, self.heads, self.queries, width),
            self.leaf(of_keys, self.key_heads, self.keys, width),
            self.leaf(of_keys, self.key_heads, self.keys, of_values),
        )
        self.scale = rng.choice((None, 0.4, -0.2))
        self.masks = False
        steps = [self.step() for _ in range(rng.randint(0, 5))]

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            for step in steps:
                s = step(s, b, h, i, j)
            return s

        self.score_mod = score_mod if steps else None
        keep = self.condition(rng.randint(1, 3))

        def mask_mod(b: Any, h: Any, i: Any, j: Any) -> Any:
            return keep(b, h, i, j)

        self.mask_mod = mask_mod if rng.random() < 0.5 else None

    def leaf(self, *shape: int) -> Tensor:
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64).requires_grad_()
        self.leaves.append(x)
        return x

    def pick(self, among: dict[str, Callable[[], Mod]]) -> Mod:
        name = self.rng.choice(list(among))
        self.parts.append(name)
        return among[name]()

    def step(self) -> Mod:
        """Return a part (s, b, h, i, j) → s. Masked scores stay −∞ in parts after a mask."""
        kinds = [self.bias, self.bias, self.factor, self.cap, self.other]
        if self.masks:
            kinds = [self.bias]
        if self.rng.random() < 0.2:
            self.masks = True
            return self.mask()
        return self.rng.choice(kinds)()

    def factor(self) -> Mod:
        c, learned = self.rng.choice((0.5, -1.5, 2.0, 0.0)), self.leaf
        return self.pick(
            {
                "number": lambda: lambda s, *_: s * c,
                "number before": lambda: lambda s, *_: c * s,
                "division": lambda: lambda s, *_: s / 1.7,
                "tensor ()": lambda: lambda s, *_: torch.tensor(c) * s,
                "negation": lambda: lambda s, *_: -s,
                "in place": lambda: lambda s, *_: written(s.mul_, c, s),
                "copy in place": lambda: (
                    lambda s, *_: (lambda x: written(x.div_, 1.7, x))(s.clone())
                ),
                "keyword": lambda: lambda s, *_: torch.mul(s, other=c),
                "learned": lambda: (lambda t: lambda s, *_: t * s)(learned()),
                "heads": lambda: (lambda t: lambda s, b, h, *_: s * t[h])(learned(self.heads)),
                "queries": lambda: (lambda t: lambda s, b, h, i, j: s * t[b, i])(
                    learned(self.batch, self.queries)
                ),
                "keys": lambda: (lambda t: lambda s, b, h, i, j: torch.mul(s, t[j]))(
                    learned(self.keys)
                ),
            }
        )

    def bias(self) -> Mod:
        far, learned = self.queries + self.keys, self.leaf
        c, of = self.rng.choice((0.1, -0.3, 1.0)), self.rng.randint(1, 4)
        value = self.pick(
            {
                "distance": lambda: lambda b, h, i, j: c * (i - j),
                "|distance|": lambda: lambda b, h, i, j: (j - i).abs() * c,
                "distance²": lambda: lambda b, h, i, j: (i - j) ** 2 / 60,
                "ALiBi": lambda: (lambda t: lambda b, h, i, j: t[h] * (j - i))(learned(self.heads)),
                "relative": lambda: (lambda t: lambda b, h, i, j: t[h, j - i + self.queries])(
                    learned(self.heads, far)
                ),
                "clipped": lambda: (lambda t: lambda b, h, i, j: t[(i - j).clamp(-of, of) + of])(
                    learned(2 * of + 1)
                ),
                "key": lambda: (lambda t: lambda b, h, i, j: t[b, j])(
                    learned(self.batch, self.keys)
                ),
                "query": lambda: (lambda t: lambda b, h, i, j: t[h, i])(
                    learned(self.heads, self.queries)
                ),
                "head": lambda: (lambda t: lambda b, h, i, j: t[h])(learned(self.heads)),
                "batch": lambda: (lambda t: lambda b, h, i, j: t[b] * c)(learned(self.batch)),
                "table": lambda: (lambda t: lambda b, h, i, j: t[h, i, j])(
                    learned(self.heads, self.queries, self.keys)
                ),
                "learned number": lambda: (lambda t: lambda *_: t)(learned()),
                "integers": lambda: lambda b, h, i, j: i // of - j // 2 + (i + j) % 3,
                "boolean": lambda: lambda b, h, i, j: (i > j) * c,
            }
        )
        if self.masks:
            return lambda s, *at: s + value(*at)
        return self.rng.choice(
            (
                lambda s, *at: s + value(*at),
                lambda s, *at: value(*at) + s,
                lambda s, *at: s - value(*at),
                lambda s, *at: value(*at) - s,
                lambda s, *at: torch.add(s, value(*at)),
                lambda s, *at: torch.add(s, other=value(*at), alpha=1),
                lambda s, *at: written(s.add_, value(*at), s),
                lambda s, *at: s.sub_(value(*at)),
            )
        )

    def cap(self) -> Mod:
        c = self.rng.choice((0.7, 2.0, 30.0))
        return self.pick(
            {
                "softcap": lambda: lambda s, *_: c * torch.tanh(s / c),
                "softcap of another size": lambda: lambda s, *_: torch.tanh(s * c) * 3,
                "learned softcap": lambda: (lambda t: lambda s, *_: t * torch.tanh(s))(self.leaf()),
            }
        )

    def other(self) -> Mod:
        return self.pick(
            {
                "same": lambda: lambda s, *_: s,
                "square": lambda: lambda s, *_: s * s / 4,
                "sine": lambda: lambda s, *_: torch.sin(s),
                "branches": lambda: lambda s, b, h, i, j: torch.where(i > j, s, 0.5 * s),
                "softplus": lambda: lambda s, *_: torch.nn.functional.softplus(s),
            }
        )

    def mask(self) -> Mod:
        keep = self.condition(self.rng.randint(1, 2))
        return self.pick(
            {
                "where": lambda: lambda s, *at: torch.where(keep(*at), s, -math.inf),
                "where not": lambda: lambda s, *at: torch.where(~keep(*at), -math.inf, s),
                "fill": lambda: lambda s, *at: s.masked_fill(~keep(*at), -math.inf),
                "fill in place": lambda: (
                    lambda s, *at: written(s.masked_fill_, ~keep(*at), s, -math.inf)
                ),
                "full_like": lambda: (
                    lambda s, *at: torch.where(keep(*at), s, torch.full_like(s, -math.inf))
                ),
                "added": lambda: lambda s, *at: s + torch.where(keep(*at), 0.0, -math.inf),
            }
        )

    def condition(self, depth: int) -> Mod:
        n = self.rng.randint(0, 5)
        if depth > 1:
            x, y = self.condition(depth - 1), self.condition(depth - 1)
            return self.pick(
                {
                    "and": lambda: lambda *at: x(*at) & y(*at),
                    "or": lambda: lambda *at: x(*at) | y(*at),
                    "logical_and": lambda: lambda *at: torch.logical_and(x(*at), y(*at)),
                    "logical_or": lambda: lambda *at: torch.logical_or(x(*at), y(*at)),
                    "not": lambda: lambda *at: ~x(*at),
                    "and in place": lambda: (
                        lambda *at: (lambda z: written(z.logical_and_, y(*at), z))(
                            x(*at) & everywhere(*at)
                        )
                    ),
                }
            )

        def integers(high: int, *shape: int) -> Tensor:
            return torch.randint(0, high, shape, generator=self.generator)

        return self.pick(
            {
                "causal": lambda: lambda b, h, i, j: i >= j,
                "causal by keyword": lambda: lambda b, h, i, j: torch.ge(i, other=j),
                "shifted": lambda: lambda b, h, i, j: i + n > j,
                "window": lambda: lambda b, h, i, j: (i - j).abs() <= n,
                "windows of heads": lambda: (
                    lambda t: lambda b, h, i, j: (i - j <= t[h]) & (i >= j)
                )(integers(6, self.heads)),
                "prefixes": lambda: (lambda t: lambda b, h, i, j: (j < t[b]) | (i >= j))(
                    integers(6, self.batch)
                ),
                "lengths": lambda: (lambda t: lambda b, h, i, j: t[b] > j)(
                    integers(self.keys + 2, self.batch)
                ),
                "documents": lambda: (lambda t: lambda b, h, i, j: t[i] == t[j])(
                    integers(3, max(self.queries, self.keys)).sort().values
                ),
                "chunks": lambda: lambda b, h, i, j: i // 4 == j // 4,
                "first keys": lambda: lambda b, h, i, j: j < n,
                "queries": lambda: lambda b, h, i, j: i != n,
                "third keys": lambda: lambda b, h, i, j: (i - j) % 3 == 0,
                "odd keys": lambda: lambda b, h, i, j: j % 2 == 1,
                "table of keys": lambda: (lambda t: lambda b, h, i, j: t[b, j])(
                    integers(2, self.batch, self.keys).bool()
                ),
                "mixed documents": lambda: (lambda t: lambda b, h, i, j: t[i].eq(t[j]))(
                    integers(3, max(self.queries, self.keys))
                ),
                "one head": lambda: lambda b, h, i, j: (h == 0) | (j < n),
            }
        )


@pytest.mark.parametrize(
    "start",
    [pytest.param(n, marks=pytest.mark.weekly if n else []) for n in range(0, DRAWS, SHARE)],
)
def test_drawn_mods(start: int) -> None:
    """Some parts of a share fit the kernels, and some are computed by the definition."""
    in_memory = 0
    for seed in range(start, start + SHARE):
        drawn = Draw(seed)
        what = ", ".join(drawn.parts)
        expected = eager(*drawn.tensors, drawn.score_mod, drawn.mask_mod, drawn.scale)
        found, warned = ours(
            *drawn.tensors, drawn.score_mod, block_mask=drawn.mask_mod, scale=drawn.scale
        )
        in_memory += len(warned)
        assert_same(found, expected, what)
        of_ours, of_pytorch = (gradients(x, drawn.leaves) for x in (found, expected))
        if expected[1].isneginf().any():  # PyTorch has NaN behind −∞ of a query without keys
            assert all(x.isfinite().all() for x in of_ours), what
            known = [i for i, x in enumerate(of_pytorch) if x.isfinite().all()]
            of_ours, of_pytorch = ([x[i] for i in known] for x in (of_ours, of_pytorch))
        assert_same(of_ours, of_pytorch, f"{what}: gradients")
    assert SHARE // 10 <= in_memory <= 3 * SHARE // 4
