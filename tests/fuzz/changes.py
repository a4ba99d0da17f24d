"""Changes JSON as a person with bad intent would: values of other kinds, keys gone or doubled, depth."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, -(2**63) - 1, 2**64, 10**400, 0.5, -0.0, 1e308),
    *("", " ", "0", "-1", "x", "\x00", "\ud800", "\u202e", "é\u0301", "a:b", "..", "/", "1" * 40, "x" * 3000),
    *([], [[]], {}, {"": {}}, [None], {"id": 1}, [{}] * 50),
)


def changed(data: bytes, size: int, seed: int) -> bytes | None:
    """Return the JSON (or its lines) with one to four changes, ``size`` bytes at most; None: it is none."""
    chance = random.Random(seed)
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    try:
        value = json.loads(lines[at])
        for _ in range(chance.randint(1, 4)):
            value = _change(value, chance)
        lines[at] = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return None
    if len(lines) > 1 and chance.random() < 0.2:
        lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    return b"\n".join(lines)[:size]


def _change(value: Any, chance: random.Random) -> Any:
    places = list(_places(value))
    if not places or chance.random() < 0.02:
        return chance.choice(ODD)
    holder, key = chance.choice(places)
    what = chance.random()
    if what < 0.5:
        holder[key] = chance.choice(ODD)
    elif what < 0.65:
        del holder[key]
    elif what < 0.8:
        # As it stands elsewhere: numbers where texts were, an object in itself.
        other, name = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[name]))
    elif what < 0.9 and isinstance(holder[key], str):
        text = holder[key]
        cut = chance.randrange(len(text) + 1)
        holder[key] = text[:cut] + str(chance.choice(ODD)) + text[cut:]
    else:
        holder[key] = chance.choice(([holder[key]], {"x": holder[key]}, str(holder[key])))
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place within a value: its container, and its key or index."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
