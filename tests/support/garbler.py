"""A worker that says what it is asked to, as it is, if it is the first; it ends when it is told to."""

from __future__ import annotations

import json
import socket
import sys


def main() -> int:
    end = socket.socket(fileno=int(sys.argv[1]))
    told = end.makefile("r")
    told.readline()
    number = json.loads(told.readline() or "{}").get("number")
    end.sendall(b'{"beat":1}\n{"ready":true}\n')
    for line in told:
        words = json.loads(line)
        if words.get("do") == "end":
            return 0
        if "ask" in words:
            said = json.dumps({"answer": words["ask"], "is": "the other one"})
            if number == 1:
                said = words["what"] * words["with"]["times"]
            end.sendall(said.encode() + b"\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
