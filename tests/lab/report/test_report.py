"""The report states the verdict, the pairs, the scores and the method."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.parsed_report import parsed, rows, section, words
from lab.sample_comparison import sample_comparison
from lab.sample_verdict import sample_verdict


@pytest.fixture
def page(tmp_path: Path) -> Callable[[dict[str, Any]], Any]:
    """Return a function that writes and parses the report of a comparison."""
    return lambda comparison: parsed(comparison, tmp_path)


def without(comparison: dict[str, Any], **failed: str) -> dict[str, Any]:
    """Return the comparison in which every trial of the named scores failed."""
    for trial in comparison["trials"]:
        if trial["score"] in failed:
            for name in ("test", "epochs", "best_epoch"):
                trial.pop(name, None)
            trial["failure"] = failed[trial["score"]]
    for example in comparison["examples"]:
        for name in failed:
            del example["answers"][name]
    comparison["verdict"] = sample_verdict(comparison)
    return comparison


def test_it_begins_with_the_verdict_and_the_forest_plot(page: Any) -> None:
    found = page(sample_comparison())
    headings = [words(h2) for h2 in found.xpath("//h2")]
    assert headings == [
        "Which score should I use?",
        "How far apart are they?",
        "How good is each score, and what does it cost?",
        "How did training go?",
        "Where does each score look?",
        "How was this done?",
        "How do I use a score in my model?",
    ]
    first = found.xpath('//main//svg[not(contains(@class, "mark"))]')[0]
    assert first.xpath('ancestor::table[@class="forest"]')
    verdict = sample_comparison()["verdict"]
    said = [words(li).replace("\u00a0", " ") for li in found.xpath('//ul[@class="summary"]/li')]
    assert said == verdict["sentences"]
    assert words(found.xpath('//p[@class="note"]')[0]) == f"Warning: {verdict['warnings'][0]}"
    assert words(found.xpath('//p[@class="advice"]')[0]) == "Recommendation: Take additive."


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        ({"leaked": {}}, "test items, which training never used."),
        ({"leaked": {"test": 0}}, "test items, which training never used."),
        ({"leaked": {"test": 38}}, "test items; training has the sources of 38 of them too."),
        (None, "test items."),  # of a user's own function the page knows nothing
    ],
)
def test_what_training_used_is_said_as_it_is_known(page: Any, summary: Any, said: str) -> None:
    comparison = sample_comparison()
    comparison["task"]["summary"] = summary
    (intro,) = page(comparison).xpath('//p[@class="intro"]')
    assert words(intro).replace("\u00a0", " ").endswith(said)


def test_nothing_is_said_twice(page: Any) -> None:
    comparison = sample_comparison()
    verdict = comparison["verdict"]
    verdict["sentences"] += [*verdict["warnings"], verdict["recommendation"]["sentence"]]
    text = words(section(page(comparison), "Which"))
    for sentence in (*verdict["warnings"], "Recommendation: Take additive."):
        assert text.count(sentence) == 1


def marks(picture: Any) -> list[tuple[str | None, ...]]:
    """Return shape and colours of each mark in a picture, without the rings of seeds."""
    found = picture.xpath(".//path[@transform and not(@fill-opacity)]")
    return [tuple(map(x.get, ("d", "fill", "stroke"))) for x in found]


def test_forest_plot_is_a_table_of_all_pairs(page: Any) -> None:
    comparison = sample_comparison()
    found = page(comparison)
    (table,) = found.xpath('//table[@class="forest"]')
    key = [marks(mark) for mark in found.xpath('//ul[@class="key"]//svg')]
    assert len({str(mark) for mark in key}) == 3
    found = sorted(comparison["verdict"]["differences"], key=lambda d: -d["difference"])
    assert len(found) == 10
    for row, pair in zip(table.xpath(".//tbody/tr"), found, strict=True):
        cells = [words(cell) for cell in row.xpath("th|td")]
        low, high = (f"{pair[name]:.1f}".replace("-", "−") for name in ("low", "high"))
        assert cells[0] == f"{pair['better']} over {pair['worse']}"
        assert cells[2] == f"{pair['difference']:.1f} {low} to {high}"
        assert marks(row) == key[["differs", "equal"].index(pair["verdict"])]
        assert cells[4].startswith(
            {"differs": "differ", "equal": "no difference larger"}[row.get("class")]
        )


def test_forest_plot_is_drawn_to_scale(page: Any) -> None:
    comparison = sample_comparison()
    (table,) = page(comparison).xpath('//table[@class="forest"]')
    row = table.xpath(".//tbody/tr")[0]
    pair = max(comparison["verdict"]["differences"], key=lambda d: d["difference"])
    ticks = {words(t): float(t.get("x")) for t in table.xpath(".//thead//text")}
    scale = (ticks["10"] - ticks["0"]) / 10

    def at(place: str) -> float:
        return (float(place) - ticks["0"]) / scale

    def marked(which: str) -> list[float]:
        transforms = row.xpath(f".//path[@transform and {which}]/@transform")
        return [at(x.removeprefix("translate(").split()[0]) for x in transforms]

    (interval,) = row.xpath('.//g[@class="layer"]/path[not(@transform)]')
    _, low, _, _, high, _ = interval.get("d").split()
    assert at(low) == pytest.approx(pair["low"], abs=0.02)
    assert at(high) == pytest.approx(pair["high"], abs=0.02)
    assert marked("@fill") == pytest.approx([pair["difference"]], abs=0.02)
    (zero,) = row.xpath('.//g[@class="grid"]/path[@stroke="var(--soft)"]')
    assert at(zero.get("d").split()[1]) == pytest.approx(0, abs=0.02)
    seeds = {s["score"]: s["seeds"] for s in comparison["verdict"]["standings"]}
    assert marked("@fill-opacity=0") == pytest.approx(
        [seeds[pair["better"]][s] - seeds[pair["worse"]][s] for s in "01234"], abs=0.02
    )


def test_undecided_says_what_would_decide(page: Any) -> None:
    comparison = sample_comparison()
    pair = comparison["verdict"]["differences"][0]
    pair |= {"verdict": "undecided", "bound": None, "more_seeds": 1, "more_items": None}
    row = "//table[@class='forest']//tr[@class='undecided']"
    (said,) = page(comparison).xpath(f"{row}/td[last()]")
    assert words(said) == "undecided about 1 more seed would decide"
    pair |= {"more_seeds": None, "more_items": 2000}
    found = page(comparison)
    (row,) = found.xpath(row)
    assert words(row.xpath("td")[-1]) == "undecided about 2,000 test items in all would decide"
    assert marks(row) == marks(found.xpath('//ul[@class="key"]//svg')[2])
    assert row.xpath('.//g[@class="layer"]/path/@stroke-dasharray')


def test_one_seed_has_no_p(page: Any) -> None:
    found = page(sample_comparison(seeds=1))
    table = found.xpath('//table[@class="forest"]')[0]
    assert {row[3] for row in rows(table)} == {"p = —"}
    assert not table.xpath('.//path[@fill-opacity="0"]')
    assert "One seed gives no p" in words(section(found, "How far"))
    assert "One seed" not in words(section(page(sample_comparison()), "How far"))


def test_table_of_scores(page: Any) -> None:
    comparison = sample_comparison()
    table = page(comparison).xpath('//table[@class="scores"]')[0]
    best = comparison["verdict"]["standings"][0]
    each = " ".join(f"{value:.1f}" for value in best["seeds"].values())
    interval = f"{best['mean']:.1f}{best['low']:.1f} to {best['high']:.1f}"
    first = rows(table)[0]
    assert first[0].startswith("additivew·tanh(Wq q + Wk k)")
    assert first[1:4] == [interval, "", each]
    assert first[6:] == ["39.838.6 to 41.8", "116.0", "364,30332,896"]
    bold = table.xpath(".//tbody//td[position() > 3]/b")
    assert {"21.4", "61.2", "331,407"} <= {words(b) for b in bold}


def test_what_was_not_measured_is_a_dash(page: Any) -> None:
    comparison = sample_comparison()
    comparison["step_ms"] = {}
    for trial in comparison["trials"]:
        trial["peak_memory_mib"] = None
    table = page(comparison).xpath('//table[@class="scores"]')[0]
    assert {tuple(row[6:8]) for row in rows(table)} == {("—", "—")}


def test_a_measure_that_is_zero_everywhere_is_left_out(page: Any) -> None:
    comparison = sample_comparison()
    assert "BLEU" in words(page(comparison).xpath('//table[@class="scores"]/thead')[0])
    for trial in comparison["trials"]:
        trial["test"]["bleu"] = 0.0
    assert "BLEU" not in words(page(comparison))


def test_learning_rates_are_shown_where_there_are_several(page: Any) -> None:
    comparison = sample_comparison(seeds=2)
    assert "another learning rate" not in words(page(comparison))
    extra = dict(comparison["trials"][0]) | {"learning_rate": 0.012}
    extra["test"] = {"exact_match": 50.0, "chrf": 50.0, "bleu": 40.0}
    comparison["trials"].append(extra)
    found = page(comparison)
    heading = '//h3[contains(., "another learning")]'
    (table,) = found.xpath(f"{heading}/following::table[1]")
    assert ["scaled_dot", "0.012", "1", "50.0"] in rows(table)
    panels = found.xpath(f'{heading}/following::svg[@role="img"]/@aria-label')
    assert any(re.fullmatch(r"scaled_dot: 87\.\d+ at 0\.004, 50 at 0\.012", x) for x in panels)
    chrf = {row[0][:10]: row[4] for row in rows(found.xpath('//table[@class="scores"]')[0])}
    assert chrf["scaled_dot"] == "93.3"  # trials of the usual rate alone


def test_a_measure_of_the_users_own(page: Any) -> None:
    comparison = sample_comparison(seeds=2)
    for trial in comparison["trials"]:
        trial["test"] = {"tour_length": 0.25, "exact_match": 0.5}
    comparison["verdict"] |= {"measure": "exact_match", "title": "exact match"}
    table = page(comparison).xpath('//table[@class="scores"]')[0]
    assert "tour length" in words(table.xpath("./thead")[0])
    assert rows(table)[0][4] == "0.250"
    comparison["verdict"] |= {"measure": "tour_length", "title": "tour length"}
    head = words(page(comparison).xpath('//table[@class="scores"]/thead')[0])
    assert "Tour length0–100" in head
    assert "Exact match%" in head


def test_failed_trials_say_why(page: Any) -> None:
    comparison = without(sample_comparison(seeds=2), gaussian="the loss became nan")
    del comparison["step_ms"]["gaussian"]
    found = page(comparison)
    note = words(section(found, "Which"))
    assert "2 trials failed and are not counted: gaussian, seed 0: the loss became nan" in note
    last = rows(found.xpath('//table[@class="scores"]')[0])[-1]
    assert last[0].startswith("gaussian 2 trials failed")
    assert set(last[1:]) == {"—", ""}
    assert len(rows(found.xpath('//table[@class="forest"]')[0])) == 6


def test_one_score_alone(page: Any) -> None:
    names = ("scaled_dot", "bilinear", "gaussian", "gatv2")
    comparison = sample_comparison()
    comparison["scores"] = ["additive"]
    comparison["trials"] = [t for t in comparison["trials"] if t["score"] not in names]
    comparison["verdict"] = sample_verdict(comparison)
    found = page(comparison)
    assert "compares 1 attention score on" in words(found)
    assert not found.xpath('//table[@class="forest"]')
    assert len(rows(found.xpath('//table[@class="scores"]')[0])) == 1


def test_nothing_finished(page: Any) -> None:
    comparison = sample_comparison(seeds=1)
    comparison |= {"trials": [], "examples": [], "step_ms": {}, "interrupted": True, "code": ""}
    comparison["verdict"] = sample_verdict(comparison)
    found = page(comparison)
    assert "Interrupted." in words(found)
    assert "No score can be recommended" in words(found.xpath('//p[@class="advice"]')[0])
    assert [words(h2) for h2 in found.xpath("//h2")][1:] == [
        "How good is each score, and what does it cost?",
        "How was this done?",
    ]
    assert len(found.xpath('//em[. = "not finished"]')) == 5


def test_a_training_of_the_users_own(page: Any) -> None:
    comparison = sample_comparison()
    for name in ("machine", "command", "formulas", "step_ms", "code", "created", "anyscore"):
        del comparison[name]
    comparison |= {"task": {}, "settings": {}, "examples": []}
    found = page(comparison)
    assert words(found.xpath("//h1")[0]) == "Attention scores compared"
    assert "was trained with each of them, 5 times" in words(found.xpath("//header")[0])
    assert not found.xpath("//pre")
    assert len(rows(found.xpath('//table[@class="forest"]')[0])) == 10


def test_how_it_was_done(page: Any) -> None:
    comparison = sample_comparison()
    found = section(page(comparison), "How was this done?")
    facts = {words(dt): words(dt.getnext()) for dt in found.xpath(".//dt")}
    for key, value in comparison["settings"].items():
        assert facts[key.replace("_", " ")] == str(value)
    assert facts["pairs"] == "14,012"
    for file in comparison["task"]["summary"]["files"]:
        assert facts[f"{file['part']} file"].startswith(
            f"{file['file']}, {file['bytes']:,} bytes, "
        )
    assert facts["processor"] == "Example CPU at 3.1 GHz"
    assert words(found.xpath(".//pre")[0]) == comparison["command"]
    code = page(comparison).xpath('//pre[@class="code"]/code')[0]
    assert code.text_content() == comparison["code"]
