"""One HTML file that shows a comparison: words, a table, curves and alignments.

Everything is inside the file, plotly.js too, so it can be mailed or archived and opens without a
network; its content security policy forbids any request.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import unicodedata
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from anyscore.lab.files import write_whole
from anyscore.lab.pace import Pace, budget
from anyscore.lab.summary import judged_by, margin, paces_shown, ranked, summarise
from anyscore.lab.tokens import SPECIALS, detokenise, normalise

# Marks that cannot be seen, by the short names their code charts use.
_UNSEEN = {
    "\u00ad": "SHY",
    "\u061c": "ALM",
    "\u200b": "ZWSP",
    "\u200c": "ZWNJ",
    "\u200d": "ZWJ",
    "\u200e": "LRM",
    "\u200f": "RLM",
    "\u2060": "WJ",
    "\ufeff": "BOM",
}
_END = SPECIALS[2]


def write_report(metrics: dict[str, Any], path: Path) -> None:
    """Write the report of ``metrics`` (the content of ``metrics.json``) to ``path``.

    An existing file is replaced whole or, if anything goes wrong, left as it was.

    Raises:
        RunFailure: the file cannot be written.
    """
    write_whole(path, _render(metrics).encode("utf-8", errors="replace"))


def _render(metrics: dict[str, Any]) -> str:
    environment = Environment(
        loader=PackageLoader("anyscore.lab"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    loader = environment.loader
    assert loader is not None
    # Style sheet and script are ours and stand in the page as they are.
    style, script = (
        Markup(loader.get_source(environment, name)[0]) for name in ("report.css", "report.js")
    )
    environment.filters["number"] = _number
    environment.filters["formula"] = _formula
    names = [score["name"] for score in metrics["scores"]]
    environment.filters["named"] = lambda sentence: _named(sentence, names)
    scores = _in_order(metrics)
    paces = paces_shown(metrics)
    return environment.get_template("report.html.j2").render(
        metrics=metrics,
        scores=scores,
        colours={score["name"]: i for i, score in enumerate(metrics["scores"])},
        best=_best(scores, paces),
        paces=paces,
        measure=judged_by(metrics),
        summary=summarise(metrics),
        items=_items(metrics),
        command=_command(metrics),
        style=style,
        script=script,
        plotly=Markup(get_plotlyjs()),
        data=_embed(_payload(metrics)),
    )


def _in_order(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The scores, best first, those not tested last."""
    return [*ranked(metrics), *(s for s in metrics["scores"] if s["test"] is None)]


def _best(scores: list[dict[str, Any]], paces: dict[str, Pace]) -> dict[str, float]:
    """The best value of each column of the table that has one."""
    best = {}
    for column in ("exact_match", "chrf", "bleu"):
        values = [s["test"][column] for s in scores if s["test"] is not None]
        if len(values) > 1:
            best[column] = max(values)
    for column in ("step_ms", "peak_memory_mib", "parameters", "score_parameters"):
        values = [s[column] for s in scores if s[column] is not None and s["test"] is not None]
        if len(values) > 1:
            best[column] = min(values)
    if len(paces) > 1:
        best["pace"] = min(budget(found) for found in paces.values())
    return best


def _payload(metrics: dict[str, Any]) -> dict[str, Any]:
    """What the page's script draws."""
    measure = judged_by(metrics)
    unit = metrics["task"]["unit"]
    scores = []
    for score in metrics["scores"]:
        tested = score["test"] is not None
        scores.append(
            {
                "name": score["name"],
                "epochs": score["epochs"],
                "step_ms": score["step_ms"],
                "quality": score["test"][measure] if tested else None,
                # Half the margin of a difference between two such scores: bars that just part
                # stand for scores that differ.
                "margin": margin(score, score, metrics) / 2 if tested else None,
                "examples": [_example(e, unit) for e in score["examples"]],
            }
        )
    return {
        "measure": measure,
        "unit": unit,
        "order": [score["name"] for score in _in_order(metrics)],
        "scores": scores,
        "sources": [
            [_label(token, unit) for token in e["source"]] for e in _shared_examples(metrics)
        ],
    }


