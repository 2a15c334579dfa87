"""The page of recorded weights as a file: content, size and refusals."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anyscore import record
from anyscore.plot.heatmaps import explore
from anyscore.plot.recording import Recording
from anyscore.torch import MultiHeadAttention, SelfAttention

pytestmark = pytest.mark.sample


def weights(*shape: int) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(0).exponential(size=shape) ** 3
    return x / x.sum(-1, keepdims=True)


def data(path: Path) -> dict[str, Any]:
    text = path.read_text("utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def unpacked(levels: int, example: dict[str, Any]) -> np.ndarray[Any, Any]:
    packed = np.frombuffer(base64.b64decode(example["weights"]), np.uint8)
    return (packed.reshape(example["shape"]) / levels) ** 2


def test_it_holds_all_weights_to_the_error_that_it_states(tmp_path: Path) -> None:
    one, two = weights(3, 4, 6, 9), weights(3, 1, 5, 5)
    path = explore({"one": one, "two": torch.tensor(two)}, path=tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    found = data(path)
    assert found["examples"] == 3
    for layer, wanted in zip(found["layers"], (one, two), strict=True):
        for i in range(3):
            shown = unpacked(found["levels"], layer["examples"][i])
            assert np.abs(shown - wanted[i]).max() <= 0.004
            assert np.abs(np.sqrt(shown) - np.sqrt(wanted[i])).max() <= 1 / 508 + 1e-6
    assert [layer["name"] for layer in found["layers"]] == ["one", "two"]


def test_twelve_layers_of_eight_heads_and_sixty_tokens_are_small(tmp_path: Path) -> None:
    """The page of one example is below 1 MB, the page of five below 5 MB."""
    tokens = [f"token{i}" for i in range(60)]
    for examples, most in ((1, 1e6), (5, 5e6)):
        layers = {f"encoder.layers.{i}.self_attn": weights(examples, 8, 60, 60) for i in range(12)}
        page = explore(layers, tokens, path=tmp_path / "page.html")
        assert page.stat().st_size < most


def test_a_recording_with_labels(tmp_path: Path) -> None:
    model, x = torch.nn.Sequential(SelfAttention(4, 4), SelfAttention(4, 4)), torch.randn(2, 3, 4)
    with record(model) as recording:
        model(x)
    labels = [["a", "b", "c"], ["d", "e", "f"]]
    for queries, keys in (
        (labels, None), (labels, labels), ({"0": labels, "1": labels}, None),
    ):  # fmt: skip
        found = data(explore(recording, queries, keys, tmp_path / "page.html"))
        for layer in found["layers"]:
            for example, wanted in zip(layer["examples"], labels, strict=True):
                assert example["queries"] == example["keys"] == wanted
    found = data(explore(recording, None, ["x", "y", "z"], tmp_path / "page.html"))
    assert found["layers"][1]["examples"][1]["queries"] is None
    assert found["layers"][1]["examples"][1]["keys"] == ["x", "y", "z"]
    found = data(explore(recording, {"0": labels}, path=tmp_path / "page.html"))
    assert found["layers"][1]["examples"][0]["queries"] is None


@pytest.mark.parametrize(
    ("heads", "examples", "numbers"),
    [
        ([0, 2], [2], ([0, 2], [2])), (1, -1, ([1], [-1])), (None, None, (None, None)),
        (slice(1, None), slice(-2, None), ([1, 2, 3], [-2, -1])),
        (slice(None, None, -2), slice(2), ([-1, -3], [0, 1])),
    ],
)  # fmt: skip
def test_chosen_heads_and_examples_keep_their_numbers(
    tmp_path: Path, heads: Any, examples: Any, numbers: tuple[Any, Any]
) -> None:
    model = MultiHeadAttention(8, 4)
    with record(model, heads=heads, examples=examples) as recording:
        for _ in range(2):
            model(torch.randn(3, 5, 8))
    found = data(explore(recording, path=tmp_path / "page.html"))
    assert (found["layers"][0]["heads"], found["numbers"]) == numbers
    assert found["examples"] == 2 * len(numbers[1] or range(3))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("  a", "␣␣a"), ("a ", "a␣"), ("a", "a"), (" a b ", "␣a b␣"), ("\u200b", "⟨U+200B⟩"),
        ("a\u202eb", "a⟨U+202E⟩b"), ("\x07", "⟨U+0007⟩"), ("نمی\u200cدانم", "نمی\u200cدانم"),
    ],
)  # fmt: skip
def test_what_cannot_be_seen_is_written(tmp_path: Path, text: str, seen: str) -> None:
    found = data(explore({"a": weights(1, 2)}, [text], path=tmp_path / "page.html"))
    assert found["layers"][0]["examples"][0]["queries"] == [seen]


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        (None, TypeError, "path must name a file, got None"),
        ("", ValueError, "path is empty: expected the name of a file"),
        (".", IsADirectoryError, r"path '\.' is a folder: add the name of a file"),
        ("lost/page.html", FileNotFoundError, "the folder 'lost' does not exist: make it first"),
    ],
)
def test_a_path_that_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, error: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        explore(W, path=path)
    assert list(tmp_path.iterdir()) == []


def test_it_asks_nothing_of_a_network(tmp_path: Path) -> None:
    text = explore({"a": weights(2, 2)}, path=tmp_path / "page.html").read_text("utf-8")
    assert "default-src 'none'" in text
    assert re.findall(r"(?:src|href)=\"(?!data:,)", text) == []
    assert "http:" not in text
    assert "https:" not in text


@given(st.text(min_size=1), st.text())
def test_hostile_texts_stay_texts(tmp_path_factory: pytest.TempPathFactory, a: str, b: str) -> None:
    check_hostile(tmp_path_factory.getbasetemp() / "hostile.html", a, b)


@pytest.mark.parametrize(
    "text",
    ["</script><script>alert(1)</script>", "<!--<script>", "@@data@@", "\u202eabc", "🦊\u200d",
     "\x00", "\ud800", "&amp;", "]]>", "\u2028"],
)  # fmt: skip
def test_chosen_hostile_texts(tmp_path: Path, text: str) -> None:
    check_hostile(tmp_path / "page.html", text, text)


def check_hostile(path: Path, a: str, b: str) -> None:
    page = explore({a: weights(1, 2)}, [b], ["x", "y"], path, title=a)
    text = page.read_bytes().decode("utf-8")
    assert text.count("<script") == text.count("</script>") == 2
    assert text.count("<!--") == 0
    found = data(page)
    (label,) = found["layers"][0]["examples"][0]["queries"]
    assert label == b or "⟨U+" in label or "␣" in label or set(label) <= set("∅⏎⇥")
    assert not any(ord(c) < 32 for c in label)


def test_nan_is_told_apart_from_zero(tmp_path: Path) -> None:
    x = np.array([[0.0, 1.0], [np.nan, 0.5]])
    example = data(explore({"a": x}, path=tmp_path / "page.html"))["layers"][0]["examples"][0]
    assert list(base64.b64decode(example["weights"])) == [0, 254, 255, 180]


W = {"a": weights(2, 1, 3, 4)}


@pytest.mark.parametrize(
    ("recording", "options", "error", "message"),
    [
        (W, {"queries": ["x"] * 4}, ValueError, "queries has 4 labels, but layer 'a' has 3 "),
        (W, {"keys": ["x"] * 3}, ValueError, "keys has 3 labels, but layer 'a' has 4 keys"),
        (W, {"keys": [["x"] * 4]}, ValueError, "keys has labels of 1 examples, but 2 were"),
        (W, {"keys": [["x"] * 4, ["x"]]}, ValueError, "in example 1"),
        (W, {"keys": "abcd"}, TypeError, "keys must be a list of texts.*'abcd'"),
        (W, {"keys": 5}, TypeError, "keys must be a list of texts"),
        (W, {"queries": [1, 2, 3]}, TypeError, "queries must be a list of texts"),
        (W, {"queries": ["a", "b", 3]}, TypeError, "queries must be texts, got 3"),
        ({}, {}, ValueError, "the mapping is empty"),
        (Recording(["a"]), {}, ValueError, "the recording is empty"),
        ({"a": np.ones(3)}, {}, ValueError, r"a has shape \(3,\)"),
        ({"a": np.ones((0, 3))}, {}, ValueError, "nothing to show"),
        ({"a": np.ones((0, 1, 3, 3))}, {}, ValueError, "no examples"),
        ({"a": np.full((2, 2), 3.0)}, {}, ValueError, "a has weights from 3 to 3, expected from 0"),
        ({"a": -W["a"]}, {}, ValueError, "expected from 0 to 1"),
        ({"a": np.array([["x"]])}, {}, TypeError, "its elements are"),
        ({"a": weights(2, 2), "b": weights(2, 1, 2, 2)}, {}, ValueError, "'a' has 1 examples"),
        ({"a": np.broadcast_to(np.float32(0), (8000, 8000))}, {}, ValueError, "64,000,000 weights"),
        ([1], {}, TypeError, "explore shows what `record` gave"),
        (W, {"queries": {"b": ["x"] * 3}}, ValueError, "queries has labels of 'b', .* of 'a'"),
        (W, {"keys": {0: ["x"] * 4}}, ValueError, "keys has labels of 0, expected of 'a'"),
        (W, {"title": None}, TypeError, "title must be a text, got None"),
        ({"a": [[0.5], [0.5, 0.5]]}, {}, TypeError, "a is .*, expected an array of weights"),
        ({"a": "text"}, {}, TypeError, "a is 'text', expected an array of weights"),
    ],
)  # fmt: skip
def test_what_is_refused(
    tmp_path: Path, recording: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        explore(recording, **options, path=tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = explore(W, path=tmp_path / "page.html")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        explore({"b": weights(2, 2)}, path=path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
