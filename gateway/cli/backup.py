"""``backup create|verify|restore``: the whole workspace in one file, and back."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

import durable
from gateway.backup.tar import CONFIG, Manifest
from gateway.cli import output
from gateway.cli.config import settings_of
from gateway.cli.root import FILE, FOLDER, GlobalOptions, as_json, group
from gateway.config.finding import named_files
from gateway.errors import GatewayError

backup = group("backup")

_DISK_CURE = "check the disk"
NICE: Final = 5
_AUTOGROUP: Final = Path("/proc/self/autogroup")
_SET_DEATH_SIGNAL: Final = 1
_BROKEN: Final = 70
_CURES: Mapping[type[OSError], str] = {
    FileNotFoundError: "check the path",
    IsADirectoryError: "choose a file in this folder",
}


@backup.command()
@click.argument(
    "path", metavar="PATH", type=FILE, help="a new file, or a folder to create chat-gateway-<time>.tar in"
)
@click.option(
    "--with-config", is_flag=True, help="include the configuration file and the secret files that it names"
)
def create(opts: GlobalOptions, path: Path, with_config: bool) -> int:
    """Write the whole workspace to one file, even while the gateway runs.

    Prints the path. Contains every message accepted and every answer given before it started.
    """
    settings = settings_of(opts)
    target = _target(path)
    if target.resolve().is_relative_to(settings.workspace.resolve()):
        raise GatewayError(f"{target} is inside the workspace", hint="choose a path outside of it")
    config = named_files(opts.config) if with_config else []
    if settings.workspace.is_dir() and not target.parent.exists():
        raise GatewayError(f"folder {target.parent} does not exist", hint=f"mkdir -p {target.parent}")
    embedded = settings.broker.embedded
    return at_low_priority(
        lambda: _create(settings.workspace, target, embedded=embedded, config=config), opts
    )


def _create(workspace: Path, target: Path, *, embedded: bool, config: Sequence[Path]) -> int:
    from gateway.backup import creation

    with _words(target):
        manifest = creation.create(workspace, target, embedded=embedded, config=config)
    _tell(manifest)
    for line in manifest.left_out:
        output.words(f"not included: {line}")
    output.data(str(target))
    return 0


@backup.command()
@click.argument("path", metavar="PATH", type=FILE, help="the backup file")
@click.option("--scratch", metavar="DIR", type=FOLDER, help="create the temporary folder in DIR")
@as_json
def verify(_: GlobalOptions, path: Path, scratch: Path | None, as_json: bool) -> int:
    """Restore a backup to a temporary folder and check it; exit 1 if it is damaged."""
    from gateway.backup import restoring

    with _words(path):
        report = asyncio.run(restoring.verify(path, scratch=scratch))
    if as_json:
        output.document(report.as_dict())
        return 1 if report.problems else 0
    output.words(f"taken {report.began_at} by chat-gateway {report.program}")
    output.words(f"{output.counted(report.files, 'file')}, {report.bytes} bytes, all intact")
    asked = f"{output.counted(report.messages, 'message')} in {output.counted(report.sessions, 'session')}"
    output.words(f"{asked}; {report.answered} answered, {report.open} without an answer")
    waits = f"{report.waiting} to be answered, {report.replies} to be sent, {report.parked} parked"
    output.words(f"in the queue: {waits}")
    for line in report.left_out:
        output.words(f"not included: {line}")
    output.rows(report.problems, ("file", "problem"))
    if not report.problems:
        output.words("this backup is good: every transcript can be read in full")
    return 1 if report.problems else 0


@backup.command()
@click.argument("path", metavar="PATH", type=FILE, help="the backup file")
def restore(opts: GlobalOptions, path: Path) -> None:
    """Restore a backup, completely or not at all.

    The workspace must be empty and the gateway stopped.
    """
    from gateway.backup import restoring

    settings = settings_of(opts)
    workspace = settings.workspace
    with _words(path):
        manifest = restoring.restore(path, workspace)
    _tell(manifest)
    if any(entry.path.startswith(CONFIG) for entry in manifest.entries):
        output.words(f"the configuration is in {workspace / restoring.CONFIG_FOLDER}; copy it to its place")
    if manifest.broker != "embedded":
        output.words(
            "messages that wait in RabbitMQ are answered, unless this workspace has answered them already"
        )
    output.data(str(workspace))


def _target(path: Path) -> Path:
    if not path.is_dir():
        return path
    return path / f"chat-gateway-{durable.now():%Y%m%dT%H%M%SZ}.tar"


def _tell(manifest: Manifest) -> None:
    words = f"{output.counted(len(manifest.entries), 'file')}, {manifest.size} bytes"
    output.words(f"{words}, as of {manifest.began_at}")


@contextlib.contextmanager
def _words(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = error.filename or path
        is_named = error.filename in (None, str(path))
        cure = _CURES.get(type(error), _DISK_CURE) if is_named else _DISK_CURE
        raise GatewayError(f"{name}: {error.strerror or error}", hint=cure) from error


def at_low_priority(work: Callable[[], int], opts: GlobalOptions) -> int:
    """Do the work of a verb in a session of its own, and return its exit code.

    Linux shares the processors out among sessions first, and by niceness within each alone: in the session
    of a shell, work however nice would take as much as the daemon.
    """
    if os.getsid(0) == os.getpid() or threading.active_count() > 1:
        _lower()
        return work()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # A Ctrl-C waits until both processes know what to do with it: the terminal tells its own session alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    child = os.fork()
    if child == 0:
        _be(work, opts, parent)
    before = signal.signal(signal.SIGINT, lambda *_: os.kill(child, signal.SIGINT))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.signal(signal.SIGINT, before)
    if code < 0:
        # What ended the child by a signal ends this process by the same.
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _be(work: Callable[[], int], opts: GlobalOptions, parent: int) -> None:
    """Do the work in the child, which never returns from here."""
    code = _BROKEN
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        stand_behind()
        if sys.platform == "linux":
            # The kernel ends this process with the one that a person sees.
            ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            raise KeyboardInterrupt
        code = work()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001 - here the command ends
        code = output.report(error, opts)
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def stand_behind() -> None:
    """Make a session of this process alone, behind all others; it may lead no group of processes yet."""
    os.setsid()
    _lower()


def _lower() -> None:
    with contextlib.suppress(OSError):
        os.nice(NICE)
    with contextlib.suppress(OSError):
        _AUTOGROUP.write_text(str(NICE))
