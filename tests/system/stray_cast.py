"""Who is who in a run of many chats, people and groups, and the secret that each of them has; pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.support.place import write

SECRET = re.compile(r"sesame-([a-z]+)-[a-z]+")
# The chats of three people; one of them lists a group, which shares nothing all the same.
PEOPLE: Mapping[str, Sequence[int | str]] = {
    "ada": [101, "cli:ada"],
    "bob": [102, "web:bob"],
    "cem": [103, -204],
}
GROUPS = (-201, -202, -203, -204)
EVERYBODY = "everybody"


@dataclass(frozen=True)
class Cast:
    """Chats of nobody in particular, the groups, and those of the people, under one kind of scope."""

    kind: Literal["chat", "workspace"]
    singles: Sequence[int]

    @property
    def chats(self) -> list[int | str]:
        return [*self.singles, *GROUPS, *(c for chats in PEOPLE.values() for c in chats if c != -204)]

    @property
    def owners(self) -> set[str]:
        return {self.owner_of(chat) for chat in self.chats}

    def owner_of(self, chat: int | str) -> str:
        """Say whose a chat is: of its group, of its person, of all, or its own."""
        if isinstance(chat, int) and chat < 0:
            return f"group{-chat}"
        if self.kind == "workspace":
            return EVERYBODY
        person = next((name for name, chats in PEOPLE.items() if chat in chats), None)
        return person or f"chat{chat}"

    def folder_of(self, chat: int | str) -> str:
        """Name the folder of its scope below ``memory/`` and ``files/``."""
        owner = self.owner_of(chat)
        if owner == EVERYBODY:
            return ""
        return f"people/{owner}" if owner in PEOPLE else f"chats/{stem_of(chat)}"

    def secret(self, chat: int | str, kind: str) -> str:
        return secret(self.owner_of(chat), kind)

    def who(self, chat: int | str) -> str:
        """Return the word that the chat says in each of its messages."""
        return f"i-am-{letters(self.owner_of(chat))}"

    def plant(self, workspace: Path) -> None:
        """Put a secret of each scope into each kind of file that a scope has."""
        for chat in self.chats:
            memory, files = workspace / "memory" / self.folder_of(chat), workspace / "files"
            write(memory / "MEMORY.md", f"- {self.secret(chat, 'memory')}\n")
            write(memory / "USER.md", f"{self.secret(chat, 'profile')}\n")
            write(memory / "HISTORY.md", f"[2026-01-01 09:00] {self.secret(chat, 'history')}\n")
            write(memory / "facts.jsonl", planted_fact(self.secret(chat, "known")))
            write(files / self.folder_of(chat) / "notes.txt", f"{self.secret(chat, 'file')}\n")
            # What a chat had before it shared a scope is nobody's now; the same of a group that is listed.
            if not self.folder_of(chat).startswith("chats/"):
                old = workspace / "memory/chats" / stem_of(chat) / "MEMORY.md"
                write(old, f"- {secret('nobody', 'memory')}\n")

    def life(self, chat: int | str) -> Sequence[Sequence[str]]:
        """Return what is said in a chat: a conversation, the next one, and what comes of both."""
        who = self.who(chat)
        look: Sequence[tuple[str, Mapping[str, str]]] = (
            ("read", {"path": "notes.txt"}),
            ("grep", {"pattern": "sesame"}),
            ("memory_search", {"query": "i am words sesame"}),
            ("read", {"path": "../../people/bob/notes.txt"}),
            ("read", {"path": "chats/telegram_-201/notes.txt"}),
            ("ls", {"path": ".."}),
        )
        again = (("memory_search", {"query": "words"}), ("memory_search", {"query": "history"}))
        links = f"[[say:{who} [mine](notes.txt) [his](../bob/notes.txt)]]"
        # Few messages: a platform takes no more than one in three seconds from a bot in a group.
        return (
            [f"{who} {self.secret(chat, 'words')} [[tool:{calls(look)}]] {links}", "/memory"],
            [
                "/new",
                f"{who} what did we say? [[tool:{calls(again)}]] [[say:{who} much]]",
                f"{who} note this [[fact:{self.secret(chat, 'fact')}]]",
            ],
            [f"{who} what do you know?", "/memory"],
        )


def calls(tools: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    return " ".join(f"{tool} {json.dumps(arguments)}" for tool, arguments in tools)


def planted_fact(text: str) -> str:
    fact = {"id": "01KG9N3D3R6V4T1X8Y2Z5B7C9E", "text": text, "category": "project", "confidence": 1.0}
    return json.dumps({**fact, "created_at": "2026-01-01T09:00:00+00:00", "replaced_by": None}) + "\n"


def secret(owner: str, kind: str) -> str:
    """Name what only ``owner`` may know; digits become letters, since the log has many numbers."""
    return f"sesame-{letters(owner)}-{kind}"


def letters(owner: str) -> str:
    return "".join(chr(ord("a") + int(c)) if c.isdigit() else c for c in owner)


def key_of(chat: int | str) -> str:
    return chat if isinstance(chat, str) else f"telegram:{chat}"


def stem_of(chat: int | str) -> str:
    return key_of(chat).replace(":", "_")


def strays(text: str, allowed: str) -> set[str]:
    """List the secrets in a text that are not those of ``allowed``."""
    return {found[0] for found in SECRET.finditer(text) if found[1] != letters(allowed)}


def asked_for(text: str) -> str | None:
    """Say whose request it is, by the word that its chat says in each of its messages."""
    found = set(re.findall(r"i-am-([a-z]+)", text))
    assert len(found) <= 1, found
    return found.pop() if found else None
