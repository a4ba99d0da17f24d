"""The verbs of a person at a terminal, with their options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.cli.memory_verbs import Verbs

CHAT = "gateway.cli.chat:chat"
SHELLS = ("bash", "zsh", "fish")


def add_terminal(tree: Verbs, *, seconds: Callable[[str], float]) -> None:
    """Add the verbs; ``seconds`` reads a number above 0."""
    chat = tree.verb(
        "chat",
        CHAT,
        "talk to the gateway in this terminal",
        more="Attaches to a running daemon of this workspace; without one, and with the embedded queue, "
        "works in its own process.",
    )
    chat.add_argument(
        "-m",
        "--message",
        metavar="TEXT",
        help="send one message, print the reply to stdout and exit; what is piped in is added below it, "
        "and - is that alone",
    )
    chat.add_argument(
        "--key", default="cli:direct", help="conversation, as channel:chat_id (default: %(default)s)"
    )
    chat.add_argument("--list", action="store_true", help="choose among this terminal's conversations first")
    chat.add_argument(
        "--file",
        metavar="PATH",
        dest="files",
        action="append",
        type=Path,
        default=[],
        help="send a file along with the first message; may be given several times",
    )
    chat.add_argument("--json", action="store_true", help="write one JSON object a line, for programs")
    chat.add_argument(
        "--timeout", metavar="S", type=seconds, help="seconds to wait for the reply (default: no limit)"
    )
    completion = tree.verb(
        "completion",
        "gateway.cli.completion:completion",
        "print the script that completes command lines in a shell",
        more="Of bash: source <(chat-gateway completion bash); of zsh the same, after compinit; of fish: "
        "chat-gateway completion fish | source.",
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
