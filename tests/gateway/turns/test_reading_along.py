"""An answer is asked for piece by piece where somebody reads along, and whole where nobody does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.turns.control_order import WatchOrder
from gateway.turns.worker import LetterRules
from session.models.model import Answer, OnDelta, Prompt
from session.transcript.key import slot_of
from session.turn.turn import TurnLimits
from tests.contracts.models import Script
from tests.gateway.waits import until
from tests.gateway.worker_rig import ADA, Rig


class Asked(Script):
    """Remembers of each request whether its answer was wanted piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.in_pieces: list[bool] = []

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        self.in_pieces.append(on_delta is not None)
        return await super().ask(prompt, on_delta)


SLOT = slot_of(ADA)


@pytest.mark.parametrize(
    ("order", "in_pieces"),
    [
        (None, False),
        ({"slots": [SLOT]}, True),
        ({"slots": "all"}, True),
        ({"slots": [(SLOT + 1) % 256]}, False),
        ({"slots": [SLOT], "reads": False}, False),
        ({"slots": "all", "channel": "foreign"}, True),
        ({"slots": "all", "channel": "foreign", "reads": False}, False),
        ({"slots": "all", "channel": "telegram"}, False),
    ],
)
async def test_an_answer_is_written_piece_by_piece_for_whoever_reads_along(
    tmp_path: Path, order: dict[str, Any] | None, in_pieces: bool
) -> None:
    """Who waits for its end, or reads another channel, does not."""
    model = Asked()
    async with Rig(tmp_path, model, LetterRules()).open() as r:
        if order is not None:
            await told(r, **order)
        await r.put("one", "m1")
        await r.texts(1)

        assert model.in_pieces == [in_pieces]


async def test_whoever_wants_streams_always_gets_them(tmp_path: Path) -> None:
    """``model.stream = "always"``: an answer that is stopped keeps its text also where nobody read along."""
    model = Asked()
    built = Rig(tmp_path, model, LetterRules())
    built.limits = TurnLimits(streams=True)
    async with built.open() as r:
        await r.put("one", "m1")
        await r.texts(1)

    assert model.in_pieces == [True]


async def told(r: Rig, **order: Any) -> None:
    """Have an order told, and return when the daemon has acted on it."""
    await r.mailbox.tell("control", 0, WatchOrder(id="w", for_s=60, **order).to_bytes())
    await r.mailbox.tell("control", 0, WatchOrder(id="m", for_s=60, slots=[], channel="mark").to_bytes())
    await until(lambda: r.events.watched("mark:it"))
