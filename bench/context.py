"""Building a request costs the same however long its transcript, and keeps the bytes of the one before."""

from __future__ import annotations

import time
from pathlib import Path

from bench.application import run as run_loop
from bench.place import folder, transcript
from bench.row import Row, median
from session.models.model import Prompt
from tests.session.context.test_context import ADA, Place, changed, furnish, place
from tests.support import peers

SHORT, LONG = 1_000, 10_000
# Messages that no memory holds yet.
FRESH = 60
TURNS, WARM = 50, 3
PEER = "nanobot 0.1.4.post3"
LIMIT_MS = 15.0


def run() -> list[Row]:
    """Measure the time from a turn's begin to its request, and what two requests in a row share."""
    with folder() as here:
        short_ms, long_ms = run_loop(lambda: _build_ms(here))
        share = run_loop(lambda: _share(here / "share"))
        whole_ms = run_loop(lambda: _whole_ms(here / "whole"))
        theirs_ms = _theirs_ms(here / "whole")
    what = f"persona, profile, notes, playbook, skill and history; all but {FRESH} messages consolidated"
    return [
        Row(
            "request of 10,000 messages",
            long_ms,
            LIMIT_MS,
            "ms",
            "limit",
            long_ms / LIMIT_MS,
            at_most=1,
            notes={"what": f"{what}; median of {TURNS} from the turn's begin to its request, load apart"},
        ),
        Row(
            "the same by length",
            long_ms,
            short_ms,
            "ms",
            f"the same at {SHORT:,}",
            long_ms / short_ms,
            at_most=1.2,
        ),
        Row(
            "request of 10,000 unconsolidated messages",
            whole_ms,
            theirs_ms,
            "ms",
            PEER,
            whole_ms / theirs_ms,
            at_most=1,
            notes={
                "what": f"all of them are sent, of a session that is in memory; median of {TURNS}; theirs: "
                "get_or_create and get_history, what they tell besides apart"
            },
        ),
        Row(
            "bytes shared by two requests",
            share * 100,
            95,
            "%",
            "limit",
            share / 0.95,
            at_least=1,
            notes={"what": "common prefix of two turns in a row of a 200-message chat, of the shorter one"},
        ),
    ]


async def _build_ms(workspace: Path) -> tuple[float, float]:
    """Return the medians of a turn's time until the model is asked, at SHORT and at LONG, alternating."""
    for length in (SHORT, LONG):
        transcript(workspace / str(length), ADA, length, consolidated=length - FRESH)
    async with place(workspace / str(SHORT)) as short, place(workspace / str(LONG)) as long:
        took: tuple[list[float], list[float]] = ([], [])
        for here in (short, long):
            furnish(here)
        for _ in range(TURNS + WARM):
            took[0].append(await _turn_ms(short))
            took[1].append(await _turn_ms(long))
    return median(took[0][WARM:]), median(took[1][WARM:])


async def _whole_ms(workspace: Path) -> float:
    """Return the median of a turn's time until the model is asked with all that was ever said."""
    transcript(workspace, ADA, LONG)
    async with place(workspace) as here:
        furnish(here)
        return median([await _turn_ms(here, fresh=None) for _ in range(TURNS + WARM)][WARM:])


def _theirs_ms(workspace: Path) -> float:
    words = {"workspace": str(workspace), "key": ADA, "times": TURNS + WARM, "history": LONG}
    answer = peers.ask(peers.NANOBOT_014, workspace, do="load", kept=True, **words)
    return median(answer["took"][WARM:]) * 1e3


async def _turn_ms(here: Place, *, fresh: int | None = FRESH) -> float:
    asked: list[float] = []

    def note(prompt: Prompt) -> str:
        asked.append(time.perf_counter())
        return "ok"

    here.model.steps = [note]
    # The load is another figure.
    async with here.store.open(ADA) as session:
        if fresh is not None:
            await session.checkpoint(last_consolidated=len(session) - fresh)
        began = time.perf_counter()
        await here.turn(session, "let us ship")
    return (asked[0] - began) * 1e3


async def _share(workspace: Path) -> float:
    transcript(workspace, ADA, 200)
    async with place(workspace) as here:
        furnish(here)
        return changed(await _asked(here, "let us ship"), await _asked(here, "thanks"))[0]


async def _asked(here: Place, text: str) -> list[object]:
    return list(await here.ask(text))
