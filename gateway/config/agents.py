"""Several agents: what of the configuration holds for which, who is bound to whom, who shares memory."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeVar, get_args

from pydantic import BaseModel

from gateway.config.settings import BY, Settings
from session.context.scopes import Agents, By, Reader, Scopes, counts_as_group
from session.context.scopes import Binding as Bound
from session.transcript.agent import AGENTS, DEFAULT, is_name
from session.transcript.key import TOPIC, plain_stem, split
from session.transcript.line import first_line
from session.turn.command_names import ALIASES, DESCRIPTIONS

T = TypeVar("T", bound=BaseModel)
KeyPath = tuple[str, ...]


def faults(settings: Settings) -> Iterator[tuple[KeyPath, str]]:
    """Yield what is wrong with agents and bindings: the key, and words with what was probably meant."""
    for name, table in settings.agents.items():
        if not is_name(name):
            why = f"is configured by the other sections: remove [agents.{DEFAULT}]"
            form = "expected up to 32 lower-case letters, digits, '_' and '-', starting with a letter"
            yield ("agents", name), f"{name!r} {why}" if name == DEFAULT else form
        if "embedding" in table.model.model_fields_set:
            yield (
                ("agents", name, "model", "embedding"),
                "all agents share one embedding model: set it in [model]",
            )
    seen: dict[tuple[str, str], int] = {}
    for number, binding in enumerate(settings.bindings):
        here = ("bindings", str(number))
        if binding.agent not in (known := [DEFAULT, *settings.agents]):
            yield (*here, "agent"), f"no agent {binding.agent!r}{nearest(binding.agent, known)}"
        by = next(name for name in BY if getattr(binding, name))
        value = getattr(binding, by)
        if words := _wrong(settings, by, value):
            yield (*here, by), words
        first = seen.setdefault((by, value), number)
        if first != number:
            yield (*here, by), f"{value!r} is already bound by bindings[{first}]; keep one of them"


def _wrong(settings: Settings, by: str, value: str) -> str:
    channels = [*type(settings.channels).model_fields, "cli", "cron"]
    if by == "channel" and value not in channels:
        return f"no channel {value!r}{nearest(value, channels)}"
    if by == "person" and value not in settings.people:
        return f"[people] has no {value!r}{nearest(value, settings.people)}"
    if by == "command" and value in {*DESCRIPTIONS, *ALIASES}:
        return f"/{value} is a built-in command"
    if by in ("chat", "topic"):
        if not all(split(value)):
            return f"{value!r}: expected a key, such as telegram:-100; chat-gateway sessions list shows them"
        if (by == "topic") != (TOPIC in value):
            example = f"telegram:-100123{TOPIC}7"
            return (
                f"{value!r} is not a topic: expected {example}" if by == "topic" else f"{value!r} is a topic"
            )
    return ""


def nearest(name: str, known: Collection[str]) -> str:
    """Say which name was probably meant, else which there are; empty: there is none."""
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; nearest: {near[0]!r}" if near else f"; available: {', '.join(known)}" if known else ""


def no_agent(settings: Settings, name: str) -> str:
    """Say that there is no agent of this name, and which was probably meant; empty: there is one."""
    known = [DEFAULT, *settings.agents]
    return f"there is no agent {name!r}{nearest(name, known)}" if name and name not in known else ""


def agents_of(settings: Settings) -> Agents:
    """Read which agents there are, and what is bound to them; commands are apart."""
    bindings: list[Bound] = []
    for each in settings.bindings:
        agent = "" if each.agent == DEFAULT else each.agent
        for by in get_args(By):
            if value := getattr(each, by):
                keys = settings.people.get(value, ()) if by == "person" else (value,)
                bindings += [Bound(by, key, agent, each.fixed) for key in keys]
    kinds = {name: settings_of(settings, name).memory.scope for name in settings.agents}
    closed = frozenset(name for name, table in settings.agents.items() if not table.choosable)
    return Agents(kinds, bindings, closed)


def commands_of(settings: Settings) -> dict[str, str]:
    """Map each command that is bound to the name of its agent."""
    return {each.command: each.agent for each in settings.bindings if each.command}


def described(settings: Settings) -> dict[str, str]:
    """Map each command that is bound to what menus and ``/help`` say of it."""
    return {command: f"talks to the agent {agent}" for command, agent in commands_of(settings).items()}


def settings_of(settings: Settings, agent: str) -> Settings:
    """Return the configuration as it holds for an agent, empty for the default one.

    What its tables leave out is as in the sections of the same name, with two exceptions: the numbers of
    ``[compaction]`` where it has another preset, and what belongs to the provider where it has another model.
    """
    table = settings.agents.get(agent)
    if table is None:
        return settings
    model = settings.model
    if (name := table.model.name) != model.name and "name" in table.model.model_fields_set:
        update: dict[str, object] = {"context_window": 0, "fallbacks": (), "small": "", "takes": ()}
        if name.partition("/")[0] != model.name.partition("/")[0]:
            # The key of one provider is nothing that another one shall see.
            update |= {"api_base": "", "api_key": type(model).model_fields["api_key"].default}
        model = model.model_copy(update=update)
    if table.model.api_base and table.model.api_base != model.api_base:
        model = model.model_copy(update={"api_key": type(model).model_fields["api_key"].default})
    compaction = settings.compaction
    if "preset" in table.compaction.model_fields_set and table.compaction.preset != compaction.preset:
        compaction = type(compaction)()
    return settings.model_copy(
        update={
            "model": _over(model, table.model),
            "tools": _over(settings.tools, table.tools),
            "memory": _over(settings.memory, table.memory),
            "compaction": _over(compaction, table.compaction),
        }
    )


def _over(base: T, own: BaseModel) -> T:
    """Lay what a table sets over another one of its kind, tables within it as well."""
    update: dict[str, object] = {}
    for name in own.model_fields_set:
        mine, theirs = getattr(own, name), getattr(base, name, None)
        if isinstance(mine, BaseModel) and isinstance(theirs, BaseModel):
            update[name] = _over(theirs, mine)
        elif isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            update[name] = {**theirs, **mine}
        else:
            update[name] = mine
    return base.model_copy(update=update)


FILES = ("MEMORY.md", "USER.md")
Finding = tuple[Literal["ok", "warn"], str, str]


def scopes_of(settings: Settings) -> Scopes:
    """Read from the configuration which conversations share notes and files."""
    return Scopes(
        settings.workspace, kind=settings.memory.scope, people=settings.people, agents=agents_of(settings)
    )


def check_memory(settings: Settings) -> Finding:
    """Return level, text and cure: notes of the workspace lie unused where each chat has its own scope."""
    if settings.memory.scope == "chat":
        for name in FILES:
            if (settings.workspace / "memory" / name).exists():
                return (
                    "warn",
                    f"memory/{name} is not used, because memory.scope is chat",
                    'set memory.scope = "workspace" to use it',
                )
    if (agent := _left_agent(settings)) is not None:
        return agent
    left = _left_behind(settings)
    if left is not None:
        return left
    count = len(settings.people)
    people = f", {count} {'person' if count == 1 else 'people'}" if count else ""
    return "ok", f"scope {settings.memory.scope}{people}", ""


def _left_agent(settings: Settings) -> Finding | None:
    there = {path.parent.name for path in (settings.workspace / AGENTS).glob("*/memory")}
    gone = min(there - set(settings.agents), default=None)
    if gone is None:
        return None
    text = f"the memory in agents/{gone} is not used, because [agents] has no {gone}"
    return "warn", text, f"add [agents.{gone}] again, or delete that folder"


def _left_behind(settings: Settings) -> Finding | None:
    """Find notes of a chat that is a person's now, and of a person who is listed no more."""
    memory = settings.workspace / "memory"
    if settings.memory.scope != "chat":
        if not settings.people:
            return None
        return "ok", "scope workspace: [people] has no effect on memory; all direct chats share one", ""
    for name, keys in settings.people.items():
        for key in keys:
            own = memory / "chats" / plain_stem(key)
            if any((own / each).exists() for each in FILES) and not _is_group(settings.workspace, key):
                text = (
                    f"{key} belongs to {name}, so its own notes in memory/chats/{own.name} are no longer used"
                )
                return "warn", text, f"merge them into memory/people/{name} by hand, then delete that folder"
    known = {path.name for path in (memory / "people").glob("*") if path.is_dir()} - set(settings.people)
    if known:
        text = f"memory/people/{min(known)} is not used, because [people] has no such name"
        return "warn", text, "add the person again, or rename the folder (in files/, too)"
    return None


def _is_group(workspace: Path, key: str) -> bool:
    """Say whether a chat counts as a group, as its active session knows: then its own notes are in use."""
    try:
        with (workspace / "sessions" / f"{plain_stem(key)}.jsonl").open("rb") as file:
            inner = json.loads(first_line(file) or b"").get("metadata")
        said = inner.get("chat")
    except (OSError, ValueError, AttributeError, RecursionError):
        said = None
    return counts_as_group(Reader(key, said if said in ("direct", "group") else None))
