"""What the page reads: chats with their last word, entries from either end, files, a search over all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import Message

from gateway.http.media import PIECE_BYTES, FileInPieces, opened
from session.transcript.key import SessionKey
from session.transcript.line import make_line
from tests.gateway.http_place import Place

AT = "2026-03-01T10:00:00.000001+00:00"
NOBODY = "01KJMMA2G01YBHZZBBY3RWPAPM"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


async def chats(place: Place, **params: Any) -> dict[str, Any]:
    answer = await place.http.get("/v1/chats", params=params)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def session_of(place: Place, key: str) -> str:
    answer = await place.http.get("/v1/chats/sessions", params={"key": key})
    return str(answer.json()["sessions"][0]["id"])


async def entries(place: Place, ulid: str, **params: Any) -> dict[str, Any]:
    answer = await place.http.get(f"/v1/sessions/{ulid}/entries", params=params)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_chats_come_newest_first_with_their_last_word(place: Place) -> None:
    for chat in ("ada", "bob"):
        await place.post(f"hello\n  from {chat}", chat=chat, wait=30)
    found = await chats(place)

    assert [(row["key"], row["last_text"], row["last_role"]) for row in found["chats"]] == [
        ("web:bob", "echo: hello from bob", "assistant"),
        ("web:ada", "echo: hello from ada", "assistant"),
    ]
    assert found["count"] == 2
    assert found["lanes"] == []


async def test_only_what_changed_since_comes_again(place: Place) -> None:
    """A chat of which no file changed is left out; the count tells of one that is gone."""
    await place.post("hello", chat="ada", wait=30)
    later = (await chats(place))["now"] + 10_000

    again = await chats(place, since=later)
    assert again == {
        "chats": [],
        "next": None,
        "count": 1,
        "now": again["now"],
        "lanes": [],
        "silent": [],
    }
    assert len((await chats(place, since=later - 20_000))["chats"]) == 1
    ulid = await session_of(place, "web:ada")
    await place.http.delete(f"/v1/sessions/{ulid}")
    assert (await chats(place, since=later))["count"] == 0


async def test_entries_are_paged_from_the_end_and_from_the_beginning(place: Place) -> None:
    for number in range(3):
        await place.post(f"m{number}", wait=30)
    ulid = await session_of(place, "web:ada")
    newest = await entries(place, ulid, limit=2)
    older = await entries(place, ulid, before=newest["previous"], limit=3)
    behind = await entries(place, ulid, after=4, limit=10)

    assert (await place.http.get("/v1/sessions/x/entries")).status_code == 400
    assert (await place.http.get(f"/v1/sessions/{NOBODY}/entries")).status_code == 404
    assert [entry["seq"] for entry in newest["entries"]] == [5, 6]
    assert (newest["previous"], newest["next"], newest["total"]) == (5, None, 6)
    assert [entry["text"] for entry in older["entries"]] == ["echo: m0", "m1", "echo: m1"]
    assert (older["previous"], older["next"]) == (2, 4)
    assert [entry["seq"] for entry in behind["entries"]] == [5, 6]


async def test_an_entry_has_what_its_line_has(place: Place) -> None:
    """Ids, calls and results, and our own records: what a person sees of a conversation."""
    call = [{"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "."}'}}]
    file = {"kind": "photo", "name": "a.png", "mime": "image/png", "size": 28, "ref": "media/ab/a.png"}
    lines = [
        make_line("user", "look", AT, message_id="m1", sender={"id": "7", "name": "Ada"}, attachments=[file]),
        make_line("assistant", "", AT, tool_calls=call, message_id="m1"),
        make_line("tool", "nothing", AT, tool_call_id="c1", name="ls", is_error=True, message_id="m1"),
        make_line("assistant", "done", AT, message_id="m1", final=True),
        make_line("system", "so far", AT, kind="overlay", first_kept=3, tokens_before=900),
        make_line("system", "see", AT, kind="note", edits="m1", message_id="m2"),
        make_line("system", "", AT, kind="undo", **{"from": 0}),
    ]
    async with place.services.store.open(SessionKey("web:all")) as session:
        await session.append(lines)
    found = (await entries(place, await session_of(place, "web:all")))["entries"]

    assert [entry["kind"] for entry in found] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "overlay",
        "edit",
        "undo",
    ]
    assert found[0]["sender"] == "Ada"
    assert found[0]["attachments"] == [file]
    assert found[1]["calls"] == [{"id": "c1", "name": "ls", "arguments": '{"path": "."}'}]
    assert (found[2]["call_id"], found[2]["is_error"]) == ("c1", True)
    assert found[3]["final"] is True
    assert (found[4]["first_kept"], found[4]["tokens_before"]) == (4, 900)
    assert (found[5]["edits"], found[5]["deleted"]) == ("m1", False)
    assert found[6]["since"] == 1


async def test_a_file_is_shown_as_what_it_is(place: Place, tmp_path: Path) -> None:
    """A picture is one by its bytes; all else is saved, and nothing outside the folder is there."""
    folder = tmp_path / "media" / "ab"
    folder.mkdir(parents=True)
    (folder / "a.png").write_bytes(PNG)
    (folder / "b.png").write_bytes(b"<html><script>alert(1)</script>")
    (tmp_path / "secret.txt").write_text("no")
    (folder / "link").symlink_to(tmp_path / "secret.txt")
    for own in (".ahead-1", ".incoming-1"):
        (tmp_path / "media" / own).write_text("half")
    picture = await place.http.get("/v1/media/ab/a.png")
    page = await place.http.get("/v1/media/ab/b.png")

    assert (picture.headers["content-type"], picture.content) == ("image/png", PNG)
    assert page.headers["content-type"] == "application/octet-stream"
    assert page.headers["content-disposition"].startswith("attachment")
    assert page.headers["content-security-policy"] == "default-src 'none'; sandbox"
    for path in (
        "ab/none",
        "ab",
        "%2e%2e/secret.txt",
        "ab/%2e%2e/%2e%2e/secret.txt",
        "ab/link",
        "/etc/passwd",
        ".ahead-1",
        "%2eincoming-1",
    ):
        assert (await place.http.get(f"/v1/media/{path}")).status_code == 404, path


async def test_a_large_file_is_sent_in_pieces_and_whole(place: Place, tmp_path: Path) -> None:
    (tmp_path / "media").mkdir(exist_ok=True)
    data = PNG + bytes(range(256)) * 3_000
    (tmp_path / "media/a.png").write_bytes(data)
    (tmp_path / "media/empty").write_bytes(b"")
    found = await asyncio.gather(*(place.http.get("/v1/media/a.png") for _ in range(12)))
    empty = await place.http.get("/v1/media/empty")

    assert {(each.headers["content-length"], each.content) for each in found} == {(str(len(data)), data)}
    assert (empty.status_code, empty.headers["content-length"], empty.content) == (200, "0", b"")


async def test_a_file_that_nobody_takes_is_read_one_piece_far_and_closed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(4 * PIECE_BYTES))
    found = opened(tmp_path, "a")
    assert found is not None
    file = found[0]

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            raise OSError("gone")

    async def receive() -> Message:
        return await asyncio.Future()

    with pytest.raises(ClientDisconnect):
        await FileInPieces("a", *found)({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)

    assert len(found[2]) == PIECE_BYTES
    assert file.closed
