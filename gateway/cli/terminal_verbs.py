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
    _add_onboard(tree)
    completion = tree.verb(
        "completion",
        "gateway.cli.completion:completion",
        "print the script that completes command lines in a shell",
        more="Of bash: source <(chat-gateway completion bash); of zsh the same, after compinit; of fish: "
        "chat-gateway completion fish | source.",
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _add_onboard(tree: Verbs) -> None:
    onboard = tree.verb(
        "onboard",
        "gateway.cli.onboard:onboard",
        "lead from nothing to the first answer in a real chat",
        more="Asks for a model, its key, a platform and its token, tries each, writes the configuration, and "
        "lets its owner in. It may be run again and goes on where it stopped.",
    )
    onboard.add_argument("--model", metavar="NAME", help="as LiteLLM names it, such as openai/gpt-4.1-mini")
    onboard.add_argument(
        "--api-base", metavar="URL", help="address of the model, where it is one of your own"
    )
    onboard.add_argument("--key-file", metavar="FILE", type=Path, help="holds the key of the model")
    onboard.add_argument("--platform", choices=("telegram", "discord", "none"), help="where it is talked to")
    onboard.add_argument("--token-file", metavar="FILE", type=Path, help="holds the token of the bot")
    onboard.add_argument(
        "--owner", metavar="ID", default="", help="numeric id that is let in unasked when it writes"
    )
    onboard.add_argument(
        "--unit",
        metavar="DIR",
        type=Path,
        help="write a systemd unit there (your own: ~/.config/systemd/user)",
    )
    onboard.add_argument(
        "--yes", action="store_true", help="ask nothing: what no option says has its default"
    )
    onboard.add_argument(
        "--dry-run", action="store_true", help="try everything, and only show what it would write"
    )
