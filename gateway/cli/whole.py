"""``memory export|erase`` and ``sessions clear --everything``: all that is kept of a chat or person."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import durable
from gateway.app.wiring_session import SessionServices
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.root import GlobalOptions
from gateway.config.agents import scopes_of
from gateway.config.settings import Settings
from gateway.errors import GatewayError, Unreachable
from gateway.service.client_message import NoAddress, inbound

if TYPE_CHECKING:
    from gateway.app.erasure import Erasure
    from session.kept.subject import Subject

# As of ``POST /clear-session``.
Report = dict[str, Any]
LETTERS_WAIT = "messages that wait in the queue: they are answered, and then appear in the transcript"


class NotSure(GatewayError):
    """Nobody said that it is meant."""


def export(opts: GlobalOptions, *, key: str, person: str, path: Path | None) -> None:
    """Write one tar, to the file or to stdout; a file that is there already stays."""
    if path is None and sys.stdout.isatty():
        raise GatewayError("a tar file cannot be printed to a terminal", hint="use -o PATH or a pipe")
    parts = attach.complete(_export(settings_of(opts), key, person, path))
    counted = output.counted(len(parts), "file")
    output.words(f"{counted}, {sum(part.size for part in parts)} bytes; manifest.json lists them")


async def _export(settings: Settings, key: str, person: str, path: Path | None) -> Sequence[Any]:
    # Only here is a tar written.
    from gateway.app.erasure import extras as rows_of
    from session.disk.threads import start_thread
    from session.kept.export import write
    from session.kept.rows import usage_of

    async with _erasure(settings, queue=False) as (erasure, services):
        subject = await erasure.subject(key=key, person=person)
        letters = await _parked(settings, subject)
        journals = await services.store.state.journals(subject.lanes)
        usage = await usage_of(services.store.state, subject)
        extras = [*usage, *rows_of(settings.workspace, subject, letters, journals)]

        def work(out: IO[bytes]) -> Sequence[Any]:
            return write(
                out,
                subject,
                services.store.layout,
                at=durable.now(),
                extras=extras,
                left_out=[LETTERS_WAIT],
            )

        if path is None:
            return await start_thread(lambda: work(sys.stdout.buffer), name="export")
        return await start_thread(lambda: _into(path, work), name="export")


def _into(path: Path, work: Any) -> Sequence[Any]:
    """Write a file that is whole once it has its name; one that is there is not written over."""
    temp = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with durable.replacing(path, temp=temp, new=True) as fd, os.fdopen(os.dup(fd), "wb") as out:
            parts: Sequence[Any] = work(out)
    except FileExistsError:
        raise GatewayError(f"{path} already exists", hint="choose another file") from None
    except OSError as error:
        raise GatewayError(
            f"{path} cannot be written: {error.strerror}", hint="choose another file"
        ) from error
    return parts


async def _parked(settings: Settings, subject: Subject) -> list[Mapping[str, Any]]:
    """Read the parked letters of a subject, whole."""
    async with attach.daemon(settings) as client:
        if client is not None:
            rows = [row for row in await client.parked() if row["key"] in subject.lanes]
            return [await client.parked_one(row["id"], row["key"]) for row in rows]
    if _has_no_queue(settings):
        return []
    from gateway.service import parked

    async with attach.queue(settings) as mailbox:
        found = [each for each in await mailbox.parked() if each.key in subject.lanes]
        return [parked.row(each) | {"body": each.body.decode("utf-8", "replace")} for each in found]


def erase(settings: Settings, *, key: str, person: str, asks: bool) -> Report:
    """Remove what is kept, once it was said that this is meant; return what that was."""
    from session.kept.subject import check_text

    check_text(person or key)
    if asks:
        _ask(f"Delete all data about {person or key} for good? [y/N] ")
    return attach.complete(erased(settings, key=key, person=person))


def tell(found: Report) -> None:
    """Say for people what was removed, and what stays."""
    for each in found["erased"]:
        output.rows(each["removed"], ("kind", "count", "bytes"))
        if not each["removed"]:
            output.words(f"there was no data about {each['name']}")
        for line in each["stays"]:
            output.words(f"kept: {line}")


async def erased(settings: Settings, *, key: str = "", person: str = "") -> Report:
    """Have the daemon erase, which ends the turns too; without one, do it here.

    Raises:
        NoText: the key or the name is not UTF-8.
        Unreachable, StateInUse, SessionError, ChannelError: it did not end; call it again.
    """
    async with attach.daemon(settings) as client:
        keys = [key] if key else list(scopes_of(settings).keys_of_person(person))
        if client is not None and all(map(can_be_sent, keys)):
            try:
                if key:
                    return await client.erase(key=key)
                return {"cleared": [], "erased": (await client.erase(person=person))["erased"]}
            except Unreachable:
                # A daemon that ends just now ends its turns with it; one that answers refused, and says why.
                if await client.alive():
                    raise
    async with _erasure(settings) as (erasure, _):
        if person:
            return {"cleared": [], "erased": [(await erasure.person(person)).as_dict()]}
        report, there = await erasure.key(key)
        return {"cleared": [key] if there else [], "erased": [report.as_dict()]}


def can_be_sent(key: str) -> bool:
    """Say whether a letter can have this key; files may have others."""
    try:
        inbound(key, "", kept=True)
    except (NoAddress, UnicodeError):
        return False
    return True


@asynccontextmanager
async def _erasure(
    settings: Settings, *, queue: bool = True
) -> AsyncIterator[tuple[Erasure, SessionServices]]:
    """Open what an erasure needs in this process."""
    from gateway.app.erasure import Erasure

    async with AsyncExitStack() as stack:
        mailbox = None
        if queue and not _has_no_queue(settings):
            mailbox = await stack.enter_async_context(attach.queue(settings))
        services = SessionServices(settings, status=lambda *_: [])
        stack.push_async_callback(services.aclose)
        yield Erasure(settings, services, mailbox=mailbox), services


def _has_no_queue(settings: Settings) -> bool:
    return settings.broker.embedded and not (settings.state / durable.STATE_FILE).exists()


def _ask(question: str) -> None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise NotSure("there is no terminal to ask for confirmation", hint="add --yes")
    sys.stderr.write(question)
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise NotSure("nothing was deleted", hint="answer y, or add --yes")
