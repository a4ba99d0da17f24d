"""In which order the places of a workspace are copied while others write them; each place has its stage.

What is copied later may know more than what was copied before it, never less. So what hands a message over
is copied before what takes it: a message may then stand in both, which every start after a crash meets as
well, and never in neither.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from session.store import places
from session.store.places import pattern_of


class Stage(IntEnum):
    """When a place is copied."""

    # How far platforms were read, and which runs of jobs were put: what came later is fetched or put again.
    SOURCES = 1
    # What waits, and the replies that were put. Whatever was settled by then has its outcome further below.
    QUEUE = 2
    # Transcript, journal and lock of a key are opened together under its lock, so that no session that is
    # being ended or opened again is missed where it was and where it goes.
    CONVERSATIONS = 3
    # Decisions and work that conversations have left to be done; what was done since is in what follows.
    WORK = 4
    # An answer that is on its way into memory stands here until it is in its files.
    MEMORY_STATE = 5
    REST = 6
    # What platforms accepted, as late as possible: nothing of it is sent again.
    SEND_LOG = 7
    # What is made anew, is of a process that runs, or is no part of the workspace's own content.
    LEFT_OUT = 8


def _of(stage: Stage, *patterns: str) -> dict[str, Stage]:
    return dict.fromkeys(patterns, stage)


# By the patterns of ``session.store.places``; a test holds that each of them stands here.
STAGES: Final = (
    _of(Stage.SOURCES, "cron/jobs.json", "cron/jobs.json.corrupt-*", "cron/action.jsonl")
    | _of(Stage.SOURCES, "cron/action.jsonl.corrupt-*")
    | _of(Stage.QUEUE, "state/gateway.db")
    | _of(Stage.CONVERSATIONS, *(place.pattern for place in places.OF_KEYS[:2]))
    | _of(Stage.CONVERSATIONS, "sessions/archive/{stem}/**", "state/keys/{stem}.lock")
    | _of(
        Stage.CONVERSATIONS,
        "state/subagents/sessions/{stem}.jsonl",
        "state/subagents/sessions/{stem}.jsonl.*",
    )
    | _of(Stage.CONVERSATIONS, "state/subagents/state/keys/{stem}.lock")
    | _of(Stage.WORK, "state/jobs/*-{mark}.json", "state/jobs/*-{mark}.*.json", "state/approvals/**")
    | _of(
        Stage.WORK, "state/subagents/chats/{marked}.json", "state/facts/{stem}.json", "state/erasing/*.json"
    )
    | _of(Stage.WORK, "state/failed_jobs.json", "state/retention.json")
    | _of(Stage.MEMORY_STATE, "state/memory/{home}{top}/{own}.json", "state/memory/workspace.*")
    | _of(Stage.MEMORY_STATE, "state/memory/agents/*/workspace.*")
    | _of(Stage.REST, "{home}memory/{top}/{own}/**", "{home}files/{top}/{own}/**")
    | _of(Stage.REST, "memory/*.md", "memory/facts.jsonl")
    | _of(Stage.REST, "agents/*/AGENTS.md", "agents/*/instructions.md", "agents/*/files/*")
    | _of(Stage.REST, "agents/*/memory/*.md", "agents/*/memory/facts.jsonl", "agents/*/memory/versions/**")
    | _of(Stage.REST, "memory/versions/**", "files/*", "media/*/*")
    | _of(Stage.REST, "AGENTS.md", "instructions.md", "HEARTBEAT.md", "playbooks/**", "skills/**")
    | _of(Stage.REST, "state/chat_history", "state/mcp/**", "state/tokens.json", "memory/*.corrupt-*")
    | _of(Stage.REST, "agents/*/memory/*.corrupt-*")
    | _of(Stage.SEND_LOG, "state/channels.db")
    | _of(Stage.LEFT_OUT, *(each.pattern for each in places.PLACES if each.use == "derived"))
    | _of(Stage.LEFT_OUT, *(each.pattern for each in places.OF_SCOPES if each.use == "guard"))
    # Their content is in the copy of the file itself.
    | _of(Stage.LEFT_OUT, "state/gateway.db-*", "state/channels.db-*")
    | _of(
        Stage.LEFT_OUT,
        "state/lock",
        "state/gateway.sock",
        "state/*.lock",
        "state/*.lease",
        "cron.lock",
        "state/daemon.json",
        "state/*.ready",
    )
    | _of(Stage.LEFT_OUT, "state/facts/workspace.lock", "state/recall/workspace.*")
    | _of(Stage.LEFT_OUT, "state/facts/agents/*/workspace.lock", "state/recall/agents/*/workspace.*")
    | _of(Stage.LEFT_OUT, "state/subagents/chats.lock", "state/chat.log", "state/chat.log.1", "media/.*")
    # Files on their way out: what is copied there lies in the workspace, too.
    | _of(Stage.LEFT_OUT, "state/outgoing/**")
    # It may hold secrets, and is asked for by a word of its own.
    | _of(Stage.LEFT_OUT, "chat-gateway.toml", "config-of-backup/*")
    # What ``run --reset-state`` moved aside.
    | _of(Stage.LEFT_OUT, "state-before-reset-*/**")
    # Where machines keep their indexes.
    | _of(Stage.LEFT_OUT, "state/local/*.json")
)
# What the workspace has right below it.
_TOPS: Final = frozenset(pattern.split("/")[0].removeprefix("{home}") for pattern in STAGES)


def stage_of(path: str) -> Stage:
    """Say when a path below the workspace is copied; what no table knows is somebody's, and copied."""
    name = path.rpartition("/")[2]
    # What a writer has not ended, or a kill left by half.
    if name.startswith(".") and name.endswith("tmp"):
        return Stage.LEFT_OUT
    if path.startswith("state/memory/") and name.endswith(".lock"):
        return Stage.LEFT_OUT
    found = pattern_of(path)
    return Stage.REST if found is None else STAGES[found]


def is_of_tools(path: str) -> bool:
    """Say whether a path lies where tools of a chat write, whatever they write."""
    match path.split("/"):
        case ["files", _, *_] | ["agents", _, "files", _, *_]:
            return True
        case _:
            return False


def is_somebodys(path: str) -> bool:
    """Say whether a path lies in no folder that the program knows."""
    return path.split("/")[0] not in _TOPS
