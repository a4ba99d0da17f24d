"""A worker that never says a word, as one that still imports what it needs."""

from __future__ import annotations

import threading

if __name__ == "__main__":
    threading.Event().wait()
