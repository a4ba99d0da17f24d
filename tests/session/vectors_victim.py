"""A process that keeps vectors until it is killed, and says after each batch what it kept."""

from __future__ import annotations

import sys
from pathlib import Path

from session.store.vectors import Vectors
from tests.session.store.test_vectors import MODEL, vector

if __name__ == "__main__":
    vectors = Vectors(Path(sys.argv[1]), busy_s=10)
    vectors.open()
    for n in range(100_000):
        vectors.write(MODEL, sys.argv[2], {str(n): vector(n, 1536)})
        if str(n) in vectors.read(MODEL, sys.argv[2], [str(n)]):
            print(n, flush=True)
