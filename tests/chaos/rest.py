"""Waits until a gateway that was harmed has come to rest, and writes down what there is then."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aio_pika

import durable
from gateway.queue.rabbitmq.topology import Names
from tests.chaos.checker import check
from tests.chaos.feed import Post, parked
from tests.chaos.records import Account, Harm, Message, Records
from tests.chaos.stub_model import StubModel
from tests.chaos.stub_telegram import StubTelegram
from tests.support.place import archives, transcript

REST_S = 180.0


class Scene:
    """Who writes to a gateway, what it talks to, and what is done to it: the sources of the records."""

    def __init__(
        self,
        workspace: Path,
        post: Post,
        platform: StubTelegram,
        model: StubModel | None,
        *,
        sent: Mapping[str, list[Message]],
        harms: list[Harm],
        daemons: int = 1,
    ) -> None:
        self._workspace, self._daemons = workspace, daemons
        self._post, self._platform, self._model = post, platform, model
        self._sent, self._harms = sent, harms
        self._letters = Records()

    async def at_rest(self, url: str) -> Records:
        """Return the records once nothing is missing; what is missing while nothing comes stays missing.

        Args:
            url: where a gateway can be asked what it has set aside.
        """
        until, fewest = time.monotonic() + REST_S, math.inf
        while True:
            letters = await parked(url, self._post.named, REST_S)
            self._letters.parked = [letter for letter in letters if letter.inbound]
            self._letters.unsent = [letter for letter in letters if not letter.inbound]
            records = await self.records()
            missing = awaited(check(records), records)
            # A platform takes a message a second of a chat, and a quick machine has many waiting.
            if len(missing) < fewest:
                until, fewest = time.monotonic() + REST_S, len(missing)
            if not missing or time.monotonic() > until:
                return records
            for message in [one for one in records.messages if one.id in missing]:
                await self._post.remind(message)
            await asyncio.sleep(0.5)

    async def records(self) -> Records:
        illegal: list[str] = []
        lines = {
            chat: await asyncio.to_thread(
                read_chat, self._workspace, self._post.stem(chat), self._post.named, illegal
            )
            for chat in self._sent
        }
        return Records(
            sent=dict(self._sent),
            harms=list(self._harms),
            calls=list(self._model.calls) if self._model else [],
            asides=list(self._model.told_aside) if self._model else [],
            replies=list(self._post.replies),
            parked=self._letters.parked,
            lines=lines,
            illegal=illegal,
            notes=read_memory(self._workspace),
            published={one: times for one, times in self._post.published.items() if times > 1},
            ordered=self._post.ordered,
            daemons=self._daemons,
            updates=list(self._platform.updates.values()),
            sent_pieces=list(self._platform.sent),
            unsent=self._letters.unsent,
        )


def awaited(account: Account, records: Records) -> set[str]:
    """Return the messages that are not yet told as they are stored, or parked."""
    loss, _, effect, *_, poison = account.guarantees
    # Of a reply in several pieces the last ones may still wait for the platform's rate.
    named = {re.split("[ :]", one, maxsplit=1)[0] for one in [*loss.broken, *effect.broken, *poison.broken]}
    return named & {message.id for message in records.messages}


async def left_in_broker(url: str, names: Names) -> list[str]:
    """Tell of every letter that stays in the queues of gateways that have ended, but for foreign ones."""
    found = []
    async with await aio_pika.connect(url, timeout=30) as connection:
        for queue in [*(queue for queue, _ in names.inbound_queues()), names.outbound_queue("telegram")]:
            channel = await connection.channel()
            try:
                declared = await channel.declare_queue(queue, passive=True)
            except aio_pika.exceptions.ChannelNotFoundEntity:
                continue
            if count := declared.declaration_result.message_count:
                found.append(f"{count} messages stay in {queue}")
    return found


def left_in_file(workspace: Path) -> list[str]:
    """Tell the same of an embedded queue."""
    path = workspace / "state" / durable.STATE_FILE
    if not path.exists():
        return ["the queue's file is gone"]
    with durable.reading(path) as file:
        found: Sequence[tuple[str, str, str, int]] = file.execute(
            "SELECT name, key, id, seq FROM queue ORDER BY seq"
        ).fetchall()
    return [f"message {row} stays in {box}: {name or 'no id'} of {key}" for box, key, name, row in found]


_ROLES = {"user", "assistant", "tool", "system"}
_MARK = re.compile(r"<!-- session (\w{26}) messages (\d+)-(\d+) \w{8} -->")


def read_chat(
    workspace: Path, stem: str, named: Callable[[str], str], illegal: list[str]
) -> list[list[dict[str, Any]]]:
    """Return the sessions of a chat, ended ones first; ``named`` says which message an id is.

    What is no line of a transcript goes to ``illegal``.
    """
    files = [*archives(workspace, stem), transcript(workspace, stem)]
    return [_lines(path, named, illegal) for path in files if path.exists()]


def _lines(path: Path, named: Callable[[str], str], illegal: list[str]) -> list[dict[str, Any]]:
    raw = path.read_bytes().split(b"\n")
    if raw.pop():
        illegal.append(f"{path.name} has a torn tail")
    lines = []
    for number, each in enumerate(raw):
        try:
            line: dict[str, Any] = json.loads(each)
            legal = line["_type"] == "metadata" if number == 0 else line["role"] in _ROLES
        except (ValueError, KeyError, TypeError):
            line, legal = {}, False
        if not legal:
            illegal.append(f"{path.name} line {number + 1}: {each[:80]!r}")
        elif number:
            lines.append({**line, "message_id": named(str(line.get("message_id", "")))})
    return lines


def read_memory(workspace: Path) -> list[str]:
    """Return what is wrong in every HISTORY.md: messages noted twice, or left out between two notes."""
    wrong = []
    for path in workspace.glob("memory/**/HISTORY.md"):
        reached: dict[str, int] = {}
        for session, start, stop in _MARK.findall(path.read_text()):
            if int(start) != reached.get(session, 0):
                place = path.relative_to(workspace)
                wrong.append(f"{place}: {session} goes on at {start}, not {reached.get(session, 0)}")
            reached[session] = int(stop) + 1
    return wrong
