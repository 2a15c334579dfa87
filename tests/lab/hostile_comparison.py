"""Comparisons in which every text is hostile."""

from __future__ import annotations

from typing import Any

from lab.sample_comparison import sample_comparison
from lab.sample_verdict import sample_verdict

# Texts that do no harm at any place.
HOSTILE = [
    "</script><script>alert(1)</script><!--",
    "<img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(1)>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "${7*7} `alert(1)`",
    "&lt;b&gt; &amp; &#60;script&#62;",
    "</style><style>*{display:none}</style>",
    "]]><!DOCTYPE html>",
    "nul \x00 bell \x07 escape \x1b[31m",
    "right to left \u202e txet \u202d",
    "שלום עולם",
    "z̷̧̛̗̭̲͎̪̔̈́̋̀͑a̸͖͓͇̺͊̀̅l̵̡̛͙g̶̫̈́o",
    "\ud800 half a pair",
    "\u2028 line \u2029 paragraph",
    '=HYPERLINK("http://example.invalid")',
    "\\input{/etc/passwd} 100% $x_1^2$ #1 ~ & {}",
    "a" * 400,
    "two\nlines\tand a tab",
    "",
]


def hostile_comparison(text: str) -> dict[str, Any]:
    """Return a comparison in which every free text, and one score's name, is `text`."""
    comparison = sample_comparison("dates", 2)
    for trial in comparison["trials"]:
        trial["score"] = text if trial["score"] == "gatv2" else trial["score"]
    comparison["scores"][-1] = text
    comparison["formulas"] = dict.fromkeys(comparison["scores"], text)
    comparison["step_ms"] = {text: {"median": 1.0, "low": 0.9, "high": 1.1}}
    comparison["task"] |= {"name": text, "description": text, "summary": {text: text}}
    comparison["settings"] |= {"note": text, text: [text]}
    comparison |= {"command": text, "code": text, "created": text}
    comparison["machine"]["processor"] = text
    comparison["trials"].append({"score": text, "seed": 7, "learning_rate": 0.1, "failure": text})
    for example in comparison["examples"]:
        example["source"][0] = text
        example["references"] = [text]
        example["answers"][text] = example["answers"].pop("gatv2")
        example["answers"][text]["output"][0] = text
    comparison["verdict"] = sample_verdict(comparison)
    comparison["verdict"]["warnings"] = [text]
    comparison["verdict"]["sentences"] = [text]
    comparison["verdict"]["recommendation"] = {"score": text, "sentence": text}
    return comparison
