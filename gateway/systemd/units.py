"""The units, the user and the folders of the service, as files that name the program where it lies."""

from __future__ import annotations

import os
import sys
from importlib import resources
from pathlib import Path

import durable
from gateway.errors import GatewayError

PACKAGED_PROGRAM = "/opt/chat-gateway/.venv/bin/chat-gateway"
USER_UNIT = "chat-gateway-user.service"
# Where a person's own systemd looks for it, and by which name it is started.
USER_FOLDER = Path("~/.config/systemd/user")
USER_NAME = "chat-gateway.service"
# What the unit of a person says of the usual places.
_USER_CONFIG = "%h/.config/chat-gateway/config.toml"
_USER_ENVIRONMENT = "%h/.config/chat-gateway/environment"
_USER_WORKSPACE = "%h/.chat-gateway"
# Below /etc for an administrator's own, below /usr/lib for a package's.
PLACES = {
    "chat-gateway.service": "systemd/system/chat-gateway.service",
    "chat-gateway@.service": "systemd/system/chat-gateway@.service",
    "sysusers.conf": "sysusers.d/chat-gateway.conf",
    "tmpfiles.conf": "tmpfiles.d/chat-gateway.conf",
}
NAMES = (*PLACES, "sandbox.conf", USER_UNIT)
# ProtectHome= hides them from the service.
_HIDDEN = ("/home", "/root", "/run/user")


def program() -> Path:
    """Return the path by which this installation is started."""
    return Path(sys.prefix) / "bin" / "chat-gateway"


def text(name: str, starts: Path) -> str:
    """Return one of ``NAMES``, in which the service starts ``starts``, an absolute path."""
    said = resources.files("gateway.systemd").joinpath(name).read_text(encoding="utf-8")
    return said.replace(PACKAGED_PROGRAM, _quoted(str(starts)))


def user_text(starts: Path, config: Path, workspace: Path) -> str:
    """Return the unit of one person, which starts ``starts`` with these two; all three are absolute.

    Keys of providers are read from a file ``environment`` beside the configuration.
    """
    # A name of a file is the whole line there, and nothing quotes it.
    environment = str(config.with_name("environment")).replace("%", "%%")
    said = text(USER_UNIT, starts).replace(_USER_ENVIRONMENT, environment)
    written = f"ReadWritePaths={_USER_WORKSPACE}\n"
    said = said.replace(written, f"ReadWritePaths={_quoted(str(workspace))}\n")
    for usual, now in ((_USER_CONFIG, config), (_USER_WORKSPACE, workspace)):
        # Variables are expanded in the words behind the program, not in its own.
        said = said.replace(usual, _quoted(str(now).replace("$", "$$")))
    return said


def install_user(folder: Path, unit: str, workspace: Path) -> Path:
    """Write the unit of one person into a folder and return the file; create both folders where missing.

    systemd starts the service only if its workspace, the one folder that it may write to, exists.

    Raises:
        GatewayError: it cannot be written; a unit that was there before is as it was.
    """
    path = folder.expanduser() / USER_NAME
    try:
        durable.make_folder(path.parent)
        if not workspace.exists():
            durable.make_folder(workspace)
        with durable.replacing(path, temp=path.with_name(f".{path.name}.tmp")) as fd:
            durable.write_all(fd, unit.encode())
    except OSError as error:
        raise GatewayError(
            f"{path} cannot be written: {error.strerror}", hint="name another folder for the unit"
        ) from error
    return path


def install(folder: Path, starts: Path) -> list[Path]:
    """Write all of ``PLACES`` below ``folder``, readable for everybody, with the absolute path ``starts``.

    Returns:
        The files.

    Raises:
        GatewayError: the service could not start the program where it lies; nothing was written.
        OSError: a file cannot be written.
    """
    if hidden := _hidden(starts):
        raise GatewayError(
            f"{hidden} lies where no service may look",
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


def _hidden(starts: Path) -> str:
    """Return what a start needs and no service can see: the program, what it leads to, or its Python."""
    real = Path(os.path.realpath(starts))
    python = os.path.realpath(real.with_name("python"))
    folders = tuple(f"{folder}/" for folder in _HIDDEN)
    return next((path for path in (str(starts), str(real), python) if path.startswith(folders)), "")


def _make_open(folder: Path) -> None:
    """Make a folder and those above it for everybody to read, whatever this process keeps to itself."""
    if not folder.exists():
        _make_open(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)


def _quoted(word: str) -> str:
    """Quote a word for systemd, which expands % and splits at spaces."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if any(c.isspace() or c in "\"'\\;" for c in word) else escaped
