"""Sessions over HTTP: listed, shown, named, closed, opened again, deleted; each refusal by its status."""

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

NOBODY = "01KJMMA2G01YBHZZBBY3RWPAPM"
AT = "2026-03-01T10:00:00.000001+00:00"
RECORD = ["recordType", "schemaVersion", "seq", "role", "content", "timestamp"]


async def rows(place: Place, **params: Any) -> list[dict[str, Any]]:
    answer = await place.http.get("/v1/sessions", params=params)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["sessions"]
    return found


async def session_of(place: Place, chat: str) -> str:
    [row] = [row for row in await rows(place) if row["key"] == f"web:{chat}" and row["active"]]
    return str(row["id"])


async def texts(place: Place, ulid: str) -> list[str]:
    answer = await place.http.get(f"/v1/sessions/{ulid}/messages")
    return [record["content"][0]["text"] for record in answer.json()["messages"]]


async def test_the_listing_is_true_after_each_turn(place: Place) -> None:
    """Newest message first, counts and metrics as the files are."""
    for chat in ("ada", "bob", "ada"):
        await place.post("hello", chat=chat, wait=30)
    listed = await rows(place)

    assert [(row["key"], row["message_count"]) for row in listed] == [("web:ada", 4), ("web:bob", 2)]
    assert [row["metrics"]["turns"] for row in listed] == [2, 1]
    fields = "id key name created_at last_message_at message_count model source cron_job_id active agent"
    assert list(listed[0]) == [*fields.split(), "metrics"]
    assert (await place.http.get(f"/v1/sessions/{listed[0]['id']}")).json().items() >= listed[0].items()


async def test_pages(place: Place) -> None:
    """A cursor goes on behind the last row, also when chats moved to the top meanwhile."""
    for number in range(5):
        await place.post("hello", chat=f"c{number}", wait=30)
    first = (await place.http.get("/v1/sessions", params={"limit": 2})).json()
    await place.post("again", chat="c4", wait=30)
    second = (await place.http.get("/v1/sessions", params={"limit": 2, "cursor": first["next"]})).json()
    third = (await place.http.get("/v1/sessions", params={"limit": 2, "cursor": second["next"]})).json()

    keys = [row["key"] for page in (first, second, third) for row in page["sessions"]]
    assert keys == [f"web:c{number}" for number in (4, 3, 2, 1, 0)]
    assert third["next"] is None
    for cursor in ("x", "ä", "eA", "%00"):
        assert (await place.http.get("/v1/sessions", params={"cursor": cursor})).status_code == 400
    for limit in (0, -1, 1001, "x"):
        assert (await place.http.get("/v1/sessions", params={"limit": limit})).status_code == 400


async def test_messages_as_records(place: Place) -> None:
    """Content is always a list of blocks; results and calls in their own form; paged by seq."""
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}
    async with place.services.store.open(SessionKey("web:ada")) as session:
        await session.append(
            [
                make_line("user", "q", AT, message_id="m"),
                make_line("assistant", None, AT, message_id="m", tool_calls=[call]),
                make_line("tool", "no", AT, tool_call_id="c1", name="read", is_error=True),
                make_line("system", "", AT, kind="note", edits="m"),
                make_line("system", "## Goal", AT, kind="overlay", first_kept=2, tokens_before=7),
                make_line("assistant", "done", AT, message_id="m", final=True),
            ]
        )
        ulid = session.session_id

    path = f"/v1/sessions/{ulid}/messages"
    whole = (await place.http.get(path)).json()
    paged = [(await place.http.get(path, params={"limit": 3, "after": after})).json() for after in (0, 3)]

    found = whole["messages"]
    assert [record["seq"] for record in found] == [1, 2, 3, 5, 6]
    assert list(found[0]) == RECORD
    assert found[1]["content"] == [
        {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "x"}}
    ]
    assert (found[2]["role"], found[2]["toolCallId"], found[2]["isError"]) == ("toolResult", "c1", True)
    assert (found[3]["recordType"], found[3]["firstKeptSeq"], found[3]["tokensBefore"]) == (
        "compaction",
        3,
        7,
    )
    assert whole["next"] is None
    assert [record for page in paged for record in page["messages"]] == found
    assert [page["next"] for page in paged] == [3, None]


