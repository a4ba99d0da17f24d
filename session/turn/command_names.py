"""The names of the commands of a chat, with what menus and ``/help`` say of each."""

from __future__ import annotations

from typing import Final

DESCRIPTIONS: Final = {
    "new": "ends this conversation and begins a fresh one",
    "stop": "stops the answer that is being written; waiting messages stay",
    "status": "shows the model, this conversation and what waits",
    "resume": "goes back to the conversation before this one, or to an older one by its number",
    "undo": "withdraws your last message and its answer",
    "retry": "asks your last message again",
    "compact": "sums up what was said so far, to make room; add what matters most",
    "memory": "shows what is remembered about this chat, its facts numbered",
    "forget": "takes a fact out, by its number in /memory",
    "agent": "shows which agent answers here, and changes it by its name",
    "approve": "allows what the assistant asks for, once",
    "deny": "refuses what the assistant asks for",
    "help": "shows these commands",
}
ALIASES: Final = {"start": "help"}
