"""What kind of file system a path lies on, by the number that the kernel gives each kind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# As statfs(2) and the kernel's ``magic.h`` have them, and the sources of those outside of it.
MAGICS: Final = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0xAAD7AAEA: "panfs",
    0x013111A8: "ibrix",
    0x564C: "ncp",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
    0x20030528: "orangefs",
    0x786F4256: "vboxsf",
    0xBACBACBC: "vmhgfs",
}
FUSE: Final = 0x65735546
_STATFS_BYTES: Final = 512


def magic_of(path: Path) -> int:
    """Return the number of the file system on which a path lies; 0 where the system does not tell.

    Raises:
        OSError: the path cannot be reached.
    """
    # Whoever reads the configuration alone spares its 5 ms.
    import ctypes

    # Python shows all of statfs(2) but this. Its first word has the number on every 64-bit Linux.
    found = ctypes.create_string_buffer(_STATFS_BYTES)
    try:
        statfs = ctypes.CDLL(None, use_errno=True).statfs
    except (AttributeError, OSError):
        return 0
    if statfs(os.fsencode(path), found):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return int(ctypes.c_long.from_buffer(found).value) & 0xFFFFFFFF