async def test_name_and_instructions(place: Place) -> None:
    """They are set on active and on ended sessions, and taken away by null."""
    await place.post("hello", wait=30)
    ulid = await session_of(place, "ada")
    path = f"/v1/sessions/{ulid}"
    for ended in (False, True):
        if ended:
            await place.http.post(f"{path}/close")
        changed = await place.http.patch(path, json={"name": f"n{ended}", "instructions": "be brief"})
        assert (changed.status_code, changed.json()["name"]) == (200, f"n{ended}")
        assert changed.json()["instructions"] == "be brief"
        assert (await place.http.patch(path, json={"instructions": None})).json()["instructions"] is None
        assert (await rows(place))[0]["name"] == f"n{ended}"
        assert (await rows(place))[0]["active"] is not ended
        assert await texts(place, ulid) == ["hello", "echo: hello"]
    for body in ({"name": 1}, {"nome": "x"}, {"name": "x" * 201}, [], {"name": "\ud800"}):
        raw = str(body).replace("'", '"').encode("ascii", "backslashreplace")
        assert (await place.http.patch(path, content=raw)).status_code == 400


async def test_close_resume_and_post(place: Place) -> None:
    """An ended session takes no message until it is opened again; the other one ends for it."""
    await place.post("one", wait=30)
    first = await session_of(place, "ada")
    closed = await place.http.post(f"/v1/sessions/{first}/close")
    again = await place.http.post(f"/v1/sessions/{first}/close")
    assert (closed.status_code, closed.json()["active"], again.status_code) == (200, False, 200)
    assert [row["active"] for row in await rows(place)] == [False]

    refused = await place.http.post(f"/v1/sessions/{first}/messages", json={"text": "x"})
    assert (refused.status_code, "resume" in refused.json()["hint"]) == (409, True)
    await place.post("two", wait=30)
    second = await session_of(place, "ada")
    resumed = await place.http.post(f"/v1/sessions/{first}/resume")
    assert (resumed.status_code, resumed.json()["id"], resumed.json()["active"]) == (200, first, True)
    assert (await place.http.post(f"/v1/sessions/{first}/resume")).json()["active"]
    answer = await place.http.post(
        f"/v1/sessions/{first}/messages", json={"text": "three", "id": "i"}, params={"wait": 30}
    )
    repeated = await place.http.post(
        f"/v1/sessions/{first}/messages", json={"text": "three", "id": "i"}, params={"wait": 30}
    )

    assert answer.json() == {"id": "web:i", "key": "web:ada", "reply": "echo: three", "kind": "reply"}
    assert repeated.json() == answer.json()
    assert await texts(place, first) == ["one", "echo: one", "three", "echo: three"]
    assert {row["id"]: row["active"] for row in await rows(place)} == {first: True, second: False}
    empty = await place.http.post(f"/v1/sessions/{first}/messages", json={"text": " "})
    assert empty.status_code == 400


async def test_delete(place: Place) -> None:
    """Active or ended, it is gone for good; its messages are not run again."""
    await place.post("one", id="i", wait=30)
    first = await session_of(place, "ada")
    await place.http.post(f"/v1/sessions/{first}/close")
    await place.post("two", id="j", wait=30)
    second = await session_of(place, "ada")

    for ulid in (first, second):
        assert (await place.http.delete(f"/v1/sessions/{ulid}")).status_code == 200
        assert (await place.http.delete(f"/v1/sessions/{ulid}")).status_code == 404
    assert await rows(place) == []
    late = await place.post("two", id="j", wait=30)
    assert late.json()["kind"] == "notice"


