"""What is kept of a conversation or of a scope, place by place: the one table that is exported and erased.

A row names the files of one kind below the workspace. A path that neither a row nor ``ELSEWHERE`` names is a
place that nobody thought of: a test walks the workspace of a whole run and finds none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from durable import sync_folder
from session.disk.layout import Layout
from session.disk.local_files import local_name, local_path
from session.errors import StoreError
from session.store.derived import index_path
from session.store.trees import folders, remove_tree
from session.store.writer import originals_of
from session.transcript.agent import AGENTS, home_of, is_name, parted, within
from session.transcript.key import mark_of, marked_stem, plain_stem

# ``kept`` is exported and erased; ``derived`` is erased, and made anew of what is kept; ``guard`` is a lock
# that stays, since whoever waits for it holds it open by its name.
Use = Literal["kept", "derived", "guard"]


@dataclass(frozen=True, slots=True)
class Place:
    """One kind of files: of a key by ``{stem}`` or ``{mark}``, of a scope by ``{top}/{own}``.

    ``{home}`` is the folder of the agent whose scope it is, with its slash; the default one has none.

    ``*`` stands for any part of a name, ``**`` at the end for all files below. Where ``says_key`` names a
    field a file is the key's whose JSON has it there.
    """

    kind: str
    pattern: str
    use: Use = "kept"
    says_key: str = ""


OF_KEYS: Final = (
    Place("transcript", "sessions/{stem}.jsonl"),
    Place("original", "sessions/{stem}.jsonl.corrupt-{ulid}"),
    Place("left by half", "sessions/.{mark}.*.tmp", "derived"),
    Place("archive", "sessions/archive/{stem}/**"),
    Place("lock", "state/keys/{stem}.lock", "guard"),
    Place("index", "state/index/{stem}.idx", "derived"),
    Place("index", "state/index/{stem}.new", "derived"),
    Place("shown facts", "state/facts/{stem}.json"),
    Place("job", "state/jobs/*-{mark}.json", says_key="key"),
    Place("job", "state/jobs/*-{mark}.*.json", says_key="key"),
    Place("approval", "state/approvals/**", says_key="call.key"),
    Place("subagent", "state/subagents/chats/{marked}.json"),
)
# Subagents have a store of their own.
OF_SUBAGENTS: Final = (
    Place("subagent", "state/subagents/sessions/{stem}.jsonl"),
    Place("subagent", "state/subagents/sessions/{stem}.jsonl.*"),
    Place("subagent", "state/subagents/state/keys/{stem}.lock", "guard"),
    Place("subagent", "state/subagents/state/index/{stem}.*", "derived"),
)
OF_SCOPES: Final = (
    Place("memory", "{home}memory/{top}/{own}/**"),
    Place("file", "{home}files/{top}/{own}/**"),
    Place("memory state", "state/memory/{home}{top}/{own}.json"),
    Place("lock", "state/memory/{home}{top}/{own}.lock", "guard"),
    Place("lock", "state/facts/{home}{top}/{own}.lock", "guard"),
    Place("recall", "state/recall/{home}{top}/{index}.db", "derived"),
    Place("recall", "state/recall/{home}{top}/{index}.db-*", "derived"),
    Place("lock", "state/recall/{home}{top}/{index}.lock", "guard"),
)
# Whole folders. A command may put a link in the place of one, so that no path of what lies there is a proof.
_OF_TREES: Final = ("memory", "file")
# Files of all, with rows of each: who erases and exports those is named in ``session.kept.rows`` and
# ``gateway.app.erasure``.
OF_ALL: Final = (
    Place("media", "media/*/*"),
    Place("vector", "state/vectors.db", "derived"),
    Place("vector", "state/vectors.db-*", "derived"),
    Place("letter", "state/gateway.db"),
    Place("letter", "state/gateway.db-*"),
    Place("delivery", "state/channels.db"),
    Place("delivery", "state/channels.db-*"),
    Place("schedule", "cron/jobs.json"),
    Place("schedule", "cron/jobs.json.corrupt-*"),
    Place("schedule", "cron/action.jsonl"),
    Place("schedule", "cron/action.jsonl.corrupt-*"),
    Place("typed", "state/chat_history"),
)
# The copies of damaged files; those of a long name have it cut in theirs.
_COPIES: Final = tuple(place for place in OF_KEYS if place.kind == "original")
PLACES: Final = (*OF_KEYS, *OF_SUBAGENTS, *OF_SCOPES, *OF_ALL)
# What is of no chat, or of all together; why it stays is said where it could be doubted.
ELSEWHERE: Final = (
    # The operator's own texts.
    *("AGENTS.md", "instructions.md", "HEARTBEAT.md", "playbooks/**", "skills/**", "chat-gateway.toml"),
    # The scope ``workspace`` is of all direct chats.
    *(
        "memory/*.md",
        "memory/*.corrupt-*",
        "memory/facts.jsonl",
        "memory/versions/**",
        "files/*",
        "state/memory/workspace.*",
    ),
    *("state/facts/workspace.lock", "state/recall/workspace.*"),
    # The same of another agent.
    *("agents/*/AGENTS.md", "agents/*/instructions.md", "agents/*/memory/*.md", "agents/*/files/*"),
    *("agents/*/memory/facts.jsonl", "agents/*/memory/versions/**", "state/memory/agents/*/workspace.*"),
    "agents/*/memory/*.corrupt-*",
    *("state/facts/agents/*/workspace.lock", "state/recall/agents/*/workspace.*"),
    # Processes, locks, leases, platforms, times and counts.
    *(
        "state/*.lock",
        "state/*.lease",
        "cron.lock",
        "state/lock",
        "state/gateway.sock",
        "state/daemon.json",
    ),
    *("state/retention.json", "state/*.ready", "state/tokens.json"),
    # The logs of the terminal chat hold no message; they are named in what an erasure says.
    *("state/chat.log", "state/chat.log.1"),
    # A file that is being fetched; what a kill left of one goes after a day.
    "media/.*",
    # Copies of files for the time that a platform is given them.
    "state/outgoing/**",
    # Where machines keep their indexes.
    "state/local/*.json",
    # Erasures that are under way.
    "state/erasing/*.json",
    # What servers of tools list, and their own folders, which are of no chat.
    *("state/mcp/**", "state/subagents/chats.lock"),
    # Ids of jobs, and which of them failed last.
    "state/failed_jobs.json",
    # What a restore brought along of the configuration.
    "config-of-backup/*",
    # What ``run --reset-state`` moved aside; the operator deletes it.
    "state-before-reset-*/**",
)
_ULID: Final = "[0-9A-Z]{26}"
_ANY: Final = {
    "ulid": _ULID,
    "marked": "[^/]+",
    "stem": "[^/]+",
    "mark": "[0-9a-f]{8}",
    "home": "(?:agents/[^/]+/)?",
    "top": "(?:chats|people)",
    "own": "[^/]+",
    "index": "[0-9a-f]{32}",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A file of a place: which kind, and where below the workspace."""

    place: Place
    path: Path

    @property
    def size(self) -> int:
        """Its bytes; one that goes meanwhile has none."""
        try:
            return self.path.lstat().st_size
        except OSError:
            return 0


