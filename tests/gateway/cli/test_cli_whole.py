"""``memory export`` and ``memory erase``: all that is kept of a chat or person, in one file or no more."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app.daemons import DaemonRegistry
from tests.gateway.cli_place import Ran
from tests.gateway.erasing_place import ADA, PEOPLE, holding, planted
from tests.gateway.http_place import open_place
from tests.support.guarantee import guarantee
from tests.support.place import write


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with Ada and Bob in every place."""
    monkeypatch.setenv("CHAT_GATEWAY_PEOPLE", json.dumps(PEOPLE))
    asyncio.run(planted(tmp_path))
    return tmp_path


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest, and the bytes of all other files by their names below the first folder."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            assert member.mode == 0o600
            found[member.name.partition("/")[2]] = file.read()
    return json.loads(found.pop("manifest.json")), found


@guarantee(
    "privacy",
    "An export holds all data of a chat or person, complete even during writes, and nothing of others.",
)
def test_a_person_is_exported_whole_and_alone(place: Path) -> None:
    """Each file that holds a word of hers is there with its bytes; the manifest names them."""
    target = place.parent / "ada.tar"

    ran = Ran(place, "memory", "export", "--person", "ada", "-o", str(target))

    assert (ran.code, ran.bytes) == (0, b"")
    assert target.stat().st_mode & 0o777 == 0o600
    manifest, files = unpacked(target.read_bytes())
    assert {part["name"].partition("/")[2] for part in manifest["files"]} == set(files)
    for part in manifest["files"]:
        data = files[part["name"].partition("/")[2]]
        assert (part["size"], part["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    names = ("recall", "vectors", "gateway.db", "channels.db", "usage", "chat_history")
    shared = (*(f"state/{name}" for name in names), "cron/jobs.json", "media/")
    for name in holding(place, "sesame"):
        if not name.startswith(shared):
            assert files[name] == (place / name).read_bytes(), name
    rows = {name: data for name, data in files.items() if name.startswith("rows/")}
    names = ("usage.jsonl", "jobs.json", "pairing.json", "parked.json", "journal.jsonl")
    assert set(rows) == {f"rows/{name}" for name in names}
    assert {json.loads(row)["key"] for row in rows["rows/journal.jsonl"].splitlines()} >= {ADA}
    assert b"sesame job" in rows["rows/jobs.json"]
    assert b"sesame waits" in rows["rows/parked.json"]
    assert len(rows["rows/usage.jsonl"].splitlines()) == 3
    assert sum(name.endswith("-sesame.txt") for name in files if name.startswith("media/")) == 2
    assert not [name for name, data in files.items() if b"bobwords" in data]
    assert manifest["of"] == {"person": "ada"}


def test_a_key_goes_to_stdout_without_what_others_share(place: Path) -> None:
    """The memory of her person is of her other chats, too: the manifest says that it is left out."""
    ran = Ran(place, "memory", "export", ADA)

    manifest, files = unpacked(ran.bytes)
    assert ran.code == 0
    assert "sessions/telegram_1.jsonl" in files
    assert not [name for name in files if "people" in name or "cli_ada" in name]
    assert any("memory/people/ada" in line for line in manifest["left_out"])
    again = Ran(place, "memory", "export", ADA, "-o", str(place / "a.tar"))
    taken = Ran(place, "memory", "export", ADA, "-o", str(place / "a.tar"))
    assert (again.code, taken.code) == (0, 1)
    assert "already exists" in taken.err
    assert list(place.glob(".a.tar*")) == []


def test_one_memory_for_all_stays_and_it_is_said(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAT_GATEWAY_MEMORY__SCOPE", "workspace")
    write(place / "memory" / "MEMORY.md", "of all")

    exported, _ = unpacked(Ran(place, "memory", "export", ADA).bytes)
    erased = Ran(place, "memory", "erase", ADA, "--yes")

    assert any("files/ of the workspace" in line for line in exported["left_out"])
    assert "kept: memory/ and files/ of the workspace" in erased.err
    assert (place / "memory" / "MEMORY.md").read_text() == "of all"


def test_nothing_is_erased_before_somebody_says_yes(place: Path) -> None:
    before = holding(place, "sesame")

    ran = Ran(place, "memory", "erase", "--person", "ada")

    assert ran.code == 1
    assert ran.err.splitlines()[-1] == "try: add --yes"
    assert holding(place, "sesame") == before
    assert Ran(place, "memory", "erase", "--person", "eve", "--yes").code == 1
    assert holding(place, "sesame") == before


def test_it_says_what_it_removed(place: Path) -> None:
    """In a table, and as JSON; done again there is nothing left."""
    table = Ran(place, "memory", "erase", ADA, "--yes")
    first = json.loads(Ran(place, "memory", "erase", "--person", "ada", "--yes", "--json").out)
    again = json.loads(Ran(place, "memory", "erase", "--person", "ada", "--yes", "--json").out)

    assert table.out.splitlines()[0].split() == ["KIND", "COUNT", "BYTES"]
    assert "archive" in table.out
    (row,) = [row for row in first[0]["removed"] if row["kind"] == "memory"]
    assert row["count"] >= 5
    assert row["bytes"] >= 5 * len("sesame\n")
    assert [row["kind"] for row in again[0]["removed"]] in ([], ["journal"])
    assert first[0]["stays"]


@pytest.mark.parametrize(
    "words",
    [
        *("memory erase {} --yes", "memory erase {}", "memory erase --person {} --yes", "memory export {}"),
        "sessions clear --everything {}",
    ],
)
def test_a_name_of_a_terminal_that_is_not_utf_8_is_refused(place: Path, words: str) -> None:
    """Nothing is asked, removed or owed, so that the next start has nothing to stumble over."""
    before = holding(place, "sesame")

    ran = Ran(place, *words.format("cli:M\udcfcller").split())

    assert (ran.code, ran.bytes) == (1, b"")
    assert "is not UTF-8" in ran.err
    assert ran.err.splitlines()[-1].startswith("try: ")
    assert holding(place, "sesame") == before
    assert list(place.glob("state/erasing/*")) == []


async def test_over_http_a_person_goes_too(tmp_path: Path) -> None:
    """The same route as of a chat; an unknown name is 404, and less than everything is no request."""
    await planted(tmp_path)
    async with open_place(tmp_path, people=PEOPLE) as place:

        async def post(**body: Any) -> httpx.Response:
            return await place.http.post("/clear-session", json=body, timeout=60)

        assert (await post(person="eve", everything=True)).status_code == 404
        assert (await post(person="ada")).status_code == 400
        with DaemonRegistry(tmp_path).entry(url=place.server.url, role="all"):
            answer = await post(person="ada", everything=True)

        assert answer.status_code == 200
        assert {row["kind"] for row in answer.json()["erased"][0]["removed"]} >= {"memory", "archive"}
        assert holding(tmp_path, "sesame") == set()
