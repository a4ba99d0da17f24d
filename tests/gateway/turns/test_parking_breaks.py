"""A letter that cannot be parked, since parking itself breaks, holds up its lane a few times only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.inbound.intake import Intake
from gateway.queue.embedded.mailbox import EmbeddedMailbox
from gateway.queue.mailbox import Letter
from gateway.turns.worker import LetterRules
from session.errors import ModelRefused
from session.testing import Script
from tests.gateway.turns.test_flood import until_waiting
from tests.gateway.turns.test_worker import Rig

# It waits for seconds.
pytestmark = pytest.mark.slow


class Unparking(EmbeddedMailbox):
    """A queue that cannot park."""

    tried = 0

    async def park(
        self,
        letter: Letter,
        *,
        key: str | None,
        reason: str,
        attempts: int,
        mark: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self.tried += 1
        raise RuntimeError("a queue that breaks")


async def test_the_lane_goes_on_and_the_letter_stays_in_its_queue(tmp_path: Path) -> None:
    built = Rig(tmp_path, Script([ModelRefused("no"), "fine"]), LetterRules())
    mailbox = Unparking(tmp_path / "state")
    built.mailbox, built.intake = mailbox, Intake(mailbox)
    with capture_logs() as logs:
        async with built.open() as r:
            await r.put("poison", "m1")
            await r.put("next", "m2")

            # Each try puts the same notice again, which its channel knows by its id.
            *notices, reply = await r.replies(5)
            assert {(notice.kind, notice.id) for notice in notices} == {("notice", "m1#notice.refused")}
            assert (reply.in_reply_to, reply.text) == ("m2", "fine")
            await until_waiting(r, 1)

    assert mailbox.tried == 4
    assert [log["id"] for log in logs if log["event"] == "letter.left"] == ["m1"]
