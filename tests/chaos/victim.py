"""A gateway that may kill itself at a point (``tests.support.killable``), with faults that the kit switches.

Its words are ``<file of switches> <point, or -> <words of chat-gateway>``.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from pathlib import Path

from tests.chaos import faults
from tests.support import killable

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    # It ends with the kit's process.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faults.install(Path(sys.argv.pop(1)))
    sys.exit(killable.main())
