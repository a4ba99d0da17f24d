"""A daemon that read an older configuration: restarts it, or says what the person has to press."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import durable
from gateway.app.daemons import DaemonRegistry, Running
from gateway.cli import output
from gateway.config.settings import Settings

_LOOK_S = 0.3
_PATIENT_S = 20.0
_UNIT = re.compile(r"/(chat-gateway(?:@\w+)?\.service)$", re.MULTILINE)


def program() -> str:
    """Return how this program is called here: by its name where the shell finds it, else by its path."""
    called = Path(sys.argv[0])
    if called.name != "chat-gateway" or shutil.which("chat-gateway"):
        return "chat-gateway"
    return shlex.quote(os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called))


def needed(settings: Settings, config: Path) -> bool:
    """Say whether a daemon runs that started before the configuration was changed."""
    changed = config.stat().st_mtime if config.exists() else 0.0
    return any(datetime.fromisoformat(one.started_at).timestamp() < changed for one in _running(settings))


def restarted(settings: Settings) -> bool:
    """Restart the units that the daemons run as, where this user may; False: a person has to."""
    commands = {_command(one) for one in _running(settings)}
    words = [shlex.split(command) for command in commands if command is not None]
    if len(words) < len(commands) or any(each[0] == "sudo" for each in words):
        return False
    for each in words:
        output.words(f"Restarting the gateway: {shlex.join(each)}")
        if subprocess.run(each, check=False).returncode != 0:  # noqa: S603 - systemctl and the name of a unit
            return False
    return bool(words)


def cure(settings: Settings) -> str:
    """Say what restarts the daemons of the workspace."""
    running = _running(settings)
    command = _command(running[0]) if running else None
    if command is not None:
        return f"Run in another terminal: {command}"
    pid = running[0].pid if running else 0
    again = _started_by(pid)
    return f"Press Ctrl-C in its terminal (process {pid}), then start it again: {again}"


def wait(settings: Settings) -> None:
    """Return once other processes than now run in the workspace; remind the person of the start."""
    before = {one.pid for one in _running(settings)}
    again = _started_by(min(before, default=0))
    gone_at = 0.0
    while not {one.pid for one in _running(settings)} - before:
        if not gone_at and not _running(settings):
            gone_at = durable.monotonic()
        if gone_at and durable.monotonic() - gone_at > _PATIENT_S:
            output.words(f"The gateway has stopped. Start it again: {again}")
            gone_at = float("inf")
        durable.pause(_LOOK_S)


def _running(settings: Settings) -> list[Running]:
    return [one for one in DaemonRegistry(settings.workspace).running() if one.role != "worker"]


def _command(one: Running) -> str | None:
    """Return what restarts the unit that a daemon runs as; None: it runs as none."""
    groups = _read(f"/proc/{one.pid}/cgroup")
    found = _UNIT.search(groups)
    if found is None:
        return None
    if f"/user@{os.getuid()}.service/" in groups:
        return f"systemctl --user restart {found[1]}"
    return f"{'' if os.geteuid() == 0 else 'sudo '}systemctl restart {found[1]}"


def _started_by(pid: int) -> str:
    """Return what a person typed to start a process, as far as it can be seen."""
    parent = re.search(r"^PPid:\s*(\d+)$", _read(f"/proc/{pid}/status"), re.MULTILINE)
    if parent is not None and _read(f"/proc/{parent[1]}/comm").strip() == "make":
        return "make run"
    words = _read(f"/proc/{pid}/cmdline").split("\0")[:-1]
    at = next((n for n, word in enumerate(words) if Path(word).name == "chat-gateway"), None)
    return shlex.join([program(), *words[at + 1 :]]) if at is not None else f"{program()} run"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
