"""The copies of damaged files are found again, however long the name of their chat, and no other chat's."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.store import places
from session.store.places import pattern_of
from session.store.writer import keep_original, originals_of
from session.transcript.key import SessionKey, marked_stem, plain_stem
from tests.session.store_place import Make, turn
from tests.support.place import write as put

AT = datetime(2026, 5, 1, 12, tzinfo=UTC)
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
SHORT, LONGEST = SessionKey("cli:" + "k" * 200), SessionKey("cli:" + "k" * 245)
LONG, LIKE_IT = SessionKey("cli:" + "k" * 220), SessionKey("cli:" + "k" * 221)
CUT = SessionKey("cli:" + "k" * 1_000)
KEYS = pytest.mark.parametrize("key", [SHORT, LONG, LONGEST, CUT], ids=lambda key: str(len(key)))


async def repaired(make: Make, key: SessionKey) -> Path:
    """Have a conversation of which a damaged line was kept aside; return its transcript."""
    async with make().open(key) as session:
        await session.append(turn("a"))
        path = session.path
    path.write_bytes(path.read_bytes() + b"no line at all\n")
    async with make().open(key) as session:
        await session.append(turn("b"))
    return path


def copies(workspace: Path) -> set[Path]:
    return set((workspace / "sessions").glob("*.corrupt-*"))


def kept(layout: Layout, path: Path, key: SessionKey) -> Path:
    """Keep a copy as a repair does."""
    with path.open("rb") as file:
        return keep_original(path, file.fileno(), now=AT)


def listed(layout: Layout, key: SessionKey, stem: str) -> list[Path]:
    return [each.path for each in places.of_key(layout, key, stem) if each.place.kind == "original"]


def stem_of(key: SessionKey) -> str:
    return plain_stem(key) if len(key) < 249 else marked_stem(key)


@KEYS
@pytest.mark.parametrize("everything", [False, True])
async def test_a_clear_takes_the_copy_of_a_long_name(
    make: Make, tmp_path: Path, key: SessionKey, everything: bool
) -> None:
    await repaired(make, key)
    assert len(copies(tmp_path)) == 1

    assert await make().clear(key, everything=everything)

    assert copies(tmp_path) == set()


async def test_of_two_long_names_that_begin_alike_each_has_its_own(make: Make, tmp_path: Path) -> None:
    await repaired(make, LONG)
    first = copies(tmp_path)
    await repaired(make, LIKE_IT)

    assert await make().clear(LIKE_IT)

    assert copies(tmp_path) == first


@KEYS
def test_a_copy_is_of_its_key_and_of_a_known_kind(tmp_path: Path, key: SessionKey) -> None:
    """Whatever became of its first line."""
    layout, stem = Layout(tmp_path), stem_of(key)
    path = layout.transcript(stem)
    put(path, "damaged")

    copy = kept(layout, path, key)

    assert copy.read_text() == "damaged"
    assert originals_of(path) == [copy]
    assert listed(layout, key, stem) == [copy]
    assert listed(layout, LIKE_IT, stem_of(LIKE_IT)) == []
    name = copy.relative_to(tmp_path).as_posix()
    assert pattern_of(name) == "sessions/{stem}.jsonl.corrupt-{ulid}"


def test_another_chat_may_have_the_name_of_a_copy(tmp_path: Path) -> None:
    """What ends in no ULID is a transcript of its own."""
    layout = Layout(tmp_path)
    for name in ("telegram_1.jsonl", "telegram_1.jsonl.corrupt-x.jsonl"):
        put(tmp_path / "sessions" / name, "x")
    (tmp_path / "sessions" / f"telegram_1.jsonl.corrupt-{ULID}").mkdir()

    assert originals_of(layout.transcript("telegram_1")) == []
