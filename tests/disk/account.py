"""What is looked at when a gateway on such a disk has come to rest; pure but for reading files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.chaos.checker import flat, wrong_results
from tests.chaos.pieces import TRIES
from tests.chaos.records import Message, Reply
from tests.chaos.transcripts import read_chat, read_memory
from tests.support.model_replies import Seen, since_newest_user

ID = re.compile(r"\b[a-z]+-\d{5}\b")


@dataclass
class Account:
    """What was found, one list of findings for each guarantee."""

    messages: int = 0
    model_calls: int = 0
    least_calls: int = 0
    repeated_replies: int = 0
    stopped: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    mixed: list[str] = field(default_factory=list)
    asked_again: list[str] = field(default_factory=list)
    illegal: list[str] = field(default_factory=list)
    memory: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """Every finding, with the name of its list."""
        names = ("lost", "twice", "reordered", "mixed", "asked_again", "illegal", "memory")
        return [f"{name}: {one}" for name in names for one in getattr(self, name)]


def check(
    workspace: Path,
    *,
    sent: Mapping[str, Sequence[Message]],
    stem: Callable[[str], str],
    named: Callable[[str], str],
    replies: Sequence[Reply],
    asked: Sequence[Seen],
    kills: Sequence[float],
    refusals: Sequence[tuple[float, float]] = (),
    unsent: Mapping[str, str] = MappingProxyType({}),
) -> Account:
    """Look at transcripts, replies, memory and the model's own count of requests.

    Args:
        workspace: the folder of the gateway, at rest.
        sent: the messages of each chat in the order in which they were accepted.
        stem: the file name of a chat.
        named: returns the message behind the gateway's id for it.
        replies: all that came back.
        asked: the requests that the model got.
        kills: when a daemon was dead, by the same clock.
        refusals: from when to when a disk may have refused to store an answer, which is then made anew.
        unsent: the messages whose answers were set aside, and why.
    """
    account = Account(messages=sum(map(len, sent.values())))
    texts = _replies(account, replies)
    for name, messages in sent.items():
        # One that was opened again stands last, wherever it began.
        sessions = sorted(read_chat(workspace, stem(name), named, account.illegal), key=_begun)
        _check_chat(account, name, messages, sessions, texts, unsent)
    pauses = [*((kill, kill) for kill in kills), *refusals]
    for name, reason in unsent.items():
        if reason != "unknown" or len(kills) < TRIES:
            account.illegal.append(f"the answer to {name} was set aside: {reason}")
    _check_calls(account, [message for each in sent.values() for message in each], asked, pauses)
    account.memory += read_memory(workspace)
    return account


def crashed(log: str) -> list[str]:
    """Find the turns that took a refusal of the disk for an error of their own, in what a gateway logged."""
    lines = [line for line in log.splitlines() if '"event":"turn.crashed"' in line]
    return [f"a turn crashed: {json.loads(line)['exception'][-300:]}" for line in lines]


def _replies(account: Account, replies: Sequence[Reply]) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for reply in replies:
        if reply.kind == "reply":
            texts.setdefault(reply.message, []).append(reply.text)
    account.repeated_replies = sum(len(found) - 1 for found in texts.values())
    account.twice += [f"{name} was told {set(found)}" for name, found in texts.items() if len(set(found)) > 1]
    return texts


def _begun(session: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of a session's first question; people count on from message to message."""
    first = next((line["message_id"] for line in session if line["role"] == "user"), "")
    return first.rpartition("-")[2]


def _check_chat(
    account: Account,
    name: str,
    messages: Sequence[Message],
    sessions: Sequence[Sequence[Mapping[str, Any]]],
    texts: Mapping[str, list[str]],
    unsent: Collection[str],
) -> None:
    lines = flat(sessions)
    finals = [line for line in lines if line.get("final")]
    count = Counter(line["message_id"] for line in finals)
    users = Counter(line["message_id"] for line in lines if line["role"] == "user")
    last = {line["message_id"]: line for line in finals}
    for message in messages:
        final = last.get(message.id)
        told = texts.get(message.id, [])
        stopped = final is not None and bool(final.get("stopped"))
        account.stopped += stopped
        if not message.command and (users[message.id] != 1 or count[message.id] != 1):
            (account.twice if count[message.id] > 1 or users[message.id] > 1 else account.lost).append(
                f"{message.id}: {users[message.id]} user lines, {count[message.id]} finals"
            )
        elif stopped and told:
            account.twice.append(f"{message.id} was stopped and told {told}")
        elif not stopped and not told and message.id not in unsent:
            account.lost.append(f"{message.id} ({message.kind}) has no reply")
        elif told and final is not None and not stopped and told[0] != final["content"]:
            account.twice.append(f"{message.id}: stored {final['content']!r}, told {told[0]!r}")
        others = {one for text in told for one in ID.findall(text)} - {message.id}
        if others:
            account.mixed.append(f"{message.id} was told of {others}")
    wanted = sessions_of(messages)
    if [line["message_id"] for line in finals] != [one for ids in wanted for one in ids if one in last]:
        account.reordered.append(f"{name}: {[line['message_id'] for line in finals]}")
    found = [[line["message_id"] for line in session if line["role"] == "user"] for session in sessions]
    if [ids for ids in found if ids] != wanted:
        account.reordered.append(f"{name}: sessions {found}, not {wanted}")
    account.illegal += wrong_results(name, lines)


def sessions_of(messages: Sequence[Message]) -> list[list[str]]:
    """Return each session's questions: ``/new`` ends one, ``/resume`` opens the one that ended last."""
    active: list[str] = []
    ended: list[list[str]] = []
    for message in messages:
        if message.kind == "new" or (message.kind == "resume" and ended):
            again = ended.pop() if message.kind == "resume" else []
            # One in which nothing was said leaves nothing.
            ended += [active] if active else []
            active = again
        elif not message.command:
            active.append(message.id)
    return sorted([ids for ids in [*ended, active] if ids], key=lambda ids: ids[0].rpartition("-")[2])


def _check_calls(
    account: Account,
    messages: Sequence[Message],
    asked: Sequence[Seen],
    pauses: Sequence[tuple[float, float]],
) -> None:
    """A request is made again only where a kill or a refusal came between."""
    times: dict[tuple[str, int], list[float]] = {}
    for seen in asked:
        found = ID.findall(seen.text)
        if "save_memory" in seen.tools or not found:
            continue
        done = sum(1 for line in since_newest_user(seen.messages) if line.get("tool_calls"))
        times.setdefault((found[-1], done), []).append(seen.at)
        account.model_calls += 1
    account.least_calls = sum(message.rounds for message in messages)
    for (name, done), at in times.items():
        for earlier, later in pairwise(at):
            if not any(began < later and earlier < ended for began, ended in pauses):
                account.asked_again.append(f"{name} round {done + 1}, after {later - earlier:.2f} s, no kill")
