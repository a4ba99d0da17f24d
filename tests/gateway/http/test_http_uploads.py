"""Files that go along with a message of a client: handed in ahead, kept by a message alone, within limits."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from channels.media import AHEAD_FOR_S, MediaFolder
from gateway.http.messages import MAX_FILES
from gateway.service.tokens import Tokens
from tests.gateway.http_place import Place, open_place
from tests.support.guarantee import guarantee

pytestmark = guarantee("storage", "An uploaded file is deleted within an hour unless a message uses it.")

PNG = b"\x89PNG\r\n\x1a\n" + b"picture"
TOKEN = "correct-horse-battery-staple"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    async with open_place(tmp_path, media={"max_mb": 1}) as place:
        yield place


async def sent(place: Place, data: bytes, *, name: str = "cat.png", mime: str = "image/png") -> Any:
    headers = {"Content-Type": mime}
    answer = await place.http.post("/v1/media", content=data, params={"name": name}, headers=headers)
    return answer.json() if answer.status_code == 201 else answer.status_code


def on_disk(workspace: Path) -> list[str]:
    """Name the files of people, those that wait for a message among them."""
    return sorted(
        path.relative_to(workspace).as_posix() for path in (workspace / "media").rglob("*") if path.is_file()
    )


def attached(file: dict[str, Any]) -> dict[str, Any]:
    return {name: file[name] for name in ("ref", "name", "mime", "kind")}


async def test_it_goes_with_its_message_alone(place: Place, tmp_path: Path) -> None:
    """It lies in its place once a message names it, without a text too; a repeat is the same message."""
    file = await sent(place, PNG)
    ahead = on_disk(tmp_path)
    unseen = await place.http.get("/v1/" + file["ref"])
    body = {"chat_id": "ada", "text": "", "id": "m1", "attachments": [attached(file)]}
    first = await place.http.post("/v1/messages", json=body, params={"wait": "30"})
    again = await place.http.post("/v1/messages", json=body, params={"wait": "30"})
    seen = await place.http.get("/v1/" + file["ref"])
    (session,) = (await place.http.get("/v1/sessions")).json()["sessions"]
    entries = (await place.http.get(f"/v1/sessions/{session['id']}/entries")).json()["entries"]

    digest = hashlib.sha256(PNG).hexdigest()
    assert file == {
        "ref": f"media/{digest[:2]}/{digest}.png",
        "kind": "photo",
        "name": "cat.png",
        "mime": "image/png",
        "size": len(PNG),
    }
    assert ahead == [f"media/.ahead-{digest}.png"]
    assert unseen.status_code == 404
    assert (first.status_code, again.json()) == (200, first.json())
    assert on_disk(tmp_path) == [file["ref"]]
    assert (seen.content, seen.headers["content-type"]) == (PNG, "image/png")
    (shown,) = entries[0]["attachments"]
    assert (shown["ref"], shown["name"], shown["size"]) == (file["ref"], "cat.png", len(PNG))


async def test_what_no_message_names_goes(place: Place, tmp_path: Path) -> None:
    """Taken back it is gone at once, else after an hour; what a message has stays, whoever takes it back."""
    back = await sent(place, b"back")
    kept = await sent(place, b"kept", name="kept.txt", mime="text/plain")
    late = await sent(place, b"late")
    await place.post("look", attachments=[attached(kept)])
    gone = await place.http.delete("/v1/" + back["ref"])
    not_gone = [await place.http.delete("/v1/" + file["ref"]) for file in (back, kept)]
    (ahead,) = (tmp_path / "media").glob(".ahead-*")
    hour_ago = time.time() - AHEAD_FOR_S - 1
    os.utime(ahead, (hour_ago, hour_ago))
    await sent(place, b"another")
    missing = await place.post("too late", attachments=[attached(late)])

    assert gone.status_code == 200
    assert [each.status_code for each in not_gone] == [404, 404]
    assert missing.status_code == 400
    assert missing.json()["hint"].startswith("upload it first: POST /v1/media")
    assert [name for name in on_disk(tmp_path) if ".ahead-" not in name] == [kept["ref"]]
    assert MediaFolder(tmp_path, 1, 60).held_bytes() == len(b"another")


async def test_limits(place: Place, tmp_path: Path) -> None:
    """Over the limit, said before or not, empty, or nothing that a name may be: told, and nothing stays."""
    large = b"x" * (2**20 + 1)

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(large), 2**16):
            yield large[at : at + 2**16]

    answers = [
        await place.http.post("/v1/media", content=large),
        await place.http.post("/v1/media", content=pieces()),
        await place.http.post("/v1/media", content=b""),
        await place.http.post("/v1/media", content=b"x", params={"name": "x" * 256}),
        await place.http.delete("/v1/media/../../state/tokens.json"),
        await place.http.delete("/v1/media/" + "a" * 70),
    ]
    exact = await sent(place, large[:-1], name="../../../etc/pass\u202ewd", mime="text/html; x=1")

    assert [each.status_code for each in answers[:4]] == [413, 413, 400, 400]
    assert {each.status_code for each in answers[4:]} <= {400, 404, 405}
    assert answers[0].json()["error"] == answers[1].json()["error"] == "the file is over 1 MiB"
    assert (exact["name"], exact["kind"], exact["size"]) == ("passwd", "document", 2**20)
    assert on_disk(tmp_path) == [f"media/.ahead-{Path(exact['ref']).name}"]


async def test_a_client_that_leaves_leaves_nothing(place: Place, tmp_path: Path) -> None:
    """Half a file is none; the next one is taken."""
    left = asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        yield b"x" * 2**16
        left.set()
        await asyncio.Event().wait()

    async with httpx.AsyncClient(base_url=place.server.url, trust_env=False) as client:
        sending = asyncio.create_task(client.post("/v1/media", content=half()))
        await left.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    file = await sent(place, b"whole")

    assert on_disk(tmp_path) == [f"media/.ahead-{Path(file['ref']).name}"]


async def test_a_client_that_is_refused_while_it_sends_reads_the_answer(tmp_path: Path) -> None:
    """A connection that is reset would hide it."""
    size_mb = 24
    waiting = tmp_path / "media" / ".ahead-others"
    waiting.parent.mkdir()
    async with open_place(tmp_path, media={"max_mb": size_mb}) as place:
        with waiting.open("wb") as file:
            file.truncate(MAX_FILES * size_mb * 2**20 + 1)
        answers = [
            await place.http.post("/v1/media", content=b"x" * size_mb * 2**20),
            await place.http.post("/v1/media", content=b"x" * (size_mb * 2**20 + 1)),
            await place.http.post("/v1/messages", content=b"x" * size_mb * 2**20),
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(place.server.url).port)
        head = f"POST /v1/media HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size_mb * 2**20}\r\n\r\n"
        writer.write(head.encode())
        for _ in range(size_mb * 16):
            writer.write(b"x" * 2**16)
            await writer.drain()
        status = await reader.readline()
        writer.close()

    assert [answer.status_code for answer in answers] == [503, 413, 413]
    assert answers[0].json()["error"] == "too many uploads wait for their messages"
    assert answers[0].headers["Retry-After"] == "5"
    assert status.startswith(b"HTTP/1.1 503 ")


async def test_who_may(tmp_path: Path) -> None:
    """Whoever may write; to sign out needs no token, and takes the cookie back."""
    async with open_place(tmp_path, http={"token": TOKEN}) as place:
        reader = Tokens(place.application.settings.state).add("reader", "read")
        shown = [{"Authorization": f"Bearer {each}"} for each in (TOKEN, reader)]
        answers = [
            await place.http.post("/v1/media", content=b"x" * 3_000_000, headers=headers)
            for headers in (*shown, {})
        ]
        await place.http.post("/v1/login", json={"token": TOKEN})
        inside = await place.http.get("/v1/token")
        out = await place.http.post("/v1/logout")
        outside = await place.http.get("/v1/token")
        foreign = await place.http.post("/v1/logout", headers={"Origin": "http://evil.example"})

    assert [each.status_code for each in answers] == [201, 413, 401]
    assert (inside.status_code, out.status_code, outside.status_code) == (200, 200, 401)
    assert foreign.status_code == 403
    assert "Max-Age=0" in out.headers["set-cookie"]
    assert [path.stat().st_size for path in (tmp_path / "media").iterdir()] == [3_000_000]
