"""Where the configuration and the workspace lie, found in a few milliseconds, and what is in their way."""

from __future__ import annotations

import contextlib
import errno
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.errors import GatewayError

PREFIX = "CHAT_GATEWAY_"
DEFAULT_WORKSPACE = "~/.chat-gateway"
MAX_BYTES = 16 * 2**20
# The service of the machine: its file is read where there is no other, and its workspace is used with it.
SERVICE_FILE = Path("/etc/chat-gateway/config.toml")
SERVICE_WORKSPACE = "/var/lib/chat-gateway"
SERVICE_ENVIRONMENT = Path("/etc/chat-gateway/environment")
_SERVICE_UNITS = ("chat-gateway.service", "chat-gateway@session.service")
_CREDENTIALS, _CREDSTORE = Path("/run/credentials"), Path("/etc/credstore")


def find_file(config_file: Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """Say which file is read: the one named, else the first of the usual places that is there."""
    environ = os.environ if environ is None else environ
    if config_file is not None:
        return config_file
    if named := environ.get(f"{PREFIX}CONFIG"):
        return expand(named, environ)
    own = next((path for path in _own_files(environ) if os.path.lexists(path)), None)
    return own or (SERVICE_FILE if os.access(SERVICE_FILE, os.R_OK) else None)


def unread_files(
    config_file: Path | None = None, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[Path, str]]:
    """Yield the usual files that exist and are not read, each with the reason.

    Nothing where somebody named the file that is read.
    """
    environ = os.environ if environ is None else environ
    if config_file is not None or environ.get(f"{PREFIX}CONFIG"):
        return
    found = find_file(None, environ)
    for path in _own_files(environ):
        if found is not None and path != found and os.path.lexists(path) and not _same(path, found):
            yield path, f"{found} is used instead"
    if found != SERVICE_FILE:
        try:
            # The folder may be closed as well as the file.
            os.lstat(SERVICE_FILE)
            readable = os.access(SERVICE_FILE, os.R_OK)
            denied = os.strerror(errno.EACCES)
        except FileNotFoundError:
            return
        except OSError as error:
            readable, denied = False, error.strerror or str(error)
        if found is None:
            yield SERVICE_FILE, denied
        elif readable:
            yield SERVICE_FILE, f"{found} is used instead"


def file_to_change(config_file: Path | None = None) -> Path:
    """Return the file that a verb writes to, absolute: the one that is read, but never one of others."""
    found = find_file(config_file)
    if found is None or (found == SERVICE_FILE and not os.access(found, os.W_OK)):
        found = usual_file()
    return Path(os.path.abspath(found))  # noqa: PTH100 - a link stays one


def usual_files() -> tuple[Path, ...]:
    """List where a configuration is looked for, first to last."""
    return *_own_files(os.environ), SERVICE_FILE


def _own_files(environ: Mapping[str, str]) -> tuple[Path, Path]:
    return Path("chat-gateway.toml"), usual_file(environ)


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


def operator_command(file: Path | None) -> str:
    """Return how the operator of ``file`` calls this program; strangers see it, so it names no path."""
    # In a container the file lies there, too, and the image names the workspace.
    of_service = file == SERVICE_FILE and f"{PREFIX}WORKSPACE" not in os.environ
    return "sudo chat-gateway" if of_service else "chat-gateway"


def credential(name: str, file: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the systemd credential of a secret; None: there is none that this user can see.

    A verb that reads the service's file looks where the service has its own.
    """
    if folder := environ.get("CREDENTIALS_DIRECTORY"):
        places = [Path(folder, name)]
    elif file == SERVICE_FILE:
        places = [
            *(_CREDENTIALS / unit / name for unit in _SERVICE_UNITS),
            _CREDSTORE / f"chat-gateway.{name}",
        ]
    else:
        places = []
    return next((place for place in places if os.path.lexists(place)), None)


def adopt_environment(config_file: Path | None) -> None:
    """Set the variables of the service's own file, where its configuration is read; none replaces another."""
    if find_file(config_file) != SERVICE_FILE:
        return
    with contextlib.suppress(OSError, ValueError):
        for line in contents(SERVICE_ENVIRONMENT).decode().splitlines():
            name, equals, value = line.strip().partition("=")
            if equals and not name.startswith(("#", ";")):
                quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
                os.environ.setdefault(name, value[1:-1] if quoted else value)


def contents(file: Path, at_most: int = MAX_BYTES) -> bytes:
    """Read a file that a person named.

    Raises:
        OSError: it cannot be read, or is larger (EFBIG).
    """
    # What a name leads to may have no end, as devices have none.
    with file.open("rb") as opened:
        data = opened.read(at_most + 1)
    if len(data) > at_most:
        raise OSError(errno.EFBIG, f"over {at_most} bytes", str(file))
    return data


def named_files(config_file: Path | None = None, environ: Mapping[str, str] | None = None) -> list[Path]:
    """List the configuration file and the files that its keys ``…_file`` name, of those that are there."""
    environ = os.environ if environ is None else environ
    found = find_file(config_file, environ)
    if found is None or not found.is_file():
        return []
    named = _named_in(tomllib.loads(contents(found).decode("utf-8-sig")), found.parent, environ)
    return [found, *sorted({path for path in named if path.is_file()})]


def _named_in(table: Mapping[str, object], base: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _named_in(value, base, environ)
        elif name.endswith("_file") and isinstance(value, str):
            yield base / expand(value, environ)


def usual_file(environ: Mapping[str, str] | None = None) -> Path:
    """Say where a person's configuration is made when there is none yet."""
    return expand("~/.config/chat-gateway/config.toml", os.environ if environ is None else environ)


def glance(config_file: Path | None, workspace: Path | None) -> tuple[Path, dict[str, Any]]:
    """Return the workspace and what the file holds, as far as both can be seen; of use for hints alone."""
    file = find_file(config_file)
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        found = tomllib.loads(contents(file).decode("utf-8-sig")) if file is not None else {}
    named = os.environ.get(f"{PREFIX}WORKSPACE")
    if workspace is not None or named:
        return expand(str(workspace or named), os.environ), found
    written = found.get("workspace")
    base = file.parent if file is not None and isinstance(written, str) else Path()
    default = default_workspace(file)
    return base / expand(written if isinstance(written, str) else default, os.environ), found


def default_workspace(file: Path | None) -> str:
    """Return the folder that is used where neither ``file`` nor anybody else names one."""
    return SERVICE_WORKSPACE if file == SERVICE_FILE else DEFAULT_WORKSPACE


def expand(path: str, environ: Mapping[str, str]) -> Path:
    """Put the home folder in the place of ``~``."""
    home = environ.get("HOME")
    if home and (path == "~" or path.startswith("~/")):
        return Path(home + path[1:])
    try:
        return Path(path).expanduser()
    # There is no such user, or nobody knows the home folder.
    except RuntimeError:
        return Path(path)


REFUSALS = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EIO", "ENOTDIR", "EISDIR", "ELOOP")
)
FOLDER_CURE = "choose a separate folder with workspace or --workspace"


def in_the_way(workspace: Path) -> Path | None:
    """Return what stands where the workspace, or a folder above it, would have to be; None: nothing does."""
    for path in (workspace, *workspace.parents):
        if os.path.isdir(path):  # noqa: PTH112 - unlike pathlib's it never raises
            return None
        if os.path.lexists(path):
            return path
    return None


def explain(workspace: Path, fault: BaseException) -> GatewayError | None:
    """Put into words what the system refused in a workspace; None where the fault is of another kind."""
    # Help and usage answer at once because nothing of this is imported for them.
    from gateway.errors import ConfigError, GatewayError

    blocking = in_the_way(workspace)
    if blocking is not None:
        return ConfigError(
            [f"workspace {workspace} cannot be used: {blocking} is not a folder"], hint=FOLDER_CURE
        )
    if not isinstance(fault, OSError) or fault.errno not in REFUSALS:
        return None
    if not isinstance(fault.filename, str | bytes):
        return None
    path = Path(os.fsdecode(fault.filename))
    if path != workspace and workspace not in path.parents:
        return None
    return GatewayError(f"{path}: {fault.strerror or fault}", hint="chat-gateway doctor")
