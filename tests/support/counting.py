"""A worker that has counted 1000, and 10 more each time that it is asked, until it is told to end."""

from __future__ import annotations

import json
import socket
import sys
from itertools import count


def main() -> int:
    end = socket.socket(fileno=int(sys.argv[1]))
    told = end.makefile("r")
    told.readline()
    if not told.readline():
        return 0
    end.sendall(b'{"beat":1}\n{"ready":true}\n')
    counted = count(1000, 10)
    for line in told:
        words = json.loads(line)
        if "do" in words:
            return 0
        sample = ["chat_gateway_x_total", {}, next(counted)]
        found = {"families": [["chat_gateway_x", "x", "counter", [sample]]], "letters": 0}
        end.sendall(json.dumps({"answer": words["ask"], "is": found}).encode() + b"\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
