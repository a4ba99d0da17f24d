"""What comes along with a message: kept by content, within its limits, or a line that says why not."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from channels.base import File
from channels.errors import ChannelDown, ChannelError, SendLater, SendNever
from channels.media import FileRefused, MediaFolder, safe_name
from channels.message import Attachment
from tests.gateway.embedded_place import files_at_most

MB = 2**20
PNG = b"\x89PNG\r\n\x1a\n" + b"picture"


class Source:
    """A platform's file: what each download does, one after the other; the last one again and again."""

    def __init__(self, *scripts: Sequence[bytes | BaseException | None]) -> None:
        self.scripts = list(scripts)
        self.begun = self.closed = self.pieces = 0
        self.hangs = asyncio.Event()

    async def fetch(self) -> AsyncIterator[bytes]:
        script = self.scripts[min(self.begun, len(self.scripts) - 1)]
        self.begun += 1
        try:
            for step in script:
                if isinstance(step, BaseException):
                    raise step
                if step is None:
                    self.hangs.set()
                    await asyncio.Event().wait()
                else:
                    self.pieces += 1
                    yield step
        finally:
            self.closed += 1

    def file(self, **more: Any) -> File:
        fields: dict[str, Any] = {"kind": "photo", "name": "", "mime": "", "size": None, "fetch": self.fetch}
        return File(**(fields | more))


def media(workspace: Path, **more: Any) -> MediaFolder:
    slept: list[float] = more.pop("slept", [])

    async def sleep(after_s: float) -> None:
        slept.append(after_s)

    return MediaFolder(workspace, **({"max_mb": 20, "timeout_s": 60.0, "sleep": sleep} | more))


async def kept(workspace: Path, content: bytes = PNG, **more: Any) -> Attachment:
    saved = await media(workspace).save(Source([content]).file(**more))
    assert isinstance(saved, Attachment)
    return saved


def leftovers(workspace: Path) -> list[Path]:
    return [each for each in workspace.glob("media/**/*") if each.is_file()]


async def test_a_file_lies_under_the_hash_of_what_it_holds(tmp_path: Path) -> None:
    digest = hashlib.sha256(PNG).hexdigest()

    saved = await media(tmp_path).save(Source([PNG[:3], PNG[3:]]).file(name="cat.png", size=5))

    assert saved == Attachment(
        kind="photo",
        name="cat.png",
        mime="image/png",
        size=len(PNG),
        ref=f"media/{digest[:2]}/{digest}.png",
    )
    assert (tmp_path / f"media/{digest[:2]}/{digest}.png").read_bytes() == PNG


async def test_folders_and_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        saved = await kept(tmp_path)
    finally:
        os.umask(old)

    path = tmp_path / saved.ref
    assert path.stat().st_mode & 0o777 == 0o600
    assert {each.stat().st_mode & 0o777 for each in (path.parent, path.parent.parent)} == {0o700}


async def test_the_same_content_is_stored_once_whatever_its_name(tmp_path: Path) -> None:
    one = await kept(tmp_path, name="a.png")
    two = await kept(tmp_path, name="b.jpeg")

    assert one.ref == two.ref
    assert (one.name, two.name) == ("a.png", "b.jpeg")
    assert len(leftovers(tmp_path)) == 1


async def test_a_file_of_just_the_largest_size_is_kept(tmp_path: Path) -> None:
    saved = await media(tmp_path, max_mb=1).save(Source([b"x" * MB]).file(size=MB))

    assert isinstance(saved, Attachment)


@pytest.mark.parametrize(
    ("tries", "waits"),
    [
        ([[PNG[:4], ChannelDown("reset")], [SendLater("slow", after_s=7.0)]], [1.0, 7.0]),
        ([[ChannelDown("502")]] * 4, [1.0, 2.0, 4.0, 8.0]),
    ],
)
async def test_an_outage_of_some_seconds_costs_no_file(
    tmp_path: Path, tries: list[list[Any]], waits: list[float]
) -> None:
    slept: list[float] = []

    saved = await media(tmp_path, slept=slept).save(Source(*tries, [PNG]).file())

    assert isinstance(saved, Attachment)
    assert (tmp_path / saved.ref).read_bytes() == PNG
    assert slept == waits
    assert len(leftovers(tmp_path)) == 1


