"""Guides the search by what the code does with an input: one target in one process.

``python -m tests.fuzz.engine TARGET SECONDS FINDS``, then libFuzzer's options and folders. The exit code is 0
where nothing was found; else the input has been written into the folder FINDS: by libFuzzer where it took too
long or too much memory.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

import atheris
import structlog

from tests.fuzz.changes import changed
from tests.fuzz.targets import target_of

OURS = ["channels", "durable", "gateway", "session"]


def main() -> None:
    """Search until the time is over, or something is found."""
    # Before anything imports them.
    with atheris.instrument_imports(include=OURS, enable_loader_override=False):
        target = target_of(sys.argv[1])
    chance = random.Random()
    finds, count = sys.argv[3], 0

    def change(data: bytes, max_size: int, seed: int) -> bytes:
        chance.seed(seed)
        found = changed(data, max_size, seed) if target.form == "json" and chance.random() < 0.7 else None
        return bytes(atheris.Mutate(data, max_size)) if found is None else found

    # A log would be longer than all that is read.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with ExitStack() as stack:
        once = stack.enter_context(target.opened())
        ends = time.monotonic() + float(sys.argv[2])

        def read(data: bytes) -> None:
            nonlocal count
            count += 1
            try:
                once(data)
            except Exception:  # noqa: BLE001 - here one search ends
                # Not left to libFuzzer, which is silent where threads are still at work.
                traceback.print_exc()
                Path(finds, f"crash-{count}").write_bytes(data)
                sys.stderr.flush()
                os._exit(1)
            if time.monotonic() > ends:
                stack.close()
                print(f"{target.name}: {count} inputs", flush=True)
                # libFuzzer's own end waits for threads that nobody has ended by then.
                os._exit(0)

        atheris.Setup([sys.argv[0], *sys.argv[4:]], read, custom_mutator=change)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
