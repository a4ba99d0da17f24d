"""Fetches the files of a message into ``media/``, named by the hash of what they hold, before it is put."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mimetypes
import os
import re
import unicodedata
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Literal, ParamSpec, TypeVar

import structlog

import durable
from channels.base import File
from channels.errors import ChannelDown, ChannelError, SendLater
from channels.message import Attachment

P = ParamSpec("P")
T = TypeVar("T")
log = structlog.get_logger(__name__)
MAX_NAME_CHARS: Final = 120
# With the waits between them a quarter of a minute: what is not there then is lost to its message for good.
_TRIES: Final = 5
_BLOCK_BYTES: Final = 2**20
_STALE_S: Final = 86_400.0
_TEMP: Final = ".incoming-"
# Files that came ahead of the message that names them.
_AHEAD: Final = ".ahead-"
AHEAD_FOR_S: Final = 3_600.0
_MIME = re.compile(r"[a-z0-9][\w.+-]{0,63}/[\w.+-]{1,63}")
_UNKNOWN: Final = "application/octet-stream"
_EXTENSION = re.compile(r"\.[a-z0-9]{1,10}")
_RESERVED = re.compile(r'[<>:"/\\|?*]')


# Gives a whole file (temporary path, what it is, digest, size, first bytes) its place.
Settle = Callable[[Path, File, str, int, bytes], Attachment]


@dataclass(frozen=True, slots=True)
class FileRefused:
    """A file that is not there; ``text`` says so in the message, ``cause`` why to programs."""

    text: str
    cause: Literal["large", "late", "away", "disk"] = field(default="away", compare=False)


class _TooLarge(Exception):
    """More bytes came than a file may have."""


class _Unsaved(Exception):
    """The disk refused; its words."""


class MediaFolder:
    """The folder of what people sent.

    Args:
        workspace: its ``media/`` holds the files, as ``<2 hex>/<sha256>.<extension>``.
        max_mb: the largest file, in units of 2**20 bytes.
        timeout_s: how long one file may take, all tries together.
        sleep: waits between two tries.
    """

    def __init__(
        self,
        workspace: Path,
        max_mb: int,
        timeout_s: float,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._workspace = workspace
        self._folder = workspace / "media"
        self._max_mb = max_mb
        self._max_bytes = max_mb * 2**20
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._remove_stale()

    async def save(self, file: File) -> Attachment | FileRefused:
        """Return where a file lies durably, or the line that stands for it in the text. Never raises."""
        return await self._save(file, self._settle)

    async def hold(self, file: File) -> Attachment | FileRefused:
        """Take a file whose message is yet to come; ``bring`` gives it its place, within an hour.

        As ``save``; what no message names by then is removed.
        """
        return await self._save(file, self._set_ahead)

    async def bring(self, ref: str) -> None:
        """Give a file that came ahead the place ``ref`` that it was promised, or date anew what lies there.

        Raises:
            OSError: there is no such file.
        """
        await asyncio.to_thread(self._bring, ref)

    async def let_go(self, ref: str) -> bool:
        """Remove a file that came ahead and is not wanted; say whether it was there."""
        ahead = self._ahead(Path(ref).name)
        try:
            await asyncio.to_thread(ahead.unlink)
        except FileNotFoundError:
            return False
        return True

    def held_bytes(self) -> int:
        """Return how much of what came ahead waits; what waits for longer than an hour is removed first."""
        self._remove_stale()
        size = 0
        for path in self._folder.glob(f"{_AHEAD}*"):
            with contextlib.suppress(OSError):
                size += path.stat().st_size
        return size

    async def _save(self, file: File, settle: Settle) -> Attachment | FileRefused:
        if file.size is not None and file.size > self._max_bytes:
            return self._too_large(file)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._fetch(file, settle)
        except TimeoutError:
            return FileRefused(f"[{file.kind} not loaded: it took longer than {self._timeout_s:g} s]", "late")
        except _TooLarge:
            return self._too_large(file)
        except ChannelError as error:
            log.warning("file.unreachable", kind=file.kind, error=str(error))
            return FileRefused(f"[{file.kind} not loaded: the platform does not provide it]")
        except _Unsaved as error:
            log.warning("file.unsaved", kind=file.kind, error=str(error))
            return FileRefused(f"[{file.kind} not loaded: it could not be saved]", "disk")
        except Exception:
            # One file ends here, whatever its adapter did.
            log.exception("file.failed", kind=file.kind)
            return FileRefused(f"[{file.kind} not loaded: the platform does not provide it]")

    def _too_large(self, file: File) -> FileRefused:
        return FileRefused(f"[{file.kind} not loaded: over {self._max_mb} MB]", "large")

    async def _fetch(self, file: File, settle: Settle) -> Attachment:
        tries = 0
        while True:
            try:
                return await self._download(file, settle)
            except (ChannelDown, SendLater) as error:
                tries += 1
                if tries == _TRIES:
                    raise
                await self._sleep(error.after_s if isinstance(error, SendLater) else 2.0 ** (tries - 1))

    async def _download(self, file: File, settle: Settle) -> Attachment:
        temp = self._folder / f"{_TEMP}{os.urandom(16).hex()}"
        digest, size, head = hashlib.sha256(), 0, b""
        block = bytearray()
        try:
            async with contextlib.aclosing(_closing(file)) as pieces:
                async for piece in pieces:
                    size += len(piece)
                    if size > self._max_bytes:
                        raise _TooLarge
                    block += piece
                    if len(block) >= _BLOCK_BYTES:
                        head = head or bytes(block[:32])
                        await _on_disk(_append, temp, bytes(block), digest)
                        block.clear()
            head = head or bytes(block[:32])
            await _on_disk(_append, temp, bytes(block), digest)
            return await _on_disk(settle, temp, file, digest.hexdigest(), size, head)
        finally:
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)

    def _settle(self, temp: Path, file: File, digest: str, size: int, head: bytes) -> Attachment:
        """Give a whole file its place, unless the same content is there; durable on return."""
        made = self._described(file, digest, size, head)
        target = self._workspace / made.ref
        durable.make_folder(target.parent)
        known = _brought_before(target.parent, digest, size)
        if known is None:
            durable.settle(temp, target)
            return made
        return made.model_copy(update={"ref": known.relative_to(self._workspace).as_posix()})

    def _set_ahead(self, temp: Path, file: File, digest: str, size: int, head: bytes) -> Attachment:
        made = self._described(file, digest, size, head)
        durable.settle(temp, self._ahead(Path(made.ref).name))
        return made

    def _ahead(self, name: str) -> Path:
        return self._folder / f"{_AHEAD}{name}"

    def _bring(self, ref: str) -> None:
        target = self._workspace / ref
        ahead = self._ahead(target.name)
        try:
            # It was brought now: what it waited for does not count as its age.
            os.utime(ahead)
            durable.make_folder(target.parent)
            durable.settle(ahead, target)
        except FileNotFoundError:
            os.utime(target)

    def _described(self, file: File, digest: str, size: int, head: bytes) -> Attachment:
        import filetype

        name = safe_name(file.name)
        mime = _mime_of(file, name, head)
        suffix = Path(name).suffix.lower()
        if not _EXTENSION.fullmatch(suffix):
            # To filetype, bytes of no known kind are a font.
            known = filetype.get_type(mime=mime) if mime != _UNKNOWN else None
            suffix = f".{known.extension.lower()}" if known else mimetypes.guess_extension(mime) or ".bin"
        target = self._folder / digest[:2] / f"{digest}{suffix}"
        return Attachment(
            kind=file.kind,
            name=name or f"{file.kind}{suffix}",
            mime=mime,
            size=size,
            ref=target.relative_to(self._workspace).as_posix(),
        )

    def _remove_stale(self) -> None:
        """Remove what a process that died had fetched by half a day ago, and what no message named."""
        for prefix, most_s in ((_TEMP, _STALE_S), (_AHEAD, AHEAD_FOR_S)):
            for path in self._folder.glob(f"{prefix}*"):
                # Another process may remove it at this moment.
                with contextlib.suppress(OSError):
                    if path.stat().st_mtime < durable.wall_s() - most_s:
                        path.unlink()


def safe_name(name: str) -> str:
    """Return a name without path, control and invisible characters, at most 120 long; perhaps empty."""
    last = re.split(r"[/\\]", unicodedata.normalize("NFC", name))[-1]
    shown = "".join(c for c in last if unicodedata.category(c) not in _HIDDEN)
    shown = _RESERVED.sub("_", shown).strip(". ")
    if len(shown) <= MAX_NAME_CHARS:
        return shown
    suffix = Path(shown).suffix
    suffix = suffix if len(suffix) <= 11 else ""
    return shown[: MAX_NAME_CHARS - len(suffix)] + suffix


_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def _mime_of(file: File, name: str, head: bytes) -> str:
    """Say what a file is: an image by its first bytes, anything else by the platform, else by its name."""
    import filetype

    said = file.mime.partition(";")[0].strip().lower()
    said = said if _MIME.fullmatch(said) else ""
    if said in ("", _UNKNOWN) or said.startswith("image/"):
        seen = filetype.image_match(head)
        if seen is not None:
            return str(seen.mime)
    return said or mimetypes.guess_type(name)[0] or _UNKNOWN


def _brought_before(folder: Path, digest: str, size: int) -> Path | None:
    """Return the file of this content, durable and dated anew; None where there is none."""
    for path in folder.glob(f"{digest}.*"):
        # Who lets go of old files may take it at this moment: then it is written anew.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == size:
                # Its date says when a message brought it last: it stays while lines that name it are older.
                os.utime(path)
                # Another process may have put it there a moment ago, and not synced its name yet.
                durable.sync_folder(folder)
                return path
    return None


async def _closing(file: File) -> AsyncGenerator[bytes, None]:
    """Yield what a file yields; its download ends when this is closed."""
    pieces = file.fetch()
    try:
        async for piece in pieces:
            yield piece
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()


async def _on_disk(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Work in a thread; who is cancelled stays until it is over, lest it make anew what is then removed."""
    running = asyncio.get_running_loop().run_in_executor(None, partial(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()
        raise
    except OSError as error:
        raise _Unsaved(error.strerror or type(error).__name__) from error


def _append(temp: Path, block: bytes, digest: hashlib._Hash) -> None:
    """Add a block. The file is opened anew each time: who is cancelled leaves no descriptor behind."""
    durable.make_folder(temp.parent)
    fd = durable.open_private(temp, os.O_WRONLY | os.O_APPEND)
    try:
        durable.write_all(fd, block)
    finally:
        os.close(fd)
    digest.update(block)
