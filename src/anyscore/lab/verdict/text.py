"""The verdict in plain sentences, and the lines of code that use its recommendation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anyscore.lab.phrases import at_most, counted, listed, number, percent, rounded
from anyscore.lab.verdict.convergence import no_recommendation
from anyscore.layers.parameters import has_hidden
from anyscore.score import SCORES

FEWEST_NUMBERS = 3
"""The seeds that show a spread of results of one number each."""
_MANY = 4  # differences described one by one
_ONE_SEED = "With one seed, a difference may be due to that seed alone. Use 5 seeds or more."


def conclude(
    verdict: Mapping[str, Any], costs: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the recommendation and all sentences, the most important first.

    Args:
        verdict: the result of `judge`, without its sentences.
        costs, sizes: see `judge`.
    """
    standings = verdict["standings"]
    if not standings:
        sentence = "No trial has finished, so there is no verdict."
        return {"recommendation": {"score": None, "sentence": sentence}, "sentences": [sentence]}
    if len(standings) == 1:
        only = standings[0]
        sentence = "A comparison needs two scores or more."
        reached = f"{only['score']} reached {value(only, verdict)}."
        return {
            "recommendation": {"score": None, "sentence": sentence},
            "sentences": [reached, sentence],
        }
    advised = recommendation(verdict, costs, sizes)
    sentences = [_first(verdict), *_settled(verdict), *_cost(costs)]
    return {
        "recommendation": advised,
        "sentences": [*sentences, *verdict["warnings"], advised["sentence"]],
    }


def value(standing: Mapping[str, Any], verdict: Mapping[str, Any]) -> str:
    """Return a score's mean with its interval, in words."""
    decimals = verdict["decimals"]
    mean = f"{number(standing['mean'], decimals)} {verdict['unit']} of {verdict['title']}"
    if len(standing["seeds"]) == 1:
        return f"{mean} with one seed"
    if standing["low"] is None:
        return f"{mean} with every seed"
    return f"{mean} ({interval(standing, verdict['level'], decimals)})"


def interval(record: Mapping[str, Any], level: float, decimals: int) -> str:
    """Return an interval, as in "95 %: 0.9 to 2.6"."""
    low, high = (number(record[end], decimals) for end in ("low", "high"))
    return f"{percent(level)}: {low} to {high}"


def difference(record: Mapping[str, Any], title: str, level: float, decimals: int) -> str:
    """Describe the difference of two scores."""
    a, b = record["better"], record["worse"]
    if record["difference"] is None:
        return f"{a} against {b} is undecided: {_unknown(record)}."
    points, trials = f"{number(record['difference'], decimals)} points", _trials(record)
    span = interval(record, level, decimals)
    if record["verdict"] == "differs":
        p = "p < 0.001" if record["holm"] < 0.001 else f"p = {record['holm']:.2g}"
        return f"{a} beats {b} by {points} of {title} ({span}; {trials}; Holm {p})."
    if record["verdict"] == "equal":
        bound = f"{at_most(record['bound'], decimals)} points"
        how = f"{percent(level)}; {trials}"
        return f"{a} and {b} differ by at most {bound} of {title} ({how})."
    return f"{a} against {b} is undecided: {points} of {title} ({span}; {trials}). {_more(record)}."


def _unknown(record: Mapping[str, Any]) -> str:
    """Say why the spread of a difference is unknown."""
    if record["seeds"] < 2:
        return "they share fewer than two seeds"
    if record["seeds"] < FEWEST_NUMBERS:
        return f"one number for the whole test set needs {FEWEST_NUMBERS} seeds or more"
    return (
        "every seed gave the same difference. Let training depend on the seed, or return a result "
        "for each test item"
    )


def _trials(record: Mapping[str, Any]) -> str:
    """Return the seeds and items of a difference, in words."""
    seeds = counted(record["seeds"], "seed")
    return seeds if record["items"] < 2 else f"{seeds} × {record['items']:,} items"


def _more(record: Mapping[str, Any]) -> str:
    """Name the seeds or items that would decide a difference."""
    if record["more_seeds"] is not None:
        return f"About {counted(record['more_seeds'], 'more seed')} would decide it"
    if record["more_items"] is not None:
        items = f"{rounded(record['more_items'])} items"
        return f"More seeds would not decide it; a test set of about {items} would"
    return "Neither 100 seeds nor 100 times as many test items would decide it"


def unbeaten(verdict: Mapping[str, Any]) -> list[str]:
    """Return the unbeaten scores, best first."""
    beaten = {d["worse"] for d in verdict["differences"] if d["verdict"] == "differs"}
    return [s["score"] for s in verdict["standings"] if s["score"] not in beaten]


