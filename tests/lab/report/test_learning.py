"""Learning curves and alignments in the report."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anyscore.lab.data.tokens import GLUE
from anyscore.lab.report.alignments import Label, label
from lab.parsed_report import parsed, rows, section, words
from lab.sample_comparison import sample_comparison


@pytest.fixture
def page(tmp_path: Path) -> Callable[[dict[str, Any]], Any]:
    """Return a function that writes and parses the report of a comparison."""
    return lambda comparison: parsed(comparison, tmp_path)


def test_curves(page: Any) -> None:
    comparison = sample_comparison()
    comparison["trials"][0]["epochs"][1]["valid_loss"] = float("nan")
    found = section(page(comparison), "How did training go?")
    panels = found.xpath('.//div[@class="panel"]')
    assert len(panels) == 10
    solid = './/g[@class="layer"]/path[not(@stroke-dasharray or @transform)]'
    dashed = './/g[@class="layer"]/path[@stroke-dasharray]'
    assert [len(p.xpath(solid)) for p in panels] == [5] * 10
    assert [len(p.xpath(dashed)) for p in panels] == [0] * 5 + [5] * 5
    assert len(found.xpath('.//g[@id="all-match"]/path[not(@transform)]')) == 25
    last = panels[9].xpath(solid)[0]  # scaled_dot, seed 0
    assert len(re.findall("[ML]", last.get("d"))) == 5
    dots = panels[0].xpath('.//g[@class="layer"]/path/@transform')
    tested = [float(dot.removeprefix("translate(").split()[0]) for dot in dots]
    lines = [re.findall(r"[ML] ([\d.]+)", line.get("d")) for line in panels[0].xpath(solid)]
    last_points = zip(lines, (4, 5, 5, 5, 5), strict=True)
    assert tested == [float(line[place]) for line, place in last_points]
    assert re.match(
        r"additive: 9\d\.\d % right after", panels[0].xpath("./svg")[0].get("aria-label")
    )
    numbers = rows(found.xpath(".//details//table")[0])
    assert len(numbers) == 25
    assert numbers[0][:5] == ["scaled_dot", "0", "0.004", "6", "5"]


def test_weights_are_the_text_of_cells(page: Any) -> None:
    comparison = sample_comparison()
    found = page(comparison)
    for number, name in ((0, "additive"), (3, "scaled_dot"), (5, "gatv2")):
        example = comparison["examples"][number]
        block = found.xpath('//div[@class="example"]')[number]
        (heat,) = [h for h in block.xpath('.//div[@class="heat"]') if words(h).startswith(name)]
        (table,) = heat.xpath('.//table[contains(@class, "weights")]')
        answer = example["answers"][name]
        columns = [words(th) for th in table.xpath("./thead/tr/th")]
        assert columns[:-1] == answer["output"]
        assert columns[-1] == "⏎end of output"
        for k, row in enumerate(table.xpath("./tbody/tr")):
            shown = [words(td) for td in row.xpath("td")]
            assert shown == [str(round(100 * weights[k])) for weights in answer["weights"]]
        assert (heat.xpath('.//span[@class="wrong"]') != []) is not answer["right"]


def test_long_examples_are_lists(page: Any) -> None:
    comparison = sample_comparison()
    source = [f"w{i}" for i in range(300)]
    weights = [[1.0 if k == t else 0.0 for k in range(300)] for t in range(300)]
    answer = {"output": source, "weights": weights, "right": True}
    comparison["examples"][0] = {"source": source, "references": [], "answers": {"gatv2": answer}}
    block = page(comparison).xpath('//div[@class="example"]')[0]
    (table,) = block.xpath('.//table[@class="looks"]')
    assert rows(table)[41] == ["w41", "w41 token 42, 100 %"]
    assert len(rows(table)) == 200
    assert "100 more tokens not shown" in words(block)


def test_malformed_weights_are_shown_as_they_are(page: Any) -> None:
    comparison = sample_comparison()
    answer = comparison["examples"][0]["answers"]["gatv2"]
    answer["weights"][0][0] = float("nan")
    answer["weights"][1] = answer["weights"][1][:3]
    answer["weights"][2][0] = 7.0
    block = page(comparison).xpath('//div[@class="example"]')[0]
    table = block.xpath('.//table[contains(@class, "weights")]')[1]
    first = rows(table)[0]
    assert first[1] == "?"
    assert first[3] == "700"
    assert rows(table)[5][2] == "?"


@pytest.mark.parametrize(
    ("token", "unit", "text", "name"),
    [
        ("a", "character", "a", "a"),
        (" ", "character", "␣", "space"),
        ("\u202f", "character", "␣", "narrow no-break space"),
        ("\u200f", "character", "RLM", "right-to-left mark"),
        ("\x07", "character", "U+0007", "u+0007"),
        ("\u093c", "character", "◌\u093c", "◌\u093c"),
        ("</s>", "word", "⏎", "end of output"),
        (GLUE + "hiver", "word", "hiver", "hiver"),
        ("▁un", "subword", "▁un", "▁un"),
    ],
)
def test_labels_can_be_seen(token: str, unit: str, text: str, name: str) -> None:
    assert label(token, unit) == Label(text, name)