def of_key(layout: Layout, key: str, stem: str) -> Iterator[Found]:
    """List the files of a conversation, those of its scope apart."""
    names = {"stem": re.escape(stem), "mark": mark_of(key), "ulid": _ULID}
    names["marked"] = re.escape(marked_stem(key))
    for place in OF_KEYS:
        if place in _COPIES:
            continue
        for path in _matching(layout.workspace, place.pattern, names):
            if not place.says_key or _says(path, place.says_key) == key:
                yield Found(place, path)
    for place in _COPIES:
        yield from (Found(place, copy) for copy in originals_of(layout.transcript(stem)))


def of_subagent(layout: Layout, key: str) -> Iterator[Found]:
    """List the files of a subagent's conversation."""
    for stem in (plain_stem(key), marked_stem(key)):
        names = {"stem": re.escape(stem)}
        for place in OF_SUBAGENTS:
            yield from (Found(place, path) for path in _matching(layout.workspace, place.pattern, names))


def of_scope(layout: Layout, scope: str) -> Iterator[Found]:
    """List the files of the scope that has this name: ``chats/<stem>``, ``people/<name>``, or an agent's."""
    agent, within_agent = parted(scope)
    top, _, own = within_agent.partition("/")
    index = index_path(layout.workspace, scope).stem
    home = re.escape(f"{AGENTS}/{agent}/") if agent else ""
    names = {"home": home, "top": top, "own": re.escape(own), "index": index}
    for place in OF_SCOPES:
        yield from (Found(place, path) for path in _matching(layout.workspace, place.pattern, names))


def with_agents(layout: Layout, scopes: Iterable[str]) -> list[str]:
    """List these scopes of the default agent, and those that every other agent has in their place on disk."""
    top = layout.workspace
    homes = (top, *(local_path(top, f"state/{name}") for name in ("memory", "facts", "recall")))
    agents = {path.name for home in homes for path in (home / AGENTS).glob("*") if is_name(path.name)}
    return [within(agent, scope) for scope in scopes for agent in ("", *sorted(agents))]


