"""A process of its own that searches by regular expressions; the system ends it when one takes too long.

The standard library's search cannot be stopped, and while it runs no other thread does. This file is run by
its path, imports nothing of ours, and reads one JSON request a line.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

MEMORY_BYTES = 2**30


def answer(request: Mapping[str, Any], pattern: str) -> dict[str, Any]:
    """Search for one pattern: whether it is there, or in which lines (from 1)."""
    try:
        compiled = re.compile(pattern, re.IGNORECASE if request["ignore_case"] else 0)
        if not request["most_lines"]:
            return {"hit": compiled.search(request["text"]) is not None}
        lines = []
        for number, line in enumerate(request["text"].split("\n"), 1):
            if compiled.search(line):
                lines.append(number)
                if len(lines) == request["most_lines"]:
                    break
        return {"hit": bool(lines), "lines": lines}
    except MemoryError:
        return {"hit": False, "problem": "the search broke", "broke": True}
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        # A number of thousands of digits in a pattern is a ValueError.
        return {"hit": False, "problem": str(error) or type(error).__name__}


def main() -> None:
    """Answer until standard input ends; a pattern that takes ``limit_s`` of the processor ends it."""
    # The machine may have set a tighter limit already.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        for pattern in request["patterns"]:
            signal.setitimer(signal.ITIMER_PROF, request["limit_s"])
            found = answer(request, pattern)
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.buffer.write(json.dumps(found).encode() + b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
