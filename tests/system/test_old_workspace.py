"""A workspace that the version before the sub-packages left behind, killed in mid-work, is gone on with."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, ask, command
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import with_telegram

pytestmark = guarantee(
    "storage", "A new version resumes all work that a killed gateway of the previous version left unfinished."
)

ADA, EVE = 12345678, 34567890
WAITING = {
    "cli_waiting": ["cli:w1", "cli:w2", "cli:w3", "cli:w4"],
    "cli_alone": ["cli:l1"],
    "cli_late": ["cli:z1"],
}
ANSWERED = [
    ("cli:tools", "cli:t2", "and now?", "stub: and now?"),
    ("cli:ended", "cli:e1", "the first session", "stub: the first session"),
    ("cli:ended", "cli:e2", "/new", "A new conversation begins."),
    ("cli:parked", "cli:p2", "[[refuse]] this cannot be answered", "This message was not answered"),
    ("cli:annabelle", "cli:ac", "/compact", "2 turns are summarised now"),
]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of what was left behind, as if it had been left yesterday."""
    workspace = tmp_path / "old"
    shutil.copytree(ROOT / "tests" / "data" / "old-workspace", workspace)
    yesterday = (datetime.now(UTC) - timedelta(days=1)).strftime("%Y-%m-%dT")
    for journal in (workspace / "state" / "keys").glob("*.log"):
        journal.write_text(journal.read_text().replace("2026-01-06T", yesterday))
    ledger = sqlite3.connect(workspace / "state" / "delivery-telegram.db")
    with contextlib.closing(ledger), ledger:
        ledger.execute("UPDATE pieces SET at_ms = ?", (int((time.time() - 3600) * 1000),))
    return workspace


def small(model: ModelServer, **more: Any) -> dict[str, Any]:
    numbers = {
        "model.context_window": 6000,
        "compaction.reserve_tokens": 1000,
        "compaction.keep_recent_tokens": 600,
        # They are drawn after a start from what was said last, which is not what is counted here.
        "facts.enabled": False,
    }
    return with_model(model, **numbers, **more)


async def test_letters_that_waited_are_answered_once_in_order(old: Path) -> None:
    """Those with an attempt on record as well; the first half of a reply is not sent again."""
    async with ModelServer() as model, TelegramServer() as server:
        server.add_chat(ADA)
        async with Daemon(
            old, config=small(model) | with_telegram(server, direct="pairing", group_allow=[], stream=False)
        ) as daemon:
            await model.finished(6)
            await server.until(lambda: len(server.sent_to(ADA)) >= 2)
            assert await ask(daemon, "cli:waiting", "cli:w5", "the newest") is not None
            assert await daemon.stop() == 0
        asked = [seen.text.splitlines()[-1] for seen in model.seen]

    assert sorted(asked) == sorted(
        [
            "first that waits",
            *(f"waiting number {number}" for number in (2, 3, 4)),
            "a chat that never had an answer",
            "the last to come",
            "the newest",
        ]
    )
    for stem, ids in WAITING.items():
        lines = lines_of(old, stem)
        expected = [*ids, "cli:w5"] if stem == "cli_waiting" else ids
        assert [line["message_id"] for line in lines if line["role"] == "user"] == expected
        assert [line["message_id"] for line in lines if line.get("final")] == expected
    rest = "".join(sent.text for sent in server.sent_to(ADA))
    assert ("0123456789" * 900).endswith(rest)
    assert 4000 < len(rest) < 6000


async def test_what_was_answered_is_answered_again_and_never_asked_again(old: Path) -> None:
    """Turns, commands, a notice and what ended sessions hold; a cleared message runs no more."""
    async with ModelServer() as model, Daemon(old, config=small(model)) as daemon:
        await model.finished(6)
        for key, message_id, text, expected in ANSWERED:
            answer = await ask(daemon, key, message_id, text)
            assert answer is not None
            assert answer["reply"].startswith(expected), answer
        assert len(model.seen) == 6
        cleared = await ask(daemon, "cli:cleared", "cli:x1", "forget this at once")
        assert cleared is not None
        assert cleared["reply"] == "The conversation was deleted before this message was answered."
        assert len(model.seen) == 6


async def test_summaries_and_vectors_go_on(old: Path) -> None:
    """A conversation that was compacted is sent with its summary; texts with a vector get none again."""
    async with ModelServer() as model:
        relevant = {"model.embedding": "openai/emb", "history.mode": "relevant", "history.max_messages": 4}
        async with Daemon(old, config=small(model, **relevant)) as daemon:
            await model.finished(6)
            assert await ask(daemon, "cli:vectors", "cli:v9", "is my bicycle well") is not None
            assert await daemon.stop() == 0
        embedded = [text for texts in model.embedded for text in texts]
        async with Daemon(old, config=small(model)) as daemon:
            assert await ask(daemon, "cli:overlay", "cli:o99", "what was said") is not None
            assert await daemon.stop() == 0
        [told] = [json.dumps(seen.messages) for seen in model.seen if "what was said" in seen.text]

    assert not any("broken chain" in text for text in embedded)
    assert [number for number in range(16) if f"fact-{number:04}" in told] == [12, 13, 14, 15]
    assert "fact-0012 fact-0013" in told
    assert "fact-0012 a word" not in told


async def test_the_verbs_show_all_of_it(old: Path) -> None:
    """Nothing to repair, nothing that fails; jobs, people, parked letters, sessions and memory are there."""
    async with ModelServer() as model:
        config = small(model)

        async def rows(*verb: str) -> Any:
            code, printed = await command(old, *verb, "--json", config=config)
            assert code == 0, (verb, printed)
            return json.loads(printed)

        assert await rows("sessions", "verify") == []
        checks = await rows("doctor")
        assert [check for check in checks if check["level"] == "fail"] == []
        assert [(row["id"], row["box"], row["key"]) for row in await rows("parked", "list")] == [
            ("cli:p2", "inbound", "cli:parked")
        ]
        jobs = await rows("cron", "list")
        assert {(job["payload"]["message"], job["enabled"]) for job in jobs} == {
            ("Is all well?", False),
            ("Happy new year", True),
            ("Still there?", True),
        }
        people = await rows("pairing", "list")
        assert {(row["who"], row["state"]) for row in people} >= {(f"telegram:{ADA}", "approved")}
        sessions = await rows("sessions", "list")
        ended = [row["key"] for row in sessions if not row["active"]]
        assert sorted(ended) == ["cli:annabelle"] * 5 + ["cli:ended"] * 2
        assert {row["key"] for row in sessions if row["active"]} >= {
            "cli:tools",
            "cli:overlay",
            "cli:vectors",
        }
        _, remembered = await command(old, "memory", "show", "cli:memory", config=config)
        assert remembered.strip()
