"""A worker that speaks until it is told to end, then says no more and takes its time to go."""

from __future__ import annotations

import json
import socket
import sys
import threading

BEAT_S, GOES_AFTER_S = 0.05, 1.5


def main() -> int:
    end = socket.socket(fileno=int(sys.argv[1]))
    told = end.makefile("r")
    told.readline()
    if not told.readline():
        return 0
    drained = threading.Event()

    def hear() -> None:
        for line in told:
            if json.loads(line).get("do") in ("drain", "end"):
                drained.set()

    threading.Thread(target=hear, daemon=True).start()
    end.sendall(b'{"beat":1}\n{"ready":true}\n')
    while not drained.wait(BEAT_S):
        end.sendall(b'{"beat":1}\n')
    threading.Event().wait(GOES_AFTER_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
