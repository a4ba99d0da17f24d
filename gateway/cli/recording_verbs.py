"""The verbs ``record`` and ``replay`` and their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.cli.memory_verbs import Verbs


def add_recording(tree: Verbs, *, count: Callable[[str], int], seconds: Callable[[str], float]) -> None:
    """Add the verbs; ``count`` reads a number from 1 on, ``seconds`` a time."""
    record = tree.verb(
        "record",
        "gateway.cli.recording:record",
        "write what was asked in a time, and what came of it, into a file for `replay`",
        more="Of what the workspace keeps, beside running daemons. Prints the path.",
    )
    record.add_argument("path", metavar="PATH", type=Path, help="a new file")
    record.add_argument(
        "--since",
        metavar="WHEN",
        default="24h",
        help="from when on: 2026-11-26T08:00, or so long ago: 90m, 24h, 7d (default: %(default)s)",
    )
    record.add_argument("--until", metavar="WHEN", default="0m", help="up to when (default: now)")
    record.add_argument(
        "--key", metavar="KEY", action="append", help="of this conversation alone, or several"
    )
    record.add_argument(
        "--mask", action="store_true", help="leave lengths and commands, and nobody's words, names or ids"
    )
    replay = tree.verb(
        "replay",
        "gateway.cli.recording:replay",
        "ask a recording again of another gateway, and list what differs",
        more="In chats of the web there, so that nothing reaches a platform. "
        "Exit 1 where order or outcomes differ.",
        as_json=True,
    )
    replay.add_argument("path", metavar="PATH", type=Path, help="as `record` printed it")
    replay.add_argument(
        "--into", metavar="URL", required=True, help="where that gateway serves HTTP: http://127.0.0.1:8007"
    )
    replay.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="holds its http.token (default: that of this configuration)",
    )
    replay.add_argument(
        "--side-by-side",
        metavar="N",
        type=count,
        default=8,
        help="how many chats at once (default: %(default)s)",
    )
    replay.add_argument(
        "--within",
        metavar="S",
        type=seconds,
        default=300.0,
        help="seconds to wait for each answer (default: 300)",
    )
    replay.add_argument(
        "--run", metavar="NAME", help="go on with a replay that broke off, by the name that it told"
    )