def _shared_examples(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The test items shown, as the score that has most of them tells them."""
    return max((score["examples"] for score in metrics["scores"]), key=len, default=[])


def _items(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The test items to choose from: source, references, and how many scores were right."""
    unit = metrics["task"]["unit"]
    items = []
    for number, shared in enumerate(_shared_examples(metrics)):
        outputs = [s["examples"][number] for s in metrics["scores"] if number < len(s["examples"])]
        items.append(
            {
                "source": detokenise(shared["source"], unit),
                "references": shared["references"],
                "right": sum(_right(output, unit) for output in outputs),
                "of": len(outputs),
            }
        )
    return items


def _example(example: dict[str, Any], unit: str) -> dict[str, Any]:
    tokens = _without_end(example["output"])
    labels = [_label(token, unit) for token in tokens]
    labels += [_label(_END, unit)] * (len(example["weights"]) - len(labels))
    return {
        "output": labels[: len(example["weights"])],
        "text": detokenise(tokens, unit),
        "right": _right(example, unit),
        "weights": [[round(w, 6) for w in row] for row in example["weights"]],
    }


def _right(example: dict[str, Any], unit: str) -> bool:
    text = normalise(detokenise(_without_end(example["output"]), unit))
    return text in {normalise(reference) for reference in example["references"]}


def _without_end(tokens: list[str]) -> list[str]:
    return tokens[:-1] if tokens[-1:] == [_END] else tokens


def _label(token: str, unit: str) -> list[str]:
    """What stands on an axis for a token, and what the hover calls it."""
    if token == _END:
        return ["⏎", "end of output"]
    text = detokenise([token], unit)
    if len(text) != 1:
        return [text, text]
    category = unicodedata.category(text)
    if text == " ":
        return ["␣", "space"]
    if category[0] in "ZC":
        name = unicodedata.name(text, f"U+{ord(text):04X}").lower()
        return ["␣" if category[0] == "Z" else _UNSEEN.get(text, f"U+{ord(text):04X}"), name]
    if category[0] == "M":  # a vowel sign or accent needs something to sit on
        return [f"◌{text}", f"◌{text}"]
    return [text, text]


def _command(metrics: dict[str, Any]) -> str:
    """The command line that repeats the comparison: as typed, if known."""
    if metrics.get("command"):
        return str(metrics["command"])
    settings, task = metrics["settings"], metrics["task"]
    words = ["anyscore", "compare"]
    if task["name"] != "dates":
        words.append(shlex.quote(task["name"]))
    for name in ("scores", "seed", "epochs", "batch_size", "hidden"):
        if name in settings:
            value = settings[name]
            value = ",".join(value) if isinstance(value, list) else str(value)
            words.append(f"--{name.replace('_', '-')} {shlex.quote(value)}")
    return " ".join(words)


def _named(sentence: str, names: list[str]) -> Markup:
    """The sentence with the names of scores and options set off, numbers kept with their units."""
    sentence = re.sub(r"(?<=\d) (?=%|ms|points|epoch|times|s\b)", "\u00a0", sentence)
    longest_first = sorted(names, key=len, reverse=True)
    parts = re.split(rf"(?<!\w)(--\w+|{'|'.join(map(re.escape, longest_first))})(?!\w)", sentence)
    for i, part in enumerate(parts):
        option = part.startswith("--")
        kind = '<span class="option">{}</span>' if option else "<b>{}</b>" if i % 2 else "{}"
        parts[i] = Markup(kind).format(part)  # splitting leaves what was found at odd places
    return Markup("").join(parts)


def _formula(text: str) -> Markup:
    """The formula with the subscripts of its letters, as in W_q, set low."""
    parts = re.split(r"(?<=\b[^\W\d_])_(\w)\b", text)
    return Markup("").join(
        Markup("<sub>{}</sub>" if i % 2 else "{}").format(part) for i, part in enumerate(parts)
    )


def _number(value: float | None, digits: int = 0) -> str:
    return "—" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def _embed(data: dict[str, Any]) -> Markup:
    """JSON that is safe inside a script element; what is not a number becomes null."""
    text = json.dumps(_finite(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
