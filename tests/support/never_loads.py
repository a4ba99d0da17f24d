"""The gateway where a thread loads the model's library for ever; it waits for no thread for long."""

from __future__ import annotations

import sys
import threading

from gateway.__main__ import main
from gateway.app import daemon
from session.models import library

if __name__ == "__main__":
    library.load = lambda: threading.Event().wait()
    daemon.LEAVES_WITHIN_S = 0.2
    sys.exit(main())
