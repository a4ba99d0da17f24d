"""Guides the search by what the code does with an input: one target in one process.

``python -m tests.fuzz.engine TARGET SECONDS FINDS``, then libFuzzer's options and folders. The exit code is 0
where nothing was found; else the input has been written into the folder FINDS: by libFuzzer where it took too
long or too much memory.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import atheris
import structlog

from tests.fuzz.targets import target_of

OURS = ["channels", "durable", "gateway", "session"]
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, -(2**63) - 1, 2**64, 10**400, 0.5, -0.0, 1e308),
    *("", " ", "0", "-1", "x", "\x00", "\ud800", "\u202e", "é\u0301", "a:b", "..", "/", "1" * 40, "x" * 3000),
    *([], [[]], {}, {"": {}}, [None], {"id": 1}, [{}] * 50),
)


def main() -> None:
    """Search until the time is over, or something is found."""
    # Before anything imports them.
    with atheris.instrument_imports(include=OURS, enable_loader_override=False):
        target = target_of(sys.argv[1])
    chance = random.Random()
    finds, count = sys.argv[3], 0

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        chance.seed(seed)
        found = changed(data, max_size, seed) if target.form == "json" and chance.random() < 0.7 else None
        return bytes(atheris.Mutate(data, max_size)) if found is None else found

    # A log would be longer than all that is read.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with ExitStack() as stack:
        once = stack.enter_context(target.opened())
        ends = time.monotonic() + float(sys.argv[2])

        def read(data: bytes) -> None:
            nonlocal count
            count += 1
            try:
                once(data)
            except Exception:  # noqa: BLE001 - here one search ends
                # Not left to libFuzzer, which is silent where threads are still at work.
                traceback.print_exc()
                Path(finds, f"crash-{count}").write_bytes(data)
                sys.stderr.flush()
                os._exit(1)
            if time.monotonic() > ends:
                stack.close()
                print(f"{target.name}: {count} inputs", flush=True)
                # libFuzzer's own end waits for threads that nobody has ended by then.
                os._exit(0)

        atheris.Setup([sys.argv[0], *sys.argv[4:]], read, custom_mutator=change)
        atheris.Fuzz()


def changed(data: bytes, size: int, seed: int) -> bytes | None:
    """Return JSON (or its lines) as a person with bad intent changes it, cut to ``size``; None: no JSON."""
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


if __name__ == "__main__":
    main()
