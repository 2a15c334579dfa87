"""Configs of transformers' models hold exchanged scores, and `load` reads these."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    BertPreTrainedModel,
    CLIPConfig,
    CLIPModel,
    CLIPVisionModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

from anyscore.hf import attention_layers, load, use
from helpers.hf_models import WORDS

_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_TEXT = {**_SIZES, "vocab_size": WORDS}
_IMAGE = {**_SIZES, "image_size": 8, "patch_size": 4}
IDS = torch.randint(3, WORDS, (2, 7))
PIXELS = torch.randn(2, 3, 8, 8)


def bert(**options: Any) -> Any:
    return BertModel(BertConfig(**_TEXT, **options)).eval()


def clip() -> Any:
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return CLIPModel(CLIPConfig(text_config={**_TEXT, **ids}, vision_config=_IMAGE)).eval()


def saved(model: Any, folder: Path) -> Path:
    """Save a model whose scores have parameters far from initial ones; return the folder."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if ".anyscore." in name:
                p.add_(3)
    model.save_pretrained(folder)
    return folder


class AttentionPooling(nn.Module):
    """By this class's name, transformers concludes that models of this file cannot be switched."""

    def forward(self, x: Any) -> Any:
        return x.mean(1)


class Classifier(BertPreTrainedModel):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.bert, self.pool = BertModel(config), AttentionPooling()
        self.post_init()

    def forward(self, ids: Any) -> Any:
        return self.pool(self.bert(ids)[0])


def test_models_of_one_config_keep_their_own_scores(tmp_path: Path) -> None:
    config = BertConfig(**_TEXT)
    untouched = BertModel(config)
    models = {score: use(BertModel(config), score).eval() for score in ("additive", "bilinear")}
    for score, model in models.items():
        again = load(BertModel, saved(model, tmp_path / score))
        assert {x["score"] for x in again.config.anyscore.values()} == {score}
        assert torch.equal(again(IDS)[0], model(IDS)[0])
        assert all(getattr(m, "config", model.config) is model.config for m in model.modules())
    assert not hasattr(untouched.config, "anyscore")
    assert untouched.config._attn_implementation != "anyscore"


def test_models_that_transformers_would_not_switch(tmp_path: Path) -> None:
    assert not Classifier._can_set_attn_implementation()
    model = use(Classifier(BertConfig(**_TEXT)), "additive").eval()
    assert model.bert.config._attn_implementation == "anyscore"
    model(IDS).square().sum().backward()
    slopes = [p.grad for n, p in model.named_parameters() if "w_v" in n]
    assert all(x is not None and x.norm() > 0 for x in slopes)
    assert torch.equal(load(Classifier, saved(model, tmp_path))(IDS), model(IDS))


def test_what_the_files_lack_is_drawn_as_in_a_new_model(tmp_path: Path) -> None:
    bert().save_pretrained(tmp_path)
    config = use(bert(), "gaussian").config
    model, info = load(BertModel, tmp_path, config=config, output_loading_info=True)  # type: ignore[misc]
    there = {n: p for n, p in model.named_parameters() if ".anyscore." in n}
    assert there.keys() == info["missing_keys"]
    for n, p in use(bert(), "gaussian").named_parameters():
        if ".anyscore." in n:
            assert torch.equal(there[n], p)
    assert not use(bert(), "gaussian")(IDS)[0].isnan().any()


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "anyscore", None])
@pytest.mark.parametrize("cls", [BertModel, AutoModel])
def test_the_implementation_that_is_asked_for(
    cls: Any, implementation: str | None, tmp_path: Path
) -> None:
    folder = saved(use(bert(), "additive"), tmp_path)
    model = load(cls, folder, attn_implementation=implementation)
    assert model.config._attn_implementation == (implementation or "anyscore")
    assert "encoder.layer.0.attention.self" in model.config.anyscore


@pytest.mark.parametrize("cls", [BertModel, AutoModel])
def test_a_config_as_a_path(cls: Any, tmp_path: Path) -> None:
    model = use(bert(), "additive")
    folder = saved(model, tmp_path)
    for config in (folder, str(folder)):
        assert torch.equal(load(cls, folder, config=config)(IDS)[0], model(IDS)[0])


@pytest.mark.parametrize("cls", [BertForSequenceClassification, AutoModelForSequenceClassification])
def test_options_of_the_config(cls: Any, tmp_path: Path) -> None:
    folder = saved(use(bert(), "additive"), tmp_path)
    options = {"hidden_dropout_prob": 0.3, "output_hidden_states": True}
    model, info = load(
        cls, folder, id2label={0: "a", 1: "b", 2: "c"}, output_loading_info=True, **options
    )
    assert type(model) is BertForSequenceClassification
    assert model.classifier.out_features == 3
    assert model.config.hidden_dropout_prob == 0.3
    assert len(model(IDS).hidden_states) == 3
    assert info["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert load(cls, folder, num_labels=5).classifier.out_features == 5


def test_classes_of_a_part(tmp_path: Path) -> None:
    model = use(clip(), "additive")
    folder = saved(model, tmp_path)
    assert torch.equal(load(CLIPVisionModel, folder)(PIXELS)[0], model.vision_model(PIXELS)[0])
    given = {"input_ids": IDS, "pixel_values": PIXELS}
    again = load(AutoModel, folder)
    assert torch.equal(again(**given).logits_per_image, model(**given).logits_per_image)
    assert [hasattr(x, "anyscore") for x in (model.config, model.config.text_config)] == [0, 1]


def test_a_part_of_a_model_of_parts(tmp_path: Path) -> None:
    """Scores of a part load if `use` got the whole model and layers=, not if `use` got the part."""
    config = LlavaConfig(
        text_config={"model_type": "llama", **_TEXT},
        vision_config={"model_type": "clip_vision_model", **_IMAGE},
    )
    model = LlavaForConditionalGeneration(config).eval()
    use(model, "additive", layers="model.language_model")
    assert list(model.config.text_config.anyscore) == ["layers.0.self_attn", "layers.1.self_attn"]
    again = load(LlavaForConditionalGeneration, saved(model, tmp_path / "whole"))
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    model = clip()
    use(model.vision_model, "additive")
    folder = saved(model, tmp_path / "part")
    with pytest.raises(ValueError, match=r"score of vision_model.*give it the whole that is saved"):
        load(CLIPModel, folder)
    use(model, "gaussian", layers="text_model")  # writes the scores of both parts
    again = load(CLIPModel, saved(model, tmp_path / "both"))
    layers = attention_layers(again).values()
    assert [str(x.anyscore.extra_repr())[:8] for x in layers] == ["Gaussian"] * 2 + ["Additive"] * 2


@pytest.mark.parametrize("cls", [nn.Linear, AutoTokenizer, "an instance", "BertModel"])
def test_what_is_no_class_of_models(cls: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"cls is .*, expected a model class of transformers, or"):
        load(bert() if cls == "an instance" else cls, tmp_path)


@pytest.mark.parametrize(
    "said",
    [
        [1],
        "additive",
        {"encoder.layer.0.attention.self": "additive"},
        {"encoder.layer.0.attention.self": {}},
        {"encoder.layer.0.attention.self": {"score": ["additive"]}},
        {"encoder.layer.0.attention.self": {"score": "additive", "options": [1]}},
    ],
)
def test_a_damaged_config_is_told_in_a_sentence(tmp_path: Path, said: Any) -> None:
    folder = saved(use(bert(), "additive"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"anyscore": said}))
    with pytest.raises(ValueError, match=r"the config says .* of the scores: expected .* put back"):
        load(BertModel, folder)
