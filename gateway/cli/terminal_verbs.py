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
        more="Connects to the gateway that runs on this workspace. If none runs and the queue is embedded, "
        "answers in its own process.",
    )
    chat.add_argument(
        "-m",
        "--message",
        metavar="TEXT",
        help="send one message, print the answer and exit; piped input is appended to TEXT; "
        "- sends only the piped input",
    )
    chat.add_argument(
        "--key", default="cli:direct", help="the chat, as channel:chat_id (default: %(default)s)"
    )
    chat.add_argument("--list", action="store_true", help="choose one of the terminal's chats first")
    chat.add_argument(
        "--file",
        metavar="PATH",
        dest="files",
        action="append",
        type=Path,
        default=[],
        help="attach a file to the first message; may be repeated",
    )
    chat.add_argument("--json", action="store_true", help="print one JSON object per line, for programs")
    chat.add_argument(
        "--timeout", metavar="S", type=seconds, help="seconds to wait for the answer (default: no limit)"
    )
    _add_onboard(tree)
    completion = tree.verb(
        "completion",
        "gateway.cli.completion:completion",
        "print the completion script for a shell",
        more="bash: source <(chat-gateway completion bash); zsh: the same, after compinit; fish: "
        "chat-gateway completion fish | source.",
    )
    completion.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def _add_onboard(tree: Verbs) -> None:
    onboard = tree.verb(
        "onboard",
        "gateway.cli.onboard:onboard",
        "set up a model and a bot, up to the first answer in your chat",
        more="Asks for a model, its API key, a platform and a bot token, tests each, writes the "
        "configuration and approves your account. Run again, it continues where it stopped.",
    )
    onboard.add_argument("--model", metavar="NAME", help="its LiteLLM name, such as openai/gpt-4.1-mini")
    onboard.add_argument("--api-base", metavar="URL", help="address of the model server, if you run your own")
    onboard.add_argument("--key-file", metavar="FILE", type=Path, help="file with the API key of the model")
    onboard.add_argument("--platform", choices=("telegram", "discord", "none"), help="platform of the bot")
    onboard.add_argument("--token-file", metavar="FILE", type=Path, help="file with the bot token")
    onboard.add_argument(
        "--owner", metavar="ID", default="", help="your numeric user id, approved without asking"
    )
    onboard.add_argument(
        "--unit",
        metavar="DIR",
        type=Path,
        help="write a systemd unit to DIR (your own units: ~/.config/systemd/user)",
    )
    onboard.add_argument(
        "--yes", action="store_true", help="ask no questions; use the defaults for options not given"
    )
    onboard.add_argument(
        "--dry-run", action="store_true", help="test everything, but only show what would be written"
    )