async def test_ulids(place: Place) -> None:
    """Anything but 26 characters of the alphabet is 400 on every route, an unknown one 404."""
    await place.post("hello", wait=30)
    good = await session_of(place, "ada")
    bad = [
        good.lower(),
        good[:-1],
        good + "0",
        good[:-1] + "U",
        f"{good}%0A",
        f"%20{good}",
        "..",
        "%2e%2e%2f",
    ]
    routes = [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/messages"), ("POST", "/messages")]
    for method, tail in [*routes, ("POST", "/resume"), ("POST", "/close")]:
        body = {"text": "x"} if tail == "/messages" else {}
        for ulid in bad:
            answer = await place.http.request(method, f"/v1/sessions/{ulid}{tail}", json=body)
            assert answer.status_code in (
                (400,) if "." not in ulid and "%2e" not in ulid else (400, 404, 405)
            )
        answer = await place.http.request(method, f"/v1/sessions/{NOBODY}{tail}", json=body)
        assert answer.status_code == 404
        assert set(answer.json()) == {"error", "hint"}
    assert await texts(place, good) == ["hello", "echo: hello"]


async def test_clear_session(place: Place) -> None:
    """By key, or by a bare id on every channel; done again it says so, and other chats stay."""
    for key in ("web:ada", "cli:ada", "web:bob"):
        await place.http.post("/v1/messages", json={"key": key, "text": "x"}, params={"wait": "30"})

    for expected in (["cli:ada", "web:ada"], []):
        answer = await place.http.post("/clear-session", json={"chatId": "ada"})
        assert (answer.status_code, answer.json()) == (200, {"cleared": expected})
    assert [row["key"] for row in await rows(place)] == ["web:bob"]
    answer = await place.http.post("/clear-session", json={"key": "web:bob"})
    assert answer.json() == {"cleared": ["web:bob"]}
    for body in ({}, {"chatId": "a", "key": "web:a"}, {"key": "nocolon"}, {"chatId": ""}):
        assert (await place.http.post("/clear-session", json=body)).status_code == 400


async def test_files_that_only_the_cleared_session_names_go_with_it(place: Place) -> None:
    """A file of the chat's ended session stays, and so does one that another chat names as well."""

    async def said(key: str, id: str, *files: bytes) -> list[str]:
        sent = []
        for data in files:
            answer = await place.http.post("/v1/media", content=data, params={"name": "a.txt"})
            sent.append({name: answer.json()[name] for name in ("ref", "name", "mime", "kind")})
        body = {"key": key, "id": id, "text": "x", "attachments": sent}
        answer = await place.http.post("/v1/messages", json=body, params={"wait": "30"})
        assert answer.status_code == 200
        return [each["ref"] for each in sent]

    [ended] = await said("web:ada", "1", b"of an ended session")
    await place.http.post("/v1/sessions/" + await session_of(place, "ada") + "/close")
    own, shared = await said("web:ada", "2", b"of this session", b"of two chats")
    await said("web:bob", "3", b"of two chats")

    answer = await place.http.post("/clear-session", json={"key": "web:ada"})

    assert answer.json() == {"cleared": ["web:ada"]}
    workspace = place.application.settings.workspace
    assert [(workspace / each).exists() for each in (ended, own, shared)] == [True, False, True]


async def test_a_running_turn_ends_with_its_cleared_session(place: Place) -> None:
    """It writes nothing, its client is told, and the next message is answered in a fresh session."""
    model = place.gate()
    asking = asyncio.ensure_future(place.post("long", id="i", wait=30))
    await model.begun.wait()

    await place.http.post("/clear-session", json={"key": "web:ada"})
    told = (await asking).json()
    assert place.application.worker is not None
    async with asyncio.timeout(30):
        # The lane ends though the model never answered.
        while place.application.worker.lanes.get("web:ada") is not None:
            await place.http.get("/healthz")
    model.let.set()
    late = (await place.post("next", wait=30)).json()

    assert told["kind"] == "notice"
    assert late["reply"] == "got next"
    assert await texts(place, await session_of(place, "ada")) == ["next", "got next"]


LS_CALL = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "x"}'}}
ODD = [
    make_line("user", "plain text", AT),
    make_line("assistant", None, AT, tool_calls=[LS_CALL]),
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
