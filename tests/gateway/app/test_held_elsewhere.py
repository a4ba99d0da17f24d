"""What holds the turns of a channel back is shown with it by a process that does not run its adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from channels import state_file
from channels.lease import lease
from channels.message import Inbound
from gateway.outbound.standing import standing_file
from gateway.queue.mailbox import INBOUND, Post
from tests.gateway.http_place import open_place
from tests.support.until import until


async def test_a_session_process_turns_the_channel_down(tmp_path: Path) -> None:
    (tmp_path / "sessions" / "telegram_1.jsonl").mkdir(parents=True)
    letter = Inbound(v=1, id="telegram:1:1", key="telegram:1", channel="telegram", chat_id="1", text="hi")
    state = tmp_path / "state"
    async with (
        open_place(tmp_path, channels={"telegram": {"enabled": True, "token": "1:x"}}) as place,
        lease(state, "telegram"),
    ):
        # As the process that runs the adapter leaves it.
        state_file.write(standing_file(state, "telegram"), {"up": True, "since": "2027-01-01", "error": ""})
        before = place.application.readiness()[1]["telegram"]
        await place.application.mailbox.put(Post(INBOUND, letter.key, letter.id, letter.to_bytes()))

        def held() -> dict[str, Any] | None:
            part = place.application.readiness()[1]["telegram"]
            return part if "1 chat waits" in part["error"] else None

        part = await until(held)
        (tmp_path / "sessions" / "telegram_1.jsonl").rmdir()

    assert (before["up"], before["error"]) == (True, "")
    assert not part["up"]
    assert "telegram_1.jsonl" in part["error"]
