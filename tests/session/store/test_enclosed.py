"""Files of ``media/`` go with the last conversation that names them, never those of a letter that waits."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.store.media import UNREAD_FOR, AwaitedFiles, named_in_files, still_named
from session.transcript import archive
from tests.session.retention_place import ADA, BOB, World, brought

CAT, DOG = "media/ca/cat.jpg", "media/do/dog.jpg"
NONE_WAITS = AwaitedFiles(complete=True)


def seen(awaited: AwaitedFiles) -> Callable[[], Awaitable[AwaitedFiles]]:
    """Whoever looks at the letters sees these."""

    async def look() -> AwaitedFiles:
        return awaited

    return look


def came(workspace: Path, ref: str, *, hours: float = -1) -> Path:
    """Put a file there as a message brought it, before the start where no other time is said."""
    return brought(workspace, ref, hours=hours)


def file(ref: str) -> dict[str, object]:
    return {"attachments": [{"kind": "photo", "name": "x", "mime": "image/jpeg", "size": 3, "ref": ref}]}


async def test_what_another_chat_names_too_stays_until_that_is_cleared(world: World, tmp_path: Path) -> None:
    cat = came(tmp_path, CAT)
    await world.say("a", **file(CAT))
    await world.say("b", BOB, **file(CAT))
    async with world.store.open(BOB) as session:
        await session.end()
    await world.store.clear(ADA, everything=True, awaited=seen(NONE_WAITS))
    assert cat.exists()
    await world.store.clear(BOB, everything=True, awaited=seen(NONE_WAITS))

    assert not cat.exists()


async def test_what_came_again_with_a_letter_that_waits_stays(world: World, tmp_path: Path) -> None:
    """It is younger than the line that names it: the next letter of it has no line yet."""
    await world.say("a", **file(CAT))
    cat = came(tmp_path, CAT, hours=1)

    await world.store.clear(ADA, everything=True, awaited=seen(NONE_WAITS))

    assert cat.exists()


async def test_what_a_letter_names_stays_until_neither_it_nor_a_line_does(
    world: World, tmp_path: Path
) -> None:
    """Two messages brought the same file at once; only the first one has its line yet."""
    cat = came(tmp_path, CAT)
    await world.say("a", **file(CAT))
    waits = AwaitedFiles(frozenset([CAT]), complete=True)
    await world.store.clear(ADA, everything=True, awaited=seen(waits))
    assert cat.exists()
    await world.say("b", BOB, **file(CAT))
    await world.store.clear(BOB, everything=True, awaited=seen(NONE_WAITS))

    assert not cat.exists()


@pytest.mark.parametrize(("before", "stays"), [(timedelta(hours=1), True), (UNREAD_FOR, False)])
async def test_where_letters_cannot_be_read_what_came_lately_stays(
    world: World, tmp_path: Path, before: timedelta, stays: bool
) -> None:
    cat = came(tmp_path, CAT, hours=-before.total_seconds() / 3600)
    await world.say("a", **file(CAT))

    await world.store.clear(ADA, everything=True)

    assert cat.exists() == stays


@pytest.mark.parametrize("ref", ["media/../state/x", "media/link.jpg", "state/x"])
async def test_nothing_outside_of_media_is_deleted(world: World, tmp_path: Path, ref: str) -> None:
    secret = came(tmp_path, "state/x")
    (tmp_path / "media").mkdir()
    (tmp_path / "media/link.jpg").symlink_to(secret)
    await world.say("a", **file(ref))

    await world.store.clear(ADA, everything=True, awaited=seen(NONE_WAITS))

    assert secret.exists()


async def test_retention_takes_the_media_of_what_it_deletes(world: World, tmp_path: Path) -> None:
    cat, dog = came(tmp_path, CAT), came(tmp_path, DOG)
    await world.say("a", **file(CAT))
    await world.end()
    await world.say("b", **file(DOG))
    await world.end()
    await world.say("c")
    world.clock.forward(days=31)
    await world.say("d")
    await world.pruned(dry_run=True)
    assert cat.exists()
    await world.pruned()

    assert (cat.exists(), dog.exists()) == (False, False)


def torn(line: bytes) -> bytes:
    return line[:-1]


def listed(line: bytes) -> bytes:
    return b"[" + line + b"]"


@pytest.mark.parametrize("damage", [torn, listed])
async def test_a_damaged_line_of_an_ended_session_keeps_nothing_from_being_erased(
    world: World, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    cat = came(tmp_path, CAT)
    await world.say("a", **file(CAT))
    await world.end()
    damaged(archive.newest(world.store.layout, "telegram_1"), damage)

    await world.store.clear(ADA, everything=True, awaited=seen(NONE_WAITS))

    assert not cat.exists()
    assert archive.newest(world.store.layout, "telegram_1") is None


async def test_a_damaged_line_does_not_end_the_round_of_retention(world: World, tmp_path: Path) -> None:
    cat = came(tmp_path, CAT)
    for text in ("a", "b"):
        await world.say(text, **file(CAT))
        await world.end()
    first = archive.of_stem(world.store.layout, "telegram_1")[0].path
    damaged(first, torn)
    await world.say("c")
    await world.end()
    world.clock.forward(days=31)
    await world.pruned()

    left = archive.of_stem(world.store.layout, "telegram_1")
    assert (len(left), first.exists(), cat.exists()) == (0, False, False)


async def test_what_a_copy_of_a_damaged_transcript_names_can_be_told(world: World, tmp_path: Path) -> None:
    await world.say("a", **file(CAT))
    damaged(tmp_path / "sessions/telegram_1.jsonl", torn)
    await world.say("b")
    (copy,) = (tmp_path / "sessions").glob("*.corrupt-*")

    assert named_in_files([copy]) == {CAT: datetime.fromtimestamp(copy.stat().st_mtime, UTC)}


def damaged(path: Path | None, damage: Callable[[bytes], bytes]) -> None:
    """Damage the lines of a transcript that name a file."""
    assert path is not None
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"".join((damage(each) if b'"media/' in each else each) + b"\n" for each in lines))


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may become somebody else")
@pytest.mark.parametrize(
    "barred", ["sessions", "sessions/archive/telegram_1", "sessions/archive/telegram_1/x"]
)
def test_what_a_folder_that_cannot_be_listed_may_name_stays(barred: str) -> None:
    with tempfile.TemporaryDirectory() as top:
        workspace = Path(top)
        workspace.chmod(0o711)
        (workspace / "sessions/archive/telegram_1/x").mkdir(parents=True)
        (workspace / barred / "a.jsonl").write_text(f'{{"ref":"{CAT}"}}')
        for path in workspace.rglob("*"):
            path.chmod(0o755)
        (workspace / barred).chmod(0o700)
        child = os.fork()
        if child == 0:
            status = 9
            try:
                os.setuid(12345)
                status = int(still_named(Layout(workspace), {CAT, DOG}) != {CAT, DOG})
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
