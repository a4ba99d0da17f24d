"""A unit of the person's own systemd: the gateway begins with their session and needs no root."""

from __future__ import annotations

from pathlib import Path

import durable
from gateway.errors import GatewayError
from gateway.systemd.units import program

NAME = "chat-gateway.service"
FOLDER = Path("~/.config/systemd/user")
_UNIT = """\
[Unit]
Description=chat-gateway: chat channels to language models through a durable queue
Wants=network-online.target
After=network-online.target

[Service]
ExecStart={command}
Restart=on-failure
RestartSec=2
# 73: another daemon holds the state folder; 78: the configuration cannot be used. Neither mends itself.
RestartPreventExitStatus=73 78
# Longer than limits.drain_s, so that running turns end by themselves.
TimeoutStopSec=40
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


def text(config: Path, workspace: Path) -> str:
    """Return the unit; it starts this program where it lies now."""
    words = [str(program()), "--config", str(config), "--workspace", str(workspace), "run"]
    return _UNIT.format(command=" ".join(map(_quoted, words)))


def write(folder: Path, unit: str) -> Path:
    """Write the unit whole into a folder, which is made where there is none; return the file.

    Raises:
        GatewayError: it cannot be written.
    """
    path = folder.expanduser() / NAME
    try:
        durable.make_folder(path.parent)
        with durable.replacing(path, temp=path.with_name(f".{NAME}.tmp")) as fd:
            durable.write_all(fd, unit.encode())
    except OSError as error:
        raise GatewayError(
            f"{path} cannot be written: {error.strerror}", hint="name a folder by --unit"
        ) from error
    return path


def _quoted(word: str) -> str:
    """Quote a word for systemd, which expands % and $ and splits at spaces."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(c.isspace() or c in "\"'\\" for c in word) else escaped
