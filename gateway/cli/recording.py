"""``record`` and ``replay``: what was asked, in a file; and asked again of another gateway."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import re
import socket
from collections.abc import Iterator
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gateway.app.daemons import DaemonRegistry
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.config.finding import contents
from gateway.config.load import MAX_SECRET_BYTES
from gateway.config.settings import Settings
from gateway.errors import ConfigError, GatewayError
from gateway.http.client import Client
from gateway.recording import letter, masking, replaying
from gateway.recording.comparing import Report
from gateway.recording.gathering import gather, workspace_name
from gateway.recording.letter import Recording
from gateway.recording.replaying import Plan, Played

_AGO: Final = re.compile(r"(\d{1,6})([mhd])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days"}
_RUN: Final = re.compile(r"[a-z0-9-]{1,40}")
_SAY_EACH_S: Final = 10.0


def record(args: argparse.Namespace) -> int:
    """Write a recording and print its path."""
    settings = settings_of(args)
    now = datetime.now(UTC)
    since, until = _when(args.since, now, settings.zone), _when(args.until, now, settings.zone)
    if since >= until:
        raise ConfigError([f"--since {args.since} is not before --until"], hint="chat-gateway record --help")
    with _words(args.path):
        if args.path.exists():
            raise FileExistsError(errno.EEXIST, "it is there already", str(args.path))
        recording, unread = gather(settings.workspace, since=since, until=until, keys=args.key or ())
        letter.write(args.path, masking.masked(recording) if args.mask else recording)
    for why in unread:
        output.words(f"not in it: {why}")
    for what, count in recording.left_out.items():
        output.words(f"not in it: {count} {what}")
    chats = len({each.key for each in recording.letters})
    letters = output.counted(len(recording.letters), "letter")
    output.words(f"{letters} of {output.counted(chats, 'chat')}, {_span(since, until, settings.zone)}")
    output.data(str(args.path))
    return 0


def replay(args: argparse.Namespace) -> int:
    """Ask a recording again; 1 where order or outcomes differ."""
    settings = settings_of(args)
    run = args.run or f"{datetime.now(UTC):%Y%m%dt%H%M%S}"
    if not _RUN.fullmatch(run):
        raise ConfigError([f"--run {run}: letters, digits and hyphens, at most 40"], hint="leave --run out")
    with _words(args.path):
        recording = letter.read(args.path)
    _check(args.into, recording, settings)
    token = settings.http.token.get_secret_value()
    if args.token_file is not None:
        with _words(args.token_file):
            token = contents(args.token_file, MAX_SECRET_BYTES).decode("utf-8").strip()
    output.words(f"{output.counted(len(recording.letters), 'letter')} to ask; run {run}")
    plan = Plan(run, args.side_by_side, args.within)
    played = attach.complete(_replayed(args.into, token, recording, plan))
    report = Report(recording, played)
    if args.json:
        output.document(report.document())
    else:
        for line in report.lines():
            output.shown(line)
    return 0 if report.is_same else 1


async def _replayed(url: str, token: str, recording: Recording, plan: Plan) -> list[Played]:
    loop = asyncio.get_running_loop()
    said = loop.time()

    def told(through: int) -> None:
        nonlocal said
        if loop.time() - said >= _SAY_EACH_S:
            said = loop.time()
            output.words(f"{through} of {len(recording.letters)} are through")

    async with Client(url, token, patient=True) as client:
        await client.status()
        try:
            return await replaying.replay(client, recording.letters, plan, told=told)
        except BaseException:
            output.words(f"it goes on where it was with --run {plan.run}")
            raise


def _check(url: str, recording: Recording, settings: Settings) -> None:
    """Refuse an address that is none, and the very gateway that was recorded.

    Raises:
        ConfigError, GatewayError.
    """
    try:
        place = urlsplit(url)
        port = place.port or (443 if place.scheme == "https" else 80)
    except ValueError:
        place, port = urlsplit(""), 0
    if place.scheme not in ("http", "https") or not place.hostname or place.username:
        raise ConfigError(
            [f"--into {url}: not the address of a gateway"], hint="--into http://127.0.0.1:8007"
        )
    if recording.workspace != workspace_name(settings.workspace):
        return
    for one in DaemonRegistry(settings.workspace).running():
        own = urlsplit(one.url)
        if own.port == port and (place.hostname == own.hostname or _is_here(place.hostname)):
            raise GatewayError(
                f"{url} is the gateway that was recorded: all would be asked in it a second time",
                hint="start one with a workspace of its own: chat-gateway --workspace DIR run",
            )


def _is_here(host: str) -> bool:
    """Say whether a host is this machine, by whichever of its names and addresses."""
    with contextlib.suppress(OSError, UnicodeError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            # Only an address of our own can be bound; nothing is sent.
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as own:
                own.bind(address)
                return True
    return False


def _when(text: str, now: datetime, zone: tzinfo) -> datetime:
    """Read a time: so long ago, or as ISO has it, in ``zone`` where it says none.

    Raises:
        ConfigError: it is neither.
    """
    try:
        if ago := _AGO.fullmatch(text):
            at = now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        else:
            at = datetime.fromisoformat(text)
            at = (at if at.tzinfo is not None else at.replace(tzinfo=zone)).astimezone(UTC)
        # At either end of the calendar there are zones in which the time could not be written.
        if MINYEAR < at.year < MAXYEAR:
            return at
    except (ValueError, OverflowError):
        pass
    raise ConfigError([f"{text} is no time"], hint="2026-11-26T08:00, or 24h for a day ago")


def _span(since: datetime, until: datetime, zone: tzinfo) -> str:
    first, last = (at.astimezone(zone).strftime("%Y-%m-%d %H:%M") for at in (since, until))
    return f"{first} to {last}"


@contextlib.contextmanager
def _words(path: Path) -> Iterator[None]:
    """Say in words what the disk refused."""
    try:
        yield
    except OSError as error:
        hint = "name a new file" if isinstance(error, FileExistsError) else "look at the path and the disk"
        raise GatewayError(f"{error.filename or path}: {error.strerror or error}", hint=hint) from error
    except UnicodeDecodeError:
        raise GatewayError(f"{path} is no text", hint="name the file that holds the token") from None
