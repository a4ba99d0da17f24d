"""Writes the index of a big transcript again and again until it is killed: ``… TRANSCRIPT INDEX``."""

from __future__ import annotations

import sys
from pathlib import Path

from session.transcript.index_file import write_index
from tests.session.big_place import save

if __name__ == "__main__":
    path, index = map(Path, sys.argv[1:])
    saved = save(path, index)
    while True:
        print("written", flush=True)
        write_index(index, saved)
