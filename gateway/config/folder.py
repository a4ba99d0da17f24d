"""Says what is wrong with the folder of a workspace, in words that name the cure."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gateway.errors import ConfigError, GatewayError

REFUSALS = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EPERM", "EROFS", "ENOSPC", "EDQUOT", "EIO", "ENOTDIR", "EISDIR", "ELOOP")
)
CURE = "choose a separate folder with workspace or --workspace"


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
    blocking = in_the_way(workspace)
    if blocking is not None:
        return ConfigError([f"workspace {workspace} cannot be used: {blocking} is not a folder"], hint=CURE)
    if not isinstance(fault, OSError) or fault.errno not in REFUSALS:
        return None
    if not isinstance(fault.filename, str | bytes):
        return None
    path = Path(os.fsdecode(fault.filename))
    if path != workspace and workspace not in path.parents:
        return None
    return GatewayError(f"{path}: {fault.strerror or fault}", hint="chat-gateway doctor")
