"""The fuzz draws every score and every mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import find
from hypothesis import strategies as st

import anyscore
from fuzz import mask_specs
from fuzz.formulas import KINDS
from helpers import oracle
from helpers.by_pair import by_pair
from helpers.table_masks import MASKS, RULES
from helpers.table_scores import TABLE
from helpers.table_shapes import SHAPES


@by_pair("name", TABLE)
def test_every_score_is_drawn(name: str) -> None:
    kind, scaled = TABLE[name].kind.__name__, TABLE[name].scaled
    assert kind in KINDS, (
        f"the fuzz does not draw {kind}: give its row in tests/helpers/table_scores.py `scaled=`, "
        "or write its form and slopes in tests/fuzz/formulas.py and name it in BY_HAND there"
    )
    assert scaled is None or TABLE[name].outer == (scaled.outer is not None)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("shape", ["rank_2", "rank_3", "heads", "grouped_6_2"])
def test_formulas_of_masks_are_the_rules_of_the_table(name: str, shape: str) -> None:
    if len(SHAPES[shape].lead) < MASKS[name].rank:
        return
    mask = MASKS[name].make(SHAPES[shape], np.random.default_rng(3), np.asarray)
    if type(mask).__name__ not in RULES:
        return
    sizes = SHAPES[shape].lead, SHAPES[shape].queries, SHAPES[shape].keys
    found = mask_specs.allowed([mask_specs.spec_of(mask)], *sizes)
    np.testing.assert_array_equal(found, oracle.allowed(mask, *sizes))


def test_a_mask_without_a_formula_is_drawn_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = tuple(kind for kind in mask_specs.KINDS if kind != "Keys")
    monkeypatch.setattr(mask_specs, "KINDS", kinds)
    assert mask_specs.of_table()["Keys"] == ["keys", "keys_shared", "keys_full"]
    specs: st.SearchStrategy[Any] = mask_specs.specs((2,), 3, 4)
    (spec,) = find(specs, lambda some: [one.kind for one in some] == ["Keys"])
    made = spec.build(np.asarray)
    assert isinstance(made, anyscore.Keys)
    keep = np.broadcast_to(np.asarray(made.keep)[..., None, :], (2, 3, 4))
    np.testing.assert_array_equal(mask_specs.allowed([spec], (2,), 3, 4), keep)
