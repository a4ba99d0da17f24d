"""The names of the commands of a chat, with what menus and ``/help`` say of each."""

from __future__ import annotations

from typing import Final

DESCRIPTIONS: Final = {
    "new": "starts a new conversation",
    "stop": "stops the current answer; waiting messages are kept",
    "status": "shows the model, this conversation and waiting messages",
    "resume": "returns to the previous conversation, or an older one by its number",
    "undo": "withdraws your last message and its answer",
    "retry": "repeats your last message",
    "compact": "summarises the conversation to make room; add what matters most",
    "memory": "shows what is remembered about this chat",
    "forget": "deletes a fact, by its number in /memory",
    "agent": "shows or changes the agent that answers here",
    "approve": "allows a tool call, once",
    "deny": "denies a tool call",
    "help": "shows these commands",
}
ALIASES: Final = {"start": "help"}
