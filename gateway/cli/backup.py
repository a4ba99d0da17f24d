"""``backup create|verify|restore``: the whole workspace in one file, and back."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from gateway.backup import creation, restoring, verifying
from gateway.backup.manifest import CONFIG, Manifest
from gateway.cli import attach, output
from gateway.cli.config import settings_of
from gateway.cli.giving_way import giving_way
from gateway.config.finding import named_files
from gateway.errors import GatewayError

_DISK_CURE = "check the disk"
_CURES: Mapping[type[OSError], str] = {
    FileNotFoundError: "check the path",
    IsADirectoryError: "choose a file in this folder",
}


def create(args: argparse.Namespace) -> int:
    """Write a backup and print its path."""
    settings = settings_of(args)
    target = _target(args.path)
    if target.resolve().is_relative_to(settings.workspace.resolve()):
        raise GatewayError(f"{target} is inside the workspace", hint="choose a path outside of it")
    config = named_files(args.config) if args.with_config else []
    if settings.workspace.is_dir() and not target.parent.exists():
        raise GatewayError(f"folder {target.parent} does not exist", hint=f"mkdir -p {target.parent}")
    embedded = settings.broker.embedded
    return giving_way(lambda: _create(settings.workspace, target, embedded=embedded, config=config), args)


def _create(workspace: Path, target: Path, *, embedded: bool, config: Sequence[Path]) -> int:
    with _words(target):
        manifest = creation.create(workspace, target, embedded=embedded, config=config)
    _tell(manifest)
    for line in manifest.left_out:
        output.words(f"not included: {line}")
    output.data(str(target))
    return 0


def verify(args: argparse.Namespace) -> int:
    """Say what a backup holds; exit 1 where something in it is wrong."""
    with _words(args.path):
        report = attach.complete(verifying.verify(args.path, scratch=args.scratch))
    if args.json:
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


def restore(args: argparse.Namespace) -> int:
    """Bring a backup back."""
    settings = settings_of(args)
    workspace = settings.workspace
    with _words(args.path):
        manifest = restoring.restore(args.path, workspace)
    _tell(manifest)
    if any(entry.path.startswith(CONFIG) for entry in manifest.entries):
        output.words(f"the configuration is in {workspace / restoring.CONFIG_FOLDER}; copy it to its place")
    if settings.local_dir is not None:
        output.words(f"the next start moves queue and send log to {settings.local_dir}")
    if manifest.broker != "embedded":
        output.words(
            "messages that wait in RabbitMQ are answered, unless this workspace has answered them already"
        )
    output.data(str(workspace))
    return 0


def _target(path: Path) -> Path:
    """Name the file: a folder gets one that is named by the time."""
    if not path.is_dir():
        return path
    return path / f"chat-gateway-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar"


def _tell(manifest: Manifest) -> None:
    words = f"{output.counted(len(manifest.entries), 'file')}, {manifest.size} bytes"
    output.words(f"{words}, as of {manifest.began_at}")


@contextlib.contextmanager
def _words(path: Path) -> Iterator[None]:
    """Say in words what the disk refused."""
    try:
        yield
    except OSError as error:
        name = error.filename or path
        is_named = error.filename in (None, str(path))
        cure = _CURES.get(type(error), _DISK_CURE) if is_named else _DISK_CURE
        raise GatewayError(f"{name}: {error.strerror or error}", hint=cure) from error
