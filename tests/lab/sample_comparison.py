"""Made-up comparisons in the form of `comparison.json`, the same at every call."""

from __future__ import annotations

import math
import random
from typing import Any

from anyscore.lab.data.tokens import GLUE, tokenise
from lab.sample_verdict import sample_verdict

FORMULAS = {
    "scaled_dot": "q·k / √d",
    "bilinear": "qᵀ W k",
    "additive": "w·tanh(W_q q + W_k k)",
    "gaussian": "−‖q − k‖² / 2σ²",
    "gatv2": "w·leaky_relu(W_q q + W_k k)",
}
# For each score: share of right answers, chrF, BLEU, ms per step, parameters of the attention, and
# sharpness of the weights.
DATES = {
    "scaled_dot": (0.878, 93.6, 84.2, 21.4, 0, 1.2),
    "bilinear": (0.934, 96.8, 90.7, 23.0, 16_384, 2.0),
    "additive": (0.962, 98.3, 94.6, 39.8, 32_896, 2.6),
    "gaussian": (0.928, 95.1, 87.5, 36.5, 1, 1.6),
    "gatv2": (0.960, 97.9, 93.5, 35.2, 32_896, 2.3),
}
SENTENCES = {
    "scaled_dot": (0.014, 27.4, 9.1, 88.1, 0, 0.8),
    "bilinear": (0.016, 31.2, 11.0, 93.3, 16_384, 1.1),
    "additive": (0.022, 34.9, 13.2, 141.0, 32_896, 1.5),
}
# A written date, the ISO date, and the written year, month and day.
WRITTEN = [
    ("30 mars 2024", "2024-03-30", "2024", "mars", "30"),
    ("١٤ أغسطس ٢٠١٩", "2019-08-14", "٢٠١٩", "أغسطس", "١٤"),
    ("2007年11月3日", "2007-11-03", "2007", "11", "3"),
    ("मंगलवार, 5 फ़रवरी 1991", "1991-02-05", "1991", "फ़रवरी", "5"),
    ("Donnerstag, 21. Dezember 2023", "2023-12-21", "2023", "Dezember", "21"),
    ("15\u200f/9\u200f/1988", "1988-09-15", "1988", "9", "15"),
    ("ថ្ងៃអង្គារ ទី ៦ មិថុនា ឆ្នាំ ២០០០", "2000-06-06", "២០០០", "មិថុនា", "៦"),
]
# English words, French words, and the index of the English word for each French word.
TRANSLATED = [
    ("She does not like the cold winter", "Elle n'aime pas l'hiver froid", [0, 2, 3, 2, 4, 6, 5]),
    ("We are going to the sea tomorrow", "Nous allons à la mer demain", [0, 2, 3, 4, 5, 6]),
    ("<b>stop</b> & think", "<b>stop</b> & réfléchis", list(range(10))),
]


def sample_comparison(kind: str = "dates", seeds: int = 5) -> dict[str, Any]:
    """Return five scores on dates (characters, exact match) or three on sentences (words, chrF)."""
    table = DATES if kind == "dates" else SENTENCES
    trials = [_trial(kind, name, seed) for seed in range(seeds) for name in table]
    comparison = {
        "format": 2,
        "anyscore": "0.1.0",
        "created": "2026-11-20T10:00:00+00:00",
        "command": f"anyscore compare --scores {','.join(table)} --seeds {seeds}",
        "interrupted": False,
        "machine": {
            "device": "cpu",
            "processor": "Example CPU at 3.1 GHz",
            "threads": 1,
            "python": "3.11.7",
            "torch": "2.13.0",
        },
        "task": _task(kind),
        "settings": {
            "model": "recurrent",
            "epochs": 6,
            "batch_size": 64,
            "hidden": 128,
            "learning_rate": 0.004,
            "dropout": 0.1,
            "split_seed": 0,
        },
        "scores": list(table),
        "formulas": {name: FORMULAS[name] for name in table},
        "seeds": list(range(seeds)),
        "trials": trials,
        "step_ms": {
            name: {"median": row[3], "low": row[3] * 0.97, "high": row[3] * 1.05}
            for name, row in table.items()
        },
        "examples": _dates(table) if kind == "dates" else _sentences(table),
        "verdict": {},
        "code": CODE,
    }
    comparison["verdict"] = sample_verdict(comparison)
    return comparison


