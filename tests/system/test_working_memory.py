"""A running gateway tells its model what happened of late, what is open, and how its channels stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.outbound.standing import standing
from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer
from tests.support.place import with_model
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.platform_place import ADA, told, with_telegram

CALL = json.dumps({"path": "plan.txt", "content": "x"})


async def test_what_goes_on_is_told_in_its_own_chat(tmp_path: Path) -> None:
    """It stands at the head of the newest message, so that a provider's cache of the rest holds."""
    async with TelegramServer() as server, ModelServer() as model:
        config = with_model(model, **with_telegram(server, stream=False))
        async with Daemon(tmp_path, config=config) as daemon:
            await until(lambda: standing(tmp_path / "state", "telegram").get("last_round_trip"))
            server.write(ADA, f"write [[tool:write {CALL}]]")
            await server.said(ADA, lambda sent: "write" in sent.text)
            to = ("--message", "tick", "--to", f"telegram:{ADA}")
            await told(tmp_path, "cron", "add", "--at", "2099-01-01T09:00", "--name", "tick", *to)
            (row,) = json.loads(await told(tmp_path, "cron", "list", "--json"))
            await told(tmp_path, "cron", "run", row["id"])
            await server.said(ADA, lambda sent: "tick" in sent.text)
            for word in ("first", "second"):
                server.write(ADA, word)
                await server.said(ADA, lambda sent, word=word: word in sent.text)
            assert await ask(daemon, "web:b", "1", "elsewhere")
        newest: dict[str, Any] = {
            str(seen.messages[-1]["content"]).rpartition("\n")[2]: seen.messages for seen in model.turns
        }

    told_here = newest["second"][-1]["content"]
    assert "the file plan.txt was written" in told_here
    assert "the job “tick” ran" in told_here
    assert f"- the job “tick” ({row['id']}), next at 2099-01-01 09:00" in told_here
    assert "- telegram: up, last heard from at 20" in told_here
    assert newest["first"][0] == newest["second"][0]
    assert "Recent activity" not in json.dumps(newest["second"][:-1])

    elsewhere = newest["elsewhere"][-1]["content"]
    assert "## Channels" in elsewhere
    assert not [word for word in ("plan.txt", "tick", "Recent activity", "Open work") if word in elsewhere]
