"""Whose a session and a scope are: the agent that a line 1 names, and that a name of a scope holds; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

# The name of the field in line 1's metadata; the agent of the configuration's own sections writes none.
AGENT: Final = "agent"
# How that agent is called where people read or write it; within the program it is the empty text.
DEFAULT: Final = "default"
# What the scopes of an agent begin with, and the folder in which the agents have theirs.
AGENTS: Final = "agents"
# Below the folder that all direct chats may share lie those of groups and jobs, and of people.
_SCOPES: Final = frozenset({"chats", "people"})
# Its folder has them below, and they are no agents'.
_TAKEN: Final = frozenset({DEFAULT, *_SCOPES})
# It becomes the name of a folder.
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


def is_name(name: str) -> bool:
    """Say whether an agent can have this name."""
    return _NAME.fullmatch(name) is not None and name not in _TAKEN


def agent_in(inner: Mapping[str, Any]) -> str:
    """Return the agent that line 1's metadata names; empty: the default one."""
    found = inner.get(AGENT)
    return found if isinstance(found, str) and is_name(found) else ""


def shown(agent: str) -> str:
    """Return the name of an agent for people."""
    return agent or DEFAULT


def named(name: str) -> str:
    """Return the agent that people call by this name; empty: the default one."""
    return "" if name == DEFAULT else name


def parted(name: str) -> tuple[str, str]:
    """Take the name of a scope apart: its agent, empty for the default one, and its name among that one's."""
    top, _, rest = name.partition("/")
    agent, _, own = rest.partition("/")
    return (agent, own) if top == AGENTS and own else ("", name)


def within(agent: str, own: str) -> str:
    """Return the name of an agent's scope by its name among that agent's."""
    return f"{AGENTS}/{agent}/{own}" if agent else own


def scopes_below(folder: Path) -> frozenset[str]:
    """Name the folders right below ``folder``, in small letters, that are of other scopes.

    Only the ``files`` that direct chats share has any; a person may be called so, and then has none of these
    names either.
    """
    return _SCOPES if folder.name == "files" else frozenset()


def home_of(workspace: Path, agent: str) -> Path:
    """Return the folder in which ``memory/`` and ``files/`` of an agent lie."""
    return workspace / AGENTS / agent if agent else workspace
