"""The append-only form of sessions as other programs see it: over HTTP, and in ``export --to overlay``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.__main__ import main
from session.transcript.key import SessionKey
from session.transcript.transcript import make_line
from tests.gateway.http_place import Place, open_place

AT = "2026-03-01T10:00:00.000001+00:00"
CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}
ODD = [
    make_line("user", "plain text", AT),
    make_line("assistant", None, AT, tool_calls=[CALL]),
    make_line("tool", "no", AT, tool_call_id="c1", name="read", is_error=True),
    make_line("assistant", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], AT),
    make_line("user", "", AT),
    make_line("assistant", "done", AT, final=True),
]


async def exported(workspace: Path, target: str, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Export a session; return its records and its metadata."""
    words = ["sessions", "export", "--to", "overlay", target, "-o", str(folder)]
    assert await asyncio.to_thread(main, ["--workspace", str(workspace), *words]) == 0
    records, about = sorted(folder.rglob("*.json*"), key=lambda path: path.name, reverse=True)
    assert (records.name, about.name) == ("session.jsonl", "metadata.json")
    assert records.parent == about.parent
    assert records.parent.name == json.loads(about.read_bytes())["id"]
    return [json.loads(line) for line in records.read_bytes().splitlines()], json.loads(about.read_bytes())


async def rows(place: Place) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await place.http.get("/v1/sessions")).json()["sessions"]
    return found


async def test_a_new_session_is_an_empty_log_with_its_metadata(tmp_path: Path) -> None:
    """Right after ``/new`` it has its ULID and its metadata, and no record yet."""
    async with open_place(tmp_path / "w") as place:
        await place.post("hello", wait=30)
        await place.post("/new", wait=30)
        [new] = [row for row in await rows(place) if row["active"]]
        records = (await place.http.get(f"/v1/sessions/{new['id']}/messages")).json()

    log, about = await exported(tmp_path / "w", new["id"], tmp_path / "out")

    assert (new["message_count"], records["messages"]) == (0, [])
    assert log == []
    assert (about["id"], about["messageCount"], about["source"]) == (new["id"], 0, "interactive")


async def test_content_is_always_a_list_of_blocks(tmp_path: Path) -> None:
    """Never a bare string, whatever the stored lines hold."""
    async with open_place(tmp_path / "w") as place:
        async with place.services.store.open(SessionKey("web:ada")) as session:
            await session.append(ODD)
            ulid = session.session_id
        records = (await place.http.get(f"/v1/sessions/{ulid}/messages")).json()["messages"]

    log, _ = await exported(tmp_path / "w", ulid, tmp_path / "out")

    for found in (records, log):
        assert len(found) == len(ODD)
        blocks = [list(blocks_of(record)) for record in found]
        assert [kind for kind, _ in blocks[0]] == ["text"]
        assert [kind for kind, _ in blocks[1]] == ["toolCall"]


def blocks_of(record: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    assert isinstance(record["content"], list)
    for block in record["content"]:
        if block["type"] == "text":
            assert isinstance(block["text"], str)
        else:
            assert isinstance(block["arguments"], dict)
        yield block["type"], block


async def test_sessions_of_a_job_are_told_apart(tmp_path: Path) -> None:
    """Listing and export say that a job opened the session."""
    async with open_place(tmp_path / "w") as place:
        async with place.services.store.open(SessionKey("cron:j1")) as session:
            await session.append(ODD[:1])
            await session.checkpoint(metadata={"source": "cron", "cron_job_id": "j1"})
        [row] = await rows(place)

    _, about = await exported(tmp_path / "w", row["id"], tmp_path / "out")

    assert (row["source"], row["cron_job_id"]) == ("cron", "j1")
    assert (about["source"], about["cronJobId"]) == ("cron", "j1")
