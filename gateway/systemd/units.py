"""The units, the user and the folders of the service, as files that name the program where it lies."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

from gateway.errors import GatewayError

PACKAGED_PROGRAM = "/opt/chat-gateway/.venv/bin/chat-gateway"
# Below /etc for an administrator's own, below /usr/lib for a package's.
PLACES = {
    "chat-gateway.service": "systemd/system/chat-gateway.service",
    "chat-gateway@.service": "systemd/system/chat-gateway@.service",
    "sysusers.conf": "sysusers.d/chat-gateway.conf",
    "tmpfiles.conf": "tmpfiles.d/chat-gateway.conf",
}
NAMES = (*PLACES, "sandbox.conf")
# ProtectHome= hides them from the service.
_HIDDEN = ("/home", "/root", "/run/user")


def program() -> Path:
    """Return the path by which this installation is started."""
    return Path(sys.prefix) / "bin" / "chat-gateway"


def text(name: str, starts: Path) -> str:
    """Return one of ``NAMES``, in which the service starts ``starts``."""
    said = resources.files("gateway.systemd").joinpath(name).read_text(encoding="utf-8")
    return said.replace(PACKAGED_PROGRAM, str(starts))


def install(folder: Path, starts: Path) -> list[Path]:
    """Write all of ``PLACES`` below ``folder``, readable for everybody; return the files.

    Raises:
        GatewayError: the service could not start the program where it lies; nothing was written.
        OSError: a file cannot be written.
    """
    if str(starts).startswith(tuple(f"{hidden}/" for hidden in _HIDDEN)):
        raise GatewayError(
            f"{starts} lies where no service may look",
            hint="install it for all, for example: sudo PIPX_HOME=/opt/pipx PIPX_BIN_DIR=/usr/local/bin "
            "pipx install chat-gateway",
        )
    written = []
    for name, place in PLACES.items():
        path = folder / place
        _make_open(path.parent)
        path.write_text(text(name, starts), encoding="utf-8")
        path.chmod(0o644)
        written.append(path)
    return written


def _make_open(folder: Path) -> None:
    """Make a folder and those above it for everybody to read, whatever this process keeps to itself."""
    if not folder.exists():
        _make_open(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)
