"""A letter that cannot be parked, since parking itself breaks, holds up its lane a few times only."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from session.errors import ModelRefused
from tests.gateway.embedded_place import BreaksAt
from tests.gateway.worker_rig import rig

# It waits for seconds.
pytestmark = pytest.mark.slow


async def test_the_lane_goes_on_and_the_letter_stays_in_its_queue(tmp_path: Path) -> None:
    mailbox = BreaksAt(tmp_path / "state", parking=True)
    with capture_logs() as logs:
        async with rig(tmp_path, ModelRefused("no"), "fine", mailbox=mailbox) as r:
            await r.put("poison", "m1")
            await r.put("next", "m2")

            # Each try puts the same notice again, which its channel knows by its id.
            *notices, reply = await r.replies(5)
            assert {(notice.kind, notice.id) for notice in notices} == {("notice", "m1#notice.refused")}
            assert (reply.in_reply_to, reply.text) == ("m2", "fine")
            await r.until_waiting(1)

    assert mailbox.tried == 4
    assert [(log["id"], log["tries"]) for log in logs if log["event"] == "letter.left"] == [("m1", 4)]
