"""What the model server answers to a request for embeddings: texts that share words are near."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any
from zlib import crc32

DIMENSIONS = 256


@dataclass
class Vectors:
    """One scripted answer.

    ``kind``: hang | fewer | nan | zero | mixed (two lengths in one answer) | backwards (in another
    order, with the right index).
    """

    kind: str = ""
    status: int = 200
    delay_s: float = 0.0
    dimensions: int = DIMENSIONS


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Count the words of four letters and more, each at a place of its own."""
    counts = [0.0] * dimensions
    for word in re.findall(r"\w{4,}", text.lower()) or ["nothing"]:
        counts[crc32(word.encode()) % dimensions] += 1.0
    return counts


def body_of(texts: list[str], reply: Vectors) -> bytes:
    """Write the answer to ``texts``."""
    rows: list[dict[str, Any]] = [
        {"object": "embedding", "index": i, "embedding": vector_of(text, reply.dimensions)}
        for i, text in enumerate(texts)
    ]
    if reply.kind == "fewer":
        rows.pop()
    elif reply.kind == "nan":
        rows[-1]["embedding"][0] = float("nan")
    elif reply.kind == "zero":
        rows[-1]["embedding"] = [0.0] * reply.dimensions
    elif reply.kind == "mixed":
        rows[-1]["embedding"] = [1.0, 2.0]
    elif reply.kind == "backwards":
        rows.reverse()
    tokens = sum(len(text) // 4 + 1 for text in texts)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return json.dumps({"object": "list", "data": rows, "model": "stub-embedding", "usage": usage}).encode()
