"""Which file systems are a network's, by the number that the kernel gives each kind."""

from __future__ import annotations

import re
from typing import Final

from session.disk.file_system import FUSE, MAGICS

# FUSE has one number for all that is written on it; the kind of the mount tells which.
_FUSES: Final = re.compile(
    r"fuse\.(sshfs|glusterfs|ceph(-fuse|fs)?|s3fs|s3ql|goofys|gcsfuse|blobfuse2?|rclone|juicefs|mfs|moosefs"
    r"|mfsmount|lizardfs|seaweedfs|davfs2?|curlftpfs|smbnetfs|gvfsd-fuse|nfs|lustre|vmhgfs-fuse|portal)"
)
# Where the number is not to be had, or a newer kernel has another one.
_KINDS: Final = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|k?afs|ceph|glusterfs|lustre|gpfs|beegfs|ocfs2|gfs2|orangefs|coda"
)


def network_of(kind: str, magic: int) -> str:
    """Name the network's file system; empty where it is none.

    Args:
        kind: as ``mountinfo`` has it; empty where nothing is known.
        magic: as ``magic_of``.
    """
    if magic in MAGICS:
        return kind or MAGICS[magic]
    known = _FUSES if magic == FUSE or kind.startswith("fuse") else _KINDS
    return kind if known.fullmatch(kind) else ""


def may_be(kind: str, magic: int) -> bool:
    """Say whether a network may stand behind it, though nothing says so: FUSE shows what a program makes."""
    return (magic == FUSE or kind.startswith("fuse")) and not network_of(kind, magic) and kind != "fuseblk"
