"""The service under systemd: its units, user and folders as files, and what its process tells the manager."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
import sys
from collections.abc import Callable, Iterator, MutableMapping
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


# How often a start is told of, and for how long each word lets systemd wait for the next.
BEAT_S = 10.0
START_AGAIN_S = 60.0


class Manager:
    """What started this process and waits for its words: systemd, or nobody.

    The variables that it left in the environment are taken out of it, so that no child speaks for us.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = environ.pop("NOTIFY_SOCKET", "")
        limit_us, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = bool(self._address) and limit_us.isdecimal() and meant in ("", str(os.getpid()))
        self._watchdog_s = int(limit_us) / 1e6 if watched else 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._status: Callable[[], str] = str
        self._said = ""
        self._ready = False
        # What it has to hear once, until it has.
        self._owed: list[str] = []

    @contextlib.contextmanager
    def watching(self, status: Callable[[], str]) -> Iterator[None]:
        """Keep it told while the context is open, from the running loop.

        A start may take as long as the loop moves: a broker that is away is waited for. Afterwards the
        watchdog is fed by the loop alone, by no thread: what blocks the loop starves it, a model that
        thinks does not.

        Args:
            status: the one line that ``systemctl status`` shows; called on the loop, and quick.
        """
        self._status = status
        if self._watchdog_s:
            # It ends a stuck process by SIGABRT: the journal then has the line at which each thread stood.
            faulthandler.enable()
        if self._address:
            self._beat()
        try:
            yield
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def ready(self) -> None:
        """Say that it serves."""
        self._ready = True
        self._owed = ["READY=1"]
        self._tell()

    def stopping(self, within_s: float) -> None:
        """Say that it ends, and that this may take so long."""
        self._status = lambda: "ends its running turns"
        self._owed = ["STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}"]
        self._tell()

    def _beat(self) -> None:
        words = list[str]()
        if self._watchdog_s:
            words.append("WATCHDOG=1")
        if not self._ready:
            words.append(f"EXTEND_TIMEOUT_USEC={int(START_AGAIN_S * 1e6)}")
        self._tell(*words)
        # Three beats fit into the limit, so that a busy machine may be late with one.
        every_s = min(BEAT_S, self._watchdog_s / 3) if self._watchdog_s else BEAT_S
        self._timer = asyncio.get_running_loop().call_later(every_s, self._beat)

    def _tell(self, *words: str) -> None:
        """Say this, and what it has not heard yet."""
        status = " ".join(self._status().split())
        news = [f"STATUS={status}"] if status != self._said else []
        if self._send(*self._owed, *news, *words):
            self._owed, self._said = [], status

    def _send(self, *words: str) -> bool:
        """Return whether it went out; who is busy, or does not listen, is told again with the next beat."""
        if not self._address or not words:
            return False
        # A name that begins with "@" is an abstract one.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        try:
            with socket.socket(socket.AF_UNIX, kind) as sending:
                sending.sendto("\n".join(words).encode(), address)
        except OSError:
            return False
        return True
