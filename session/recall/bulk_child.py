"""The process that takes much text into an index; it gives way to others, and ends with whoever started it.

It is asked by one line of JSON on standard input, which stays open: its end means that nobody waits any more.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Final

import durable
from session.recall.bulk import LEFT, WHOLE, files_of
from session.recall.index import WordIndex
from session.recall.update import BULK_LINES, Update

# Turns come first where the machine has too little for both.
NICE: Final = 5
# Between two transactions it rests for a part of the time that it worked: the disk is not its own, either.
RESTS: Final = 0.25


def main() -> None:
    """Bring the index up, and say by the exit code how far it came."""
    os.nice(NICE)
    asked = json.loads(sys.stdin.buffer.readline() or b"null")
    if asked is None:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    within_s = asked["within_s"]
    index = WordIndex(Path(asked["index"]))
    update = Update(
        index,
        files_of(asked),
        rest=lambda took_s: durable.pause(RESTS * took_s),
        until=None if within_s is None else durable.monotonic() + within_s,
        batch_lines=BULK_LINES,
    )
    whole = update.run()
    index.close()
    # The thread that listens cannot be ended otherwise.
    os._exit(WHOLE if whole else LEFT)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    # What is not written yet is rolled back, as after a kill.
    os._exit(LEFT)


if __name__ == "__main__":
    main()
