"""The gateway with a loop that can be blocked: ``python -m tests.support.stuck run …``, then SIGUSR1."""

from __future__ import annotations

import signal
import sys
import time

from gateway.__main__ import main


def _block(*_: object) -> None:
    # In the thread of the loop, as a call that never returns would.
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _block)
    sys.exit(main())
