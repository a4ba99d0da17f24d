"""A letter that cannot be parked, since parking itself breaks, holds up its lane a few times only."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from gateway.inbound.intake import Intake
from gateway.turns.worker import LetterRules
from session.errors import ModelRefused
from session.testing import Script
from tests.gateway.breaking_mailbox import BreakingMailbox
from tests.gateway.turns.test_flood import until_waiting
from tests.gateway.turns.test_worker import Rig

# It waits for seconds.
pytestmark = pytest.mark.slow


async def test_the_lane_goes_on_and_the_letter_stays_in_its_queue(tmp_path: Path) -> None:
    built = Rig(tmp_path, Script([ModelRefused("no"), "fine"]), LetterRules())
    mailbox = BreakingMailbox(tmp_path / "state", parks=False)
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