REFUSED = "the platform does not provide it"
HALF = b"x" * (MB // 2)


@pytest.mark.parametrize(
    ("script", "size", "why", "begun", "pieces"),
    [
        # Too large as the platform says, or as it turns out: what it says is a hint.
        ([PNG], 2 * MB + 1, "over 2 MB", 0, 0),
        ([HALF] * 100, 10, "over 2 MB", 1, 5),
        ([b"x" * MB, None], None, "it took longer than 0.5 s", 1, 1),
        ([b"half", ChannelDown("https://host/file/bot1:SECRET/x")], None, REFUSED, 5, 5),
        ([b"half", SendNever("gone")], None, REFUSED, 1, 1),
        ([b"half", ChannelError("odd")], None, REFUSED, 1, 1),
        ([b"half", RuntimeError("a bug of the adapter")], None, REFUSED, 1, 1),
        ([b"half", ConnectionResetError(104, "reset")], None, REFUSED, 1, 1),
    ],
)
async def test_a_file_that_cannot_be_had_is_a_line_and_no_exception(
    tmp_path: Path, script: list[Any], size: int | None, why: str, begun: int, pieces: int
) -> None:
    source = Source(script)

    saved = await media(tmp_path, max_mb=2, timeout_s=0.5).save(source.file(kind="voice", size=size))

    assert saved == FileRefused(f"[voice not loaded: {why}]")
    assert (source.begun, source.closed, source.pieces) == (begun, begun, pieces)
    assert leftovers(tmp_path) == []


async def test_a_full_disk_is_a_line_and_leaves_no_half_file(tmp_path: Path) -> None:
    with files_at_most(MB):
        saved = await media(tmp_path).save(Source([b"x" * MB] * 3).file(kind="document"))

    assert saved == FileRefused("[document not loaded: it could not be saved]")
    assert leftovers(tmp_path) == []


async def test_who_is_cancelled_leaves_no_half_file(tmp_path: Path) -> None:
    source = Source([b"x" * 2 * MB, None])
    saving = asyncio.create_task(media(tmp_path).save(source.file()))
    await source.hangs.wait()

    saving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await saving

    assert (leftovers(tmp_path), source.closed) == ([], 1)


class Slow(type(Path())):  # type: ignore[misc]
    """A folder at which a thread is held up when it asks the system for it."""

    looked = threading.Event()
    there = threading.Event()

    def __fspath__(self) -> str:
        if threading.current_thread() is not threading.main_thread():
            self.looked.set()
            assert self.there.wait(20)
        return super().__fspath__()


async def test_who_is_cancelled_while_the_disk_is_slow_leaves_no_half_file(tmp_path: Path) -> None:
    saving = asyncio.create_task(media(Slow(tmp_path)).save(Source([b"x" * 2 * MB]).file()))
    assert await asyncio.to_thread(Slow.looked.wait, 20)

    saving.cancel()
    _, still = await asyncio.wait([saving], timeout=0.2)
    Slow.there.set()
    await asyncio.wait([saving])
    await asyncio.get_running_loop().shutdown_default_executor()

    assert still
    assert leftovers(tmp_path) == []


async def test_a_file_that_was_cut_short_on_the_disk_is_stored_anew(tmp_path: Path) -> None:
    saved = await kept(tmp_path)
    (tmp_path / saved.ref).write_bytes(b"")

    again = await kept(tmp_path)

    assert (tmp_path / again.ref).read_bytes() == PNG


async def test_half_files_of_yesterday_are_removed_at_start_and_nothing_else(tmp_path: Path) -> None:
    saved = await kept(tmp_path)
    old, fresh = (tmp_path / f"media/.incoming-{name}" for name in "ab")
    for each in (old, fresh, tmp_path / saved.ref):
        each.write_bytes(b"x")
    for each in (old, tmp_path / saved.ref):
        os.utime(each, (time.time() - 90_000,) * 2)

    media(tmp_path)

    assert sorted(leftovers(tmp_path)) == sorted([fresh, tmp_path / saved.ref])


@pytest.mark.parametrize(
    ("content", "said", "name", "mime", "suffix"),
    [
        (b"\xff\xd8\xff\xe0....", "", "", "image/jpeg", ".jpg"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/png", "x.png", "image/webp", ".png"),
        (b"GIF89a...", "application/octet-stream", "x", "image/gif", ".gif"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "application/octet-stream", "IMG_1", "image/heic", ".heic"),
        (b"hello", "", "notes.txt", "text/plain", ".txt"),
        (b"hello", "", "", "application/octet-stream", ".bin"),
        (b"OggS", "audio/ogg; codecs=opus", "", "audio/ogg", ".ogg"),
        (PNG, "application/pdf", "x.pdf", "application/pdf", ".pdf"),
        (b"hello", "text/html\r\nx: y", "x.tar.<gz>", "application/octet-stream", ".bin"),
        (b"hello", "", "x." + "a" * 40, "application/octet-stream", ".bin"),
    ],
)
async def test_the_kind_of_a_file_comes_from_its_bytes_the_platform_or_its_name(
    tmp_path: Path, content: bytes, said: str, name: str, mime: str, suffix: str
) -> None:
    saved = await kept(tmp_path, content, mime=said, name=name)

    assert (saved.mime, Path(saved.ref).suffix) == (mime, suffix)


async def test_a_file_without_a_name_is_called_by_its_kind(tmp_path: Path) -> None:
    assert (await kept(tmp_path, kind="photo")).name == "photo.png"


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ada\\cat.png", "cat.png"),
        ("a\0b\nc\x1b[31m.txt", "abc[31m.txt"),
        ("invoice\u202egpj.exe", "invoicegpj.exe"),
        ("half\ud83d.txt", "half.txt"),
        ("a:b|c?.txt", "a_b_c_.txt"),
        (" .. ", ""),
        ("..", ""),
        ("über straße.txt", "über straße.txt"),
        ("x" * 300 + ".tar", "x" * 116 + ".tar"),
        ("x" * 300, "x" * 120),
    ],
)
def test_a_name_loses_paths_and_what_cannot_be_seen(name: str, safe: str) -> None:
    assert safe_name(name) == safe


async def test_a_file_that_comes_again_is_dated_anew(tmp_path: Path) -> None:
    """Whoever lets go of it by age leaves it to the message that brought it last."""
    first = await kept(tmp_path)
    path = tmp_path / first.ref
    os.utime(path, (1_000, 1_000))
    began = time.time()

    assert await kept(tmp_path) == first
    assert began - 1 < path.stat().st_mtime <= time.time()
