"""Masks of models of every kind keep their meaning for every reader; see `sweep.py`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BertModel, GitModel, LlamaModel
from transformers.masking_utils import causal_mask_function, eager_mask, or_masks, sdpa_mask

import anyscore.hf
from anyscore.hf.interval_mask import IntervalMask
from anyscore.hf.masks import interval_mask
from frameworks.hf.sweep import problems, small_model

anyscore.hf.register()
FAST = "GitModel", "InformerModel"
KINDS = (
    "BartModel",  # an encoder and a decoder
    "BertModel",  # keys on both sides
    "BigBirdPegasusModel",  # blocks, by a layer of its own
    "CLIPModel",  # pictures and texts
    "DeepseekV3Model",  # latent keys
    "Gemma2Model",  # caps and windows
    "GptOssModel",  # sinks
    "LlamaModel",  # causal
    "LongT5Model",  # a position bias
    "Qwen2MoeModel",  # experts
    "SwitchTransformersModel",  # an encoder and a decoder of experts
    "ViTModel",  # pictures
    "WhisperModel",  # sound
)


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("name", [*FAST, *KINDS])
def test_a_mask_hides_the_same_as_in_eager(name: str) -> None:
    """`register` and `use` hide the same keys as `eager`."""
    assert list(problems(*small_model(name))) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["GitModel", "Gemma2Model"])
def test_a_mask_hides_the_same_when_compiled(name: str) -> None:
    model, inputs = small_model(name)
    inputs = {"input_ids": inputs["input_ids"], "use_cache": False}
    later = inputs["input_ids"].clone()
    later[:, 5:] = 7
    model.set_attn_implementation("anyscore")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    with torch.no_grad():
        found, changed, expected = (
            f(**{**inputs, "input_ids": ids}).last_hidden_state[:, :5]
            for f, ids in ((compiled, inputs["input_ids"]), (compiled, later), (model, later))
        )
    torch.testing.assert_close(changed, found)
    torch.testing.assert_close(found, expected)


WAYS: dict[str, dict[str, Any]] = {
    "intervals": {},
    "a static cache": {"q_offset": torch.tensor(0)},
    "a function of the user": {
        "mask_function": or_masks(causal_mask_function, lambda b, h, q, k: (q + k) % 3 == 0),
        "use_vmap": True,
    },
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_models_kept_from_sdpa_get_floats(way: str, dtype: torch.dtype) -> None:
    call = {"config": GitModel.config_class(), "dtype": dtype, **WAYS[way]}
    found = interval_mask(2, 5, 5, **call)
    assert found is not None
    assert found.dtype == dtype
    assert torch.equal(torch.zeros(2, 1, 5, 5, dtype=dtype) + found, eager_mask(2, 5, 5, **call))


class MineConfig(LlamaModel.config_class):  # type: ignore[misc]
    """Config of a user's own model."""


@pytest.mark.parametrize("cls", [BertModel.config_class, LlamaModel.config_class, MineConfig])
def test_models_that_take_sdpa_get_booleans(cls: Any) -> None:
    found = interval_mask(2, 5, 5, config=cls())
    assert found is not None
    assert found.dtype == torch.bool


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_booleans_added_to_scores_hide(dtype: torch.dtype) -> None:
    """Booleans hide keys in a part of a mask too, on either side of the sum, and in place."""
    scores = torch.randn(2, 3, 5, 5, dtype=dtype)
    floats = eager_mask(2, 5, 5, dtype=dtype)
    assert torch.equal(scores + interval_mask(2, 5, 5), scores + floats)
    assert torch.equal(interval_mask(2, 5, 5) + scores, floats + scores)
    part = interval_mask(2, 5, 5)[:, :, 2:, :4].expand(2, 3, 3, 4).clone()
    assert isinstance(part, IntervalMask)
    assert torch.equal(scores[:, :, 2:, :4] + part, scores[:, :, 2:, :4] + floats[:, :, 2:, :4])
    assert torch.equal(scores.clone().add_(interval_mask(2, 5, 5)), scores + floats)


def test_booleans_among_booleans_stay_booleans() -> None:
    full = sdpa_mask(2, 5, 5, allow_is_causal_skip=False)
    assert full is not None
    assert torch.equal(interval_mask(2, 5, 5) + full, full)
    assert torch.equal(interval_mask(2, 5, 5) * 2.0, full * 2.0)
    assert torch.equal(~interval_mask(2, 5, 5) * -9.0, ~full * -9.0)