def remove(found: Iterator[Found]) -> None:
    """Delete the files that were found; durable. Guards stay, and what lies in trees: see ``remove_trees``.

    Raises:
        StoreError: the disk refused; call it again.
    """
    parents: set[Path] = set()
    try:
        for each in list(found):
            if each.place.use != "guard" and each.place.kind not in _OF_TREES:
                each.path.unlink(missing_ok=True)
                parents.add(each.path.parent)
        for folder in sorted(parents, key=lambda path: -len(path.parts)):
            if folder.is_dir():
                sync_folder(folder)
    except OSError as error:
        raise StoreError(f"a file could not be removed: {error.strerror}", hint="run it again") from error


def files_of(layout: Layout, scope: str) -> Path:
    """Return the folder in which the tools of a scope work, which may not be there."""
    return _folder_of(layout, "files", scope)


def _folder_of(layout: Layout, name: str, scope: str) -> Path:
    agent, own = parted(scope)
    return home_of(layout.workspace, agent) / name / own


def remove_trees(layout: Layout, *, stem: str = "", scope: str = "") -> None:
    """Delete the folders that belong to one stem or scope alone.

    Raises:
        StoreError: the disk refused; call it again.
    """
    top = layout.workspace
    trees = [layout.archive(stem)] if stem else []
    trees += [_folder_of(layout, "memory", scope), files_of(layout, scope)] if scope else []
    for tree in trees:
        try:
            if tree.is_symlink():
                # What it leads to is somebody else's.
                tree.unlink()
            elif tree.exists():
                remove_tree(tree)
            if tree.parent.is_dir():
                sync_folder(tree.parent)
        except OSError as error:
            raise StoreError(
                f"{tree.relative_to(top)} could not be removed: {error.strerror}", hint="run it again"
            ) from error


def kind_of(path: str) -> str | None:
    """Say of which kind a path below the workspace is; empty: of no chat, None: of none that is known."""
    found = pattern_of(path)
    return None if found is None else next((each.kind for each in PLACES if each.pattern == found), "")


def pattern_of(path: str) -> str | None:
    """Return the first pattern of the whole table that a path fits; None: it fits none."""
    return next((pattern for pattern, regex in _table() if regex.fullmatch(path)), None)


@cache
def _table() -> tuple[tuple[str, re.Pattern[str]], ...]:
    patterns = (*(place.pattern for place in PLACES), *ELSEWHERE)
    return tuple((pattern, _regex(pattern, _ANY)) for pattern in patterns)


def _matching(workspace: Path, pattern: str, names: dict[str, str]) -> Iterator[Path]:
    regex = _regex(pattern, names)
    folder = local_path(workspace, _plain(pattern, names))
    below = _below(folder) if pattern.endswith("**") else _in(folder)
    yield from (path for path in below if regex.fullmatch(local_name(workspace, path)))


def _plain(pattern: str, names: dict[str, str]) -> str:
    """Return the folder in which all that fits lies: the parts before the first that is not one name."""
    parts = []
    for part in pattern.split("/")[:-1]:
        if "*" in part:
            break
        parts.append(re.sub(r"\{(\w+)\}", lambda found: re.sub(r"\\(.)", r"\1", names[found[1]]), part))
    return "/".join(parts)


def _regex(pattern: str, names: dict[str, str]) -> re.Pattern[str]:
    """Turn a pattern into an expression that its files match, and what a kill left of one by half."""
    head, _, last = pattern.rpartition("/")
    folder = _piece(head, names) + "/" if head else ""
    if last == "**":
        return re.compile(folder + ".+", re.DOTALL)
    name = _piece(last, names)
    return re.compile(f"{folder}(?:{name}|\\.{name}\\.[^/]*tmp)", re.DOTALL)


def _piece(text: str, names: dict[str, str]) -> str:
    parts = re.split(r"(\{\w+\}|\*)", text)
    return "".join(
        "[^/]*" if part == "*" else names[part[1:-1]] if part.startswith("{") else re.escape(part)
        for part in parts
    )


def _in(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_symlink() or not path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _below(folder: Path) -> Iterator[Path]:
    for parent, names in folders(folder):
        yield from (parent / name for name in names)


def _says(path: Path, field: str) -> object:
    """Return the key that a JSON file has in a field, ``a.b`` for one within another; None: nobody's."""
    try:
        content: object = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    for name in field.split("."):
        content = content.get(name) if isinstance(content, dict) else None
    return content