CODE = """import torch
from anyscore.torch import Attention

attend = Attention("additive", query_dim=128, key_dim=128)
context = attend(query, keys, values)  # (batch, targets, width)
"""


def _task(kind: str) -> dict[str, Any]:
    dates = kind == "dates"
    return {
        "name": "dates" if dates else "eng-fra.tsv",
        "description": "Dates in 60 languages → ISO 8601" if dates else "eng-fra.tsv",
        "unit": "character" if dates else "word",
        "train": 12_000,
        "valid": 1_000,
        "test": 1_000,
        "left_out": 12,
        "source_vocabulary": 611,
        "target_vocabulary": 15,
        "summary": {
            "files": [
                {"part": "train", "file": "made.tsv", "bytes": 401_122, "sha256": 8 * "0af7b2c9"},
                {"part": "test", "file": "test.tsv", "bytes": 50_000, "sha256": 8 * "19e0d3aa"},
            ],
            "pairs": 14_012,
            "distinct_sources": 13_990,
            "longest_source": 34,
        },
    }


def _trial(kind: str, name: str, seed: int) -> dict[str, Any]:
    exact, chrf, bleu, step, parameters, sharpness = (DATES if kind == "dates" else SENTENCES)[name]
    noise = random.Random(f"{kind} {name} {seed}")
    luck = noise.gauss(0, 0.006 if kind == "dates" else 0.002)
    exact = min(1.0, max(0.0, exact + luck))
    rate = 0.35 + 0.25 * sharpness + 0.05 * noise.random()
    floor = 0.02 if kind == "dates" else 2.9
    epochs = []
    for epoch in range(1, 7):
        learned = 1 - math.exp(-rate * epoch)
        loss = floor + (5.5 if floor > 1 else 2.4) * math.exp(-rate * epoch)
        valid = exact * max(0.0, learned * 1.04 - 0.04 - 0.6 * math.exp(-1.5 * rate * epoch))
        epochs.append(
            {
                "epoch": epoch,
                "steps": 188 * epoch,
                "train_loss": loss * (1 + 0.02 * noise.random()),
                "valid_loss": loss * 1.08 + 0.03 * noise.random(),
                "valid_exact_match": round(valid * 500) / 500,
                "seconds": step * 0.0625,
            }
        )
    return {
        "score": name,
        "seed": seed,
        "learning_rate": None,
        "test": {"exact_match": 100 * exact, "chrf": chrf + 60 * luck, "bleu": bleu + 90 * luck},
        "epochs": epochs,
        "best_epoch": 6 if seed else 5,
        "parameters": 331_407 + parameters,
        "score_parameters": parameters,
        "peak_memory_mib": 61.2 + parameters / 600,
    }


def _dates(table: dict[str, Any]) -> list[dict[str, Any]]:
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
            looks.append(min(start + length, len(text) - 1))  # the hyphen attends a place later
        answers = {}
        for name, row in table.items():
            output = list(iso)
            if name == "scaled_dot" and number in (3, 6):
                output[6], output[9] = "9", "8"
            weights = _weights(name, list(text), looks, row[5])
            answers[name] = {"output": output, "weights": weights, "right": output == list(iso)}
        examples.append({"source": list(text), "references": [iso], "answers": answers})
    return examples


def _sentences(table: dict[str, Any]) -> list[dict[str, Any]]:
    examples = []
    for number, (english, french, looks) in enumerate(TRANSLATED):
        source, answers = tokenise(english, "word"), {}
        for name, row in table.items():
            output, right = tokenise(french, "word"), True
            if name != "additive" and number == 0:
                output, right = [*output[:5], GLUE + "froid", "hiver"], False
            weights = _weights(name, source, [*looks, len(source) - 1], row[5])
            answers[name] = {"output": output, "weights": weights, "right": right}
        examples.append({"source": source, "references": [french], "answers": answers})
    return examples


def _weights(name: str, source: list[str], looks: list[int], sharpness: float) -> list[list[float]]:
    noise = random.Random(f"{name} {''.join(source)}")
    rows = []
    for place in looks:
        logits = [
            sharpness * (2.2 * math.exp(-0.9 * abs(k - place)) + 0.35 * noise.gauss(0, 1)) * 1.4
            for k in range(len(source))
        ]
        total = sum(math.exp(x) for x in logits)
        rows.append([math.exp(x) / total for x in logits])
    return rows