def _between(verdict: Mapping[str, Any], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the differences between these scores."""
    return [d for d in verdict["differences"] if {d["better"], d["worse"]} <= set(names)]


def _first(verdict: Mapping[str, Any]) -> str:
    """Describe the beaten and the unbeaten scores."""
    names = [s["score"] for s in verdict["standings"]]
    top, best = unbeaten(verdict), verdict["standings"][0]
    beaten = [name for name in names if name not in top]
    reached = f"has the highest mean, {value(best, verdict)}."
    if top == [best["score"]]:
        return f"{top[0]} beats every other score. It {reached}"
    reached = f"{best['score']} {reached}"
    if len(top) == 1:
        return f"{top[0]} beats every other score. {reached}"
    kinds = {d["verdict"] for d in _between(verdict, top)}
    every = len(top) == len(names) and len(top) > 2
    if kinds == {"equal"}:
        bound = max(d["bound"] for d in _between(verdict, top))
        among = "All scores" if every else listed(top)
        within = at_most(bound, verdict["decimals"])
        sentence = f"{among} are equal within {within} points."
    elif every:
        sentence = "It is undecided which score is best."
    else:
        sentence = f"It is undecided which of {listed(top)} is {_best(top)}."
    also = f" Another score beats {listed(beaten)}." if beaten else ""
    return f"{sentence}{also} {reached}"


def _best(names: Sequence[str]) -> str:
    """Return "better" of two names, "best" of more."""
    return "better" if len(names) == 2 else "best"


def _settled(verdict: Mapping[str, Any]) -> list[str]:
    """Describe the largest settled differences, and the trials that would settle the rest."""
    differences = verdict["differences"]
    settled = [d for d in differences if d["verdict"] == "differs"]
    settled.sort(key=lambda d: -d["difference"])
    sentences = [d["sentence"] for d in settled[:_MANY]]
    if len(settled) > _MANY:
        rest = len(settled) - _MANY
        sentences.append(f"The report has {counted(rest, 'more difference')}.")
    open_ones = [d for d in differences if d["verdict"] == "undecided"]
    if open_ones and open_ones[0]["difference"] is None:
        return [*sentences, _ONE_SEED if open_ones[0]["seeds"] < 2 else open_ones[0]["sentence"]]
    if len(open_ones) <= 2:
        return [*sentences, *(d["sentence"] for d in open_ones)]
    decidable = sorted(
        (d for d in open_ones if d["more_seeds"] is not None), key=lambda d: d["more_seeds"]
    )
    sentence = f"{len(open_ones)} of {len(differences)} pairs are undecided."
    if decidable:
        least, most = decidable[0], decidable[-1]
        sentence += f" About {counted(least['more_seeds'], 'more seed')} would decide "
        sentence += f"{least['better']} against {least['worse']}"
        if most["more_seeds"] > least["more_seeds"]:
            sentence += f", and {most['more_seeds']} would decide "
            sentence += f"{most['better']} against {most['worse']}"
        sentence += "."
    return [*sentences, sentence]


def _cost(costs: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Describe the scores that are cheapest in time per step, if intervals are disjoint."""
    if len(costs) < 2:
        return []
    order = sorted(costs, key=lambda name: costs[name]["median"])
    least, most = costs[order[0]], costs[order[-1]]
    if most["low"] <= least["high"]:
        time = f"{least['median']:.3g} ms"
        return [f"A training step takes about the same time with every score ({time})."]
    level = [name for name in order if costs[name]["low"] <= least["high"]]
    ratio = most["median"] / least["median"]
    return [
        f"A training step is fastest with {listed(level)} ({least['median']:.3g} ms; 95 %: "
        f"{least['low']:.3g} to {least['high']:.3g}) and slowest with {order[-1]} "
        f"({ratio:.2f} times as long)."
    ]


def recommendation(
    verdict: Mapping[str, Any], costs: Mapping[str, Mapping[str, float]], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Recommend a score: the cheapest of the unbeaten ones, if they are known to be equal."""
    if verdict["warnings"]:
        return {"score": None, "sentence": no_recommendation(verdict["warnings"])}
    top = unbeaten(verdict)
    if len(top) == 1:
        return {"score": top[0], "sentence": f"Recommendation: take {top[0]}."}
    names = [s["score"] for s in verdict["standings"]]
    cheapest, why = _cheapest(top, names, costs, sizes)
    if all(d["verdict"] == "equal" for d in _between(verdict, top)):
        return {
            "score": cheapest,
            "sentence": f"Recommendation: take {cheapest}. Of the equal scores it {why}.",
        }
    seeds = [d["more_seeds"] for d in _between(verdict, top) if d["more_seeds"] is not None]
    pair = "" if len(top) == 2 else " the first pair"
    more = f" About {counted(min(seeds), 'more seed')} may decide{pair}." if seeds else ""
    return {
        "score": None,
        "sentence": f"No recommendation: it is undecided which of {listed(top)} is {_best(top)}."
        f"{more} Until then, {cheapest} is a reasonable choice: it {why}.",
    }


def _cheapest(
    names: Sequence[str],
    order: Sequence[str],
    costs: Mapping[str, Mapping[str, float]],
    sizes: Mapping[str, int],
) -> tuple[str, str]:
    """Return the score with the significantly cheaper step, else the smallest; and the reason."""
    if all(name in costs for name in names):
        first = min(names, key=lambda name: costs[name]["median"])
        level = [name for name in names if costs[name]["low"] <= costs[first]["high"]]
        if len(level) == 1:
            return first, f"has the fastest training step ({costs[first]['median']:.3g} ms)"
        names = level
    if all(name in sizes for name in names) and len({sizes[name] for name in names}) > 1:
        first = min(names, key=lambda name: (sizes[name], order.index(name)))
        return first, f"has the fewest parameters of its own ({sizes[first]:,})"
    return names[0], "has the highest mean"


def example_code(score: str | None) -> str | None:
    """Return example code for a model with the score; None if the score is not anyscore's."""
    if score not in SCORES:
        return None
    hidden = ", hidden=128" if has_hidden(SCORES[score]) else ""
    return f"""\
import torch
from anyscore.torch import Attention

attention = Attention("{score}"{hidden}, d_q=128, d_k=128)

query, key, value = torch.randn(4, 10, 128), torch.randn(4, 50, 128), torch.randn(4, 50, 128)
lengths = torch.tensor([50, 20, 7, 50])  # number of keys of each sequence; the rest is padding
output = attention(query, key, value, valid_lens=lengths)  # (4, 10, 128)
"""
