"""The garbage collector walks over what turns made, and over nothing that stays as long as the process."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Prints how many objects the collector walks over once LiteLLM is there, how many it leaves out, and whether
# it is on, as a daemon begins.
_BACKGROUND = """
import asyncio, gc, sys
from pathlib import Path
from gateway.app import collector
from gateway.app.sessions import build_session_services
from gateway.config.load import load
from session.models import library

async def main(folder):
    model = {"CHAT_GATEWAY_MODEL__NAME": "openai/big", "CHAT_GATEWAY_MODEL__API_KEY": "sk-x"}
    services = build_session_services(load(None, folder, model, tables={}), status=lambda *_: [])
    collector.calm()
    ready = asyncio.Event()
    ready.set()
    background = asyncio.create_task(services.background(ready))
    await services.jobs.looked.wait()
    assert library.loaded() is not None
    walked = sum(len(gc.get_objects(generation)) for generation in range(3))
    print(walked, gc.get_freeze_count(), gc.isenabled(), gc.get_threshold() == collector.THRESHOLDS)
    background.cancel()
    await asyncio.wait((background,))
    await services.aclose()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.slow
async def test_it_never_walks_over_the_library_of_the_models(tmp_path: Path) -> None:
    """Of 450,000 objects that stay, a full look took 0.1 s, for which all chats waited."""
    walked, frozen, is_on, is_calm = await _printed(_BACKGROUND, str(tmp_path))
    assert int(walked) < 50_000
    assert int(frozen) > 300_000
    assert (is_on, is_calm) == ("True", "True")


# Prints the same around an import in a process that has not said whose it is.
_ANOTHER = """
import gc
from gateway.app import collector

before = gc.get_threshold()
with collector.importing():
    print(gc.isenabled())
print(gc.get_freeze_count(), gc.get_threshold() == before)
"""


async def test_that_of_another_program_is_left_alone() -> None:
    """An application may run inside one."""
    assert await _printed(_ANOTHER) == ["True", "0", "True"]


# Makes garbage in rings, as a client of HTTP does; prints how often it looked, and the most that it found.
_RINGS = """
import gc
from gateway.app import collector

looks = []

def heard(phase, told):
    if phase == "stop":
        looks.append(told["collected"])

collector.calm()
gc.callbacks.append(heard)
for _ in range(200_000):
    ring = []
    ring.append(ring)
print(len(looks), max(looks))
"""


async def test_it_looks_at_ten_thousand_at_a_time() -> None:
    """What a look takes is what the first word of an answer may wait."""
    count, most = await _printed(_RINGS)
    assert int(most) <= 10_100
    assert int(count) >= 18


# Ends turns of chats, and prints whether the ring that each left is gone soon after without any threshold.
_TURNS = """
import asyncio, gc, sys, weakref
from pathlib import Path
from gateway.app import collector
from gateway.app.sessions import build_session_services
from gateway.config.load import load
from session.models.model import Usage
from session.transcript.key import SessionKey
from session.turn.turn import Reply

class Ring:
    pass

async def left(services, usage):
    ring = Ring()
    ring.ring = ring
    async with services.store.open(SessionKey("telegram:1")) as session:
        services.turn_ended(session, Reply(usage=usage))
    gone = weakref.ref(ring)
    del ring
    await asyncio.sleep(0.2)
    return "left" if gone() is not None else "gone"

async def main(folder, whose):
    model = {"CHAT_GATEWAY_MODEL__NAME": "openai/big"}
    services = build_session_services(load(None, folder, model, tables={}), status=lambda *_: [])
    if whose == "ours":
        collector.calm()
    gc.set_threshold(0)
    print(*[await left(services, usage) for usage in (None, Usage(1, 1), Usage(1, 1))])
    await services.aclose()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.slow
async def test_what_a_turn_left_is_looked_at_behind_it(tmp_path: Path) -> None:
    """In the midst of the next one it took 3 ms of the way to its first word; nothing is left by commands."""
    assert await _printed(_TURNS, str(tmp_path), "ours") == ["left", "gone", "gone"]
    assert await _printed(_TURNS, str(tmp_path), "another's") == ["left", "left", "left"]


async def _printed(script: str, *words: str) -> list[str]:
    command: list[Any] = [sys.executable, "-c", script, *words]
    ended = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return str(ended.stdout).split()
