"""How many files and sockets this process may hold open."""

from __future__ import annotations

import contextlib

try:
    import resource
except ImportError:
    # Windows has no such limit to ask for.
    resource = None  # type: ignore[assignment]

# macOS calls its hard limit infinite and yet refuses more than this.
MOST_ON_MACOS = 10_240
WITHOUT_A_LIMIT = 1_048_576


def raise_limit() -> int:
    """Raise the soft limit to the hard one; return how many descriptors this process may hold."""
    if resource is None:
        return WITHOUT_A_LIMIT
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MOST_ON_MACOS):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            break
    return limit()


def limit() -> int:
    """Return how many descriptors this process may hold."""
    if resource is None:
        return WITHOUT_A_LIMIT
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WITHOUT_A_LIMIT if soft == resource.RLIM_INFINITY else soft
