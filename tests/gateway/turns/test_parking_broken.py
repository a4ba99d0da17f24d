"""A letter that breaks what looks at it before its turn is parked, its chat told, and its lane goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.turns import edits, worker
from gateway.turns.policy import UNANSWERED
from session.store.store import Store
from tests.gateway.worker_rig import rig
from tests.support.guarantee import guarantee

pytestmark = guarantee(
    "failures", "A message that fails again and again before its turn is parked, and its chat continues."
)


def broken(*_: Any, **__: Any) -> Any:
    raise TypeError("odd")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "back_off_s", lambda _: 0.0)


async def test_a_letter_that_breaks_before_its_turn_is_parked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edits, "settle", broken)
    async with rig(tmp_path) as r:
        await r.put("changed", "e1", kind="edit", platform_id="7")
        await r.put("next", "m2")

        notice, reply = await r.replies(2)
        assert (notice.id, notice.text, reply.text) == ("e1#notice.failed", UNANSWERED, "script: next")
        (parked,) = await r.parked()
        assert (parked.id, parked.reason, parked.attempts) == ("e1", "failed: TypeError", 4)


async def test_one_whose_conversation_cannot_be_opened_is_parked_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Store, "open", broken)
    async with rig(tmp_path) as r:
        await r.put("asked", "m1")

        assert [notice.id for notice in await r.replies(1)] == ["m1#notice.failed"]
        (parked,) = await r.parked()
        assert (parked.id, parked.reason) == ("m1", "failed: TypeError")
        await r.settled()
