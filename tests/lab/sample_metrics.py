"""A made-up, deterministic `metrics.json`, as a comparison writes it, for tests of reports."""

from __future__ import annotations

import math
import random
from typing import Any

from anyscore.lab.tokens import GLUE, tokenise

FORMULAS = {
    "scaled_dot": "q·k / √d",
    "bilinear": "qᵀ W k",
    "additive": "w·tanh(W_q q + W_k k)",
    "gaussian": "−‖q − k‖² / 2σ²",
    "gatv2": "w·leaky_relu(W_q q + W_k k)",
}
# For each score: test exact match, chrF, BLEU, ms per step, MiB, attention parameters, and how
# sharply its weights look at one place.
DATES: dict[str, tuple[float, float, float, float, float | None, int, float]] = {
    "scaled_dot": (0.878, 93.6, 84.2, 21.4, 61.2, 0, 1.2),
    "bilinear": (0.934, 96.8, 90.7, 23.0, 61.9, 16_384, 2.0),
    "additive": (0.962, 98.3, 94.6, 39.8, 118.4, 32_896, 2.6),
    "gaussian": (0.906, 95.1, 87.5, 36.5, 96.0, 1, 1.6),
    "gatv2": (0.952, 97.9, 93.5, 35.2, 117.9, 32_896, 2.3),
}
SENTENCES: dict[str, tuple[float, float, float, float, float | None, int, float]] = {
    "scaled_dot": (0.014, 27.4, 9.1, 88.1, None, 0, 0.8),
    "bilinear": (0.016, 31.2, 11.0, 93.3, None, 16_384, 1.1),
    "additive": (0.022, 34.9, 13.2, 141.0, None, 32_896, 1.5),
    "gaussian": (0.012, 29.0, 9.9, 131.5, None, 1, 0.9),
    "gatv2": (0.020, 34.1, 12.8, 128.7, None, 32_896, 1.4),
}
# A date as written, the ISO date, and where year, month and day stand in it.
WRITTEN = [
    ("30 mars 2024", "2024-03-30", "2024", "mars", "30"),
    ("١٤ أغسطس ٢٠١٩", "2019-08-14", "٢٠١٩", "أغسطس", "١٤"),
    ("2007年11月3日", "2007-11-03", "2007", "11", "3"),
    ("मंगलवार, 5 फ़रवरी 1991", "1991-02-05", "1991", "फ़रवरी", "5"),
    ("Donnerstag, 21. Dezember 2023", "2023-12-21", "2023", "Dezember", "21"),
    ("15\u200f/9\u200f/1988", "1988-09-15", "1988", "9", "15"),
    ("ថ្ងៃអង្គារ ទី ៦ មិថុនា ឆ្នាំ ២០០០", "2000-06-06", "២០០០", "មិថុនា", "៦"),
    ("martes, 28 de octubre de 1975", "1975-10-28", "1975", "octubre", "28"),
]
# English words, French words, and for each French word the English one it translates.
TRANSLATED = [
    ("She does not like the cold winter", "Elle n'aime pas l'hiver froid", [0, 2, 3, 2, 4, 6, 5]),
    ("We are going to the sea tomorrow", "Nous allons à la mer demain", [0, 2, 3, 4, 5, 6]),
    ("Where is the old book ?", "Où est le vieux livre ?", [0, 1, 2, 3, 4, 5]),
    ("<b>stop</b> & think", "<b>stop</b> & réfléchis", list(range(10))),
]


def sample_metrics(kind: str = "dates") -> dict[str, Any]:
    """Five scores on dates (characters; exact match tells) or sentences (words; chrF tells)."""
    table = DATES if kind == "dates" else SENTENCES
    return {
        "format": 1,
        "anyscore": "0.1.0",
        "created": "2026-11-20T10:00:00+00:00",
        "interrupted": False,
        "machine": {
            "device": "cpu",
            "processor": "Example CPU at 3.1 GHz",
            "threads": 2,
            "python": "3.11.7",
            "torch": "2.13.0",
        },
        "task": _task(kind),
        "settings": {
            "scores": list(table),
            "seed": 0,
            "epochs": 6,
            "batch_size": 64,
            "hidden": 128,
        },
        "scores": [_score(kind, name, row) for name, row in table.items()],
    }


def _task(kind: str) -> dict[str, Any]:
    sizes = {"train": 4000, "valid": 500, "test": 500}
    if kind == "dates":
        return {
            "name": "dates",
            "description": "Dates in 60 languages → ISO 8601",
            "unit": "character",
            **sizes,
            "source_vocabulary": 312,
            "target_vocabulary": 15,
        }
    return {
        "name": "eng-fra.tsv",
        "description": "Sentence pairs of eng-fra.tsv",
        "unit": "word",
        **sizes,
        "source_vocabulary": 2113,
        "target_vocabulary": 2890,
    }


def _score(kind: str, name: str, row: tuple[Any, ...]) -> dict[str, Any]:
    exact, chrf, bleu, step, memory, parameters, sharpness = row
    noise = random.Random(f"{kind} {name}")
    rate = 0.35 + 0.25 * sharpness
    floor = 0.02 if kind == "dates" else 2.9
    epochs = []
    for epoch in range(1, 7):
        learned = 1 - math.exp(-rate * epoch)
        loss = floor + (5.5 if floor > 1 else 2.4) * math.exp(-rate * epoch)
        valid = exact * max(0.0, learned * 1.04 - 0.04 - 0.6 * math.exp(-1.5 * rate * epoch))
        epochs.append(
            {
                "epoch": epoch,
                "train_loss": loss * (1 + 0.02 * noise.random()),
                "valid_loss": loss * 1.08 + 0.03 * noise.random(),
                "valid_exact_match": round(valid * 500) / 500,
                "seconds": step * 0.0625,
            }
        )
    examples = _dates(name, sharpness) if kind == "dates" else _sentences(name, sharpness)
    return {
        "name": name,
        "formula": FORMULAS[name],
        "parameters": 331_407 + parameters,
        "score_parameters": parameters,
        "finished": True,
        "step_ms": step,
        "peak_memory_mib": memory,
        "epochs": epochs,
        "test": {"exact_match": exact, "chrf": chrf, "bleu": bleu},
        "examples": examples,
    }


def _dates(name: str, sharpness: float) -> list[dict[str, Any]]:
    examples = []
    for number, (text, iso, year, month, day) in enumerate(WRITTEN):
        spans = [(text.rindex(part), len(part)) for part in (year, month)]
        if month == "9":
            spans[1] = (text.index("/9") + 1, 1)
        spans.append((text.index(day), len(day)))
        looks = []  # one place in the source for each output character
        for part, width in enumerate((4, 2, 2)):
            start, length = spans[part]
            looks += [start + min(length - 1, i * length // width) for i in range(width)]
            looks.append(start + length)  # the hyphen, or the end, looks past the field
        output = list(iso)
        if name == "scaled_dot" and number in (3, 6):
            output[6], output[9] = "9", "8"
        if name == "gaussian" and number == 6:
            output[6] = "7"
        examples.append(_example(name, list(text), output, [iso], looks, sharpness))
    return examples


def _sentences(name: str, sharpness: float) -> list[dict[str, Any]]:
    examples = []
    for number, (english, french, looks) in enumerate(TRANSLATED):
        source, output = tokenise(english, "word"), tokenise(french, "word")
        if name != "additive" and number == 0:
            output = [*output[:5], GLUE + "froid", "hiver"]
        places = [*looks, len(source) - 1]
        examples.append(_example(name, source, output, [french], places, sharpness))
    return examples


def _example(
    name: str,
    source: list[str],
    output: list[str],
    references: list[str],
    looks: list[int],
    sharpness: float,
) -> dict[str, Any]:
    noise = random.Random(f"{name} {''.join(source)}")
    weights = []
    for place in looks:
        logits = [
            sharpness * (2.2 * math.exp(-0.9 * abs(k - place)) + 0.35 * noise.gauss(0, 1)) * 1.4
            for k in range(len(source))
        ]
        total = sum(math.exp(x) for x in logits)
        weights.append([math.exp(x) / total for x in logits])
    return {"source": source, "output": output, "references": references, "weights": weights}
