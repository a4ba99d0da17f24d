"""Sessions of pi and OpenClaw: a header and a tree of entries; the branch with the newest entry is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from session.interchange.conversation import (
    BadFormat,
    Conversation,
    Files,
    Fit,
    Line,
    Losses,
    Pictures,
    count_odd,
    each_session,
    from_texts,
    json_lines,
    json_object,
    new_call,
    stem_of,
    strings,
    texts_of,
    time_text,
)
from session.transcript.line import make_line, read_time

_HEADER = ("type", "version", "id", "timestamp", "modelId", "provider")
_ENTRY = ("type", "id", "parentId", "timestamp")
_COMPACTION = ("summary", "firstKeptEntryId", "firstKeptEntryIndex", "tokensBefore", "details")
_USER = ("role", "content", "timestamp")
_ASSISTANT = (*_USER, "usage", "model", "provider")
_RESULT = (*_USER, "toolCallId", "toolName", "isError")
_BASH = ("role", "command", "output", "exitCode", "timestamp", "cancelled", "truncated")
_TYPES = frozenset(
    {
        "session",
        "message",
        "compaction",
        "branch_summary",
        "custom",
        "custom_message",
        "model_change",
        "thinking_level_change",
        "label",
        "session_info",
        "context_transform",
        "ephemeral",
    }
)
_MOST = 2**53
Entry = Mapping[str, Any]
_STRANGE: Entry = {"type": ""}


def decode(files: Files) -> list[Conversation]:
    """Read each session's file."""
    return each_session(files, decode_file)


def decode_file(path: str, data: bytes) -> Conversation:
    """Read one session. Raises BadFormat where the file is none."""
    losses, fit = Losses(), Fit(path, data)
    # A strange record keeps its place: summaries of version 1 count all records of the file.
    entries: list[Entry] = [
        record if fit.count(_is_entry(record)) else _STRANGE for record in json_lines(data, losses)
    ]
    losses.add("records that are not entries", fit.strange)
    fit.check("a header or an entry with its type")
    header = next((entry for entry in entries if entry["type"] == "session"), {})
    losses.others("the header's", header, _HEADER)
    reading = _Reading(entries, losses, began=time_text(header.get("timestamp")))
    reading.read()
    named = [entry.get("name") for entry in entries if entry["type"] == "session_info" and entry.get("name")]
    inner = {"name": named[-1] if named else None, "model": reading.model or header.get("modelId")}
    return Conversation(
        tuple(reading.lines),
        session_id=found if isinstance(found := header.get("id"), str) and found else stem_of(path),
        origin=path,
        created_at=read_time(header.get("timestamp")) or _first_time(reading.lines),
        inner={name: value for name, value in inner.items() if isinstance(value, str) and value},
        media=reading.pictures.files,
        lost=losses.words(),
    )


def _is_entry(record: Entry) -> bool:
    """Say whether a record is a header or an entry: other programs have a ``compaction`` of another kind."""
    kind = record.get("type")
    if kind == "message":
        return isinstance(record.get("message"), dict)
    if kind == "compaction":
        return "firstKeptEntryId" in record or "firstKeptEntryIndex" in record
    return isinstance(kind, str) and kind in _TYPES


def _first_time(lines: list[Line]) -> Any:
    return next((at for line in lines if (at := read_time(line["timestamp"])) is not None), None)


def branch(entries: list[Entry], losses: Losses) -> list[int]:
    """List the indexes of the entries from the root to the last one of the file.

    An entry without ``parentId`` follows the one before it, as in files of version 1; null is a root.
    """
    tree = [at for at, entry in enumerate(entries) if entry["type"] not in ("session", "")]
    before = dict(zip(tree[1:], tree, strict=False))
    places = {entry["id"]: at for at in tree if isinstance((entry := entries[at]).get("id"), str)}
    path: list[int] = []
    seen = set[int]()
    at = tree[-1] if tree else None
    while at is not None and at not in seen:
        seen.add(at)
        path.append(at)
        if "parentId" not in entries[at]:
            at = before.get(at)
            continue
        parent = entries[at]["parentId"]
        at = places.get(parent) if isinstance(parent, str) else None
        losses.add("entries before a parentId that is not in the file", parent is not None and at is None)
    others = [n for n in tree if n not in seen and entries[n]["type"] in ("message", "compaction")]
    losses.add("messages on other branches", len(others))
    return path[::-1]


class _Reading:
    """Turns the entries of a branch into lines."""

    def __init__(self, entries: list[Entry], losses: Losses, *, began: str) -> None:
        self._entries = entries
        self._losses = losses
        self._stamp = began
        self._names: dict[str, str] = {}
        self.lines: list[Line] = []
        self.pictures = Pictures(losses)
        self.model = ""

    def read(self) -> None:
        """Read the branch whose last entry is the file's."""
        # How many lines stood before each entry of the branch: where a summary's region begins.
        starts: dict[int, int] = {}
        for at in branch(self._entries, self._losses):
            entry, starts[at] = self._entries[at], len(self.lines)
            self._stamp = time_text(entry.get("timestamp"), self._stamp)
            kind = entry["type"]
            if kind == "message":
                self._losses.others("entries'", entry, (*_ENTRY, "message"))
                self.lines += self._message(entry["message"])
            elif kind == "compaction":
                self.lines.append(self._summary(entry, starts))
            elif kind == "custom_message":
                self._losses.others("custom messages'", entry, (*_ENTRY, "content"))
                self.lines.append(self._user(entry.get("content")))
            elif kind == "branch_summary":
                text = f"[What was said on another branch]\n{entry.get('summary', '')}"
                self.lines.append(make_line("user", text, self._stamp))
            elif kind != "session_info":
                self._losses.unread("entries", kind)

    def _summary(self, entry: Entry, starts: Mapping[int, int]) -> Line:
        self._losses.others("compactions'", entry, (*_ENTRY, *_COMPACTION))
        here = len(self.lines)
        details = entry.get("details")
        files = details if isinstance(details, dict) else {}
        self._losses.others("compactions' details'", files, ("readFiles", "modifiedFiles"))
        tokens = entry.get("tokensBefore")
        return make_line(
            "system",
            str(entry.get("summary", "")),
            self._stamp,
            kind="overlay",
            first_kept=next((starts[at] for at in self._kept(entry) if at in starts), here),
            tokens_before=tokens if type(tokens) is int else 0,
            read_files=strings(files.get("readFiles")),
            modified_files=strings(files.get("modifiedFiles")),
        )

    def _kept(self, entry: Entry) -> Iterator[int]:
        """Yield where the region that a summary keeps may begin, best first; an index counts the header."""
        index, id_ = entry.get("firstKeptEntryIndex"), entry.get("firstKeptEntryId")
        if isinstance(id_, str):
            yield from (at for at, one in enumerate(self._entries) if one.get("id") == id_)
        elif type(index) is int and index >= 0:
            yield from range(index, len(self._entries))

    def _message(self, message: Entry) -> list[Line]:
        role = message.get("role")
        if role == "user":
            self._losses.others("messages'", message, _USER)
            return [self._user(message.get("content"))]
        if role == "assistant":
            return [self._assistant(message)]
        if role == "toolResult":
            return [self._result(message)]
        if role == "bashExecution":
            self._losses.others("commands'", message, _BASH)
            code = message.get("exitCode")
            ended = f"\n[exit code {code}]" if code else ""
            text = f"[Ran by hand] {message.get('command', '')}\n{message.get('output', '')}{ended}"
            return [make_line("user", text, self._stamp)]
        if role in ("custom", "hookMessage"):
            self._losses.others("custom messages'", message, _USER)
            return [self._user(message.get("content"))]
        self._losses.unread("messages", role)
        return []

    def _user(self, content: object) -> Line:
        attachments = self.pictures.take(self._others(content, "image"))
        return make_line("user", from_texts(texts_of(content)), self._stamp, attachments=attachments or None)

    def _assistant(self, message: Entry) -> Line:
        self._losses.others("answers'", message, _ASSISTANT)
        if isinstance(message.get("model"), str):
            self.model = message["model"]
        content, calls = message.get("content"), []
        for block in self._others(content, "toolCall", "thinking"):
            if block["type"] == "thinking":
                self._losses.add("thinking blocks")
                continue
            self._losses.others("tool calls'", block, ("type", "id", "name", "arguments"))
            id_, name = block.get("id", ""), block.get("name", "")
            calls.append(new_call(id_, name, block.get("arguments"), self._names))
        text = from_texts(texts_of(content), calls=bool(calls))
        used = self._usage(message.get("usage"))
        return make_line("assistant", text, self._stamp, tool_calls=calls or None, usage=used)

    def _usage(self, usage: object) -> dict[str, int | float] | None:
        if not isinstance(usage, dict):
            return None
        prompt = sum(_number(usage.get(name)) for name in ("input", "cacheRead", "cacheWrite"))
        found = {"prompt": int(prompt), "completion": int(_number(usage.get("output")))}
        cost = usage.get("cost")
        if isinstance(cost, dict) and (total := _number(cost.get("total"))):
            return {**found, "cost_usd": total}
        return {**found}

    def _result(self, message: Entry) -> Line:
        self._losses.others("tool results'", message, _RESULT)
        content, id_ = message.get("content"), str(message.get("toolCallId", ""))
        self._losses.add("images in tool results", len(self._others(content, "image")))
        return make_line(
            "tool",
            from_texts(texts_of(content)),
            self._stamp,
            tool_call_id=id_,
            name=message.get("toolName") or self._names.get(id_),
            is_error=True if message.get("isError") is True else None,
        )

    def _others(self, content: object, *known: str) -> list[dict[str, Any]]:
        """List the blocks of the kinds that are known besides text; those of other kinds are counted."""
        count_odd(content, self._losses)
        found = []
        for block in content if isinstance(content, list) else []:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in known:
                found.append(block)
            elif kind == "text":
                self._losses.others("text blocks'", block, ("type", "text"))
            else:
                self._losses.unread("blocks", kind)
        return found


def _number(value: object) -> float:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    # NaN is within no bounds; what is beyond them no reader of JSON takes as it stands.
    return number if -_MOST <= number <= _MOST else 0


# -- OpenClaw: pi's files, and beside them a store that says which key each belongs to -----------------------

STORE = "sessions.json"
_CHAT = re.compile(
    r"agent:[^:]+:(?P<channel>[a-z][a-z0-9_]{0,31}):(?:[^:]+:)?(?:direct|dm|group|channel|room):(?P<chat>[^:]+)"
    r"(?::(?:topic|thread):(?P<thread>[^:]+))?"
)
_CRON = re.compile(r"(?:agent:[^:]+:)?cron:(?P<job>[^:]+)(?::run:.*)?")


def decode_openclaw(files: Files) -> list[Conversation]:
    """Read each session of OpenClaw, with its key where ``sessions.json`` beside it names one."""
    found = []
    for path, data in files.items():
        folder, _, name = path.rpartition("/")
        if not (name.endswith(".jsonl") or len(files) == 1) or _stands_beside(name):
            continue
        conversation = decode_file(path, data)
        keys = _keys(json_object(files.get(f"{folder}/{STORE}" if folder else STORE, b"")))
        theirs = keys.get(stem_of(path)) or keys.get(conversation.session_id) or ""
        key = our_key(theirs)
        lost = (*conversation.lost, f"the key {theirs}") if theirs != key else conversation.lost
        found.append(replace(conversation, key=key, lost=lost))
    if not found:
        raise BadFormat("it contains no OpenClaw session", hint="choose the folder agents/<agent>/sessions")
    return found


def our_key(theirs: str) -> str:
    """Return the key that a chat has here; empty where it is no chat's. One without a colon stays."""
    if (chat := _CHAT.fullmatch(theirs)) is not None:
        channel, thread = chat["channel"], chat["thread"]
        if thread and channel == "discord":
            return f"discord:{thread}"
        return f"{channel}:{chat['chat']}" + (f":topic:{thread}" if thread else "")
    if (job := _CRON.fullmatch(theirs)) is not None:
        return f"cron:{job['job']}"
    return "" if ":" in theirs else theirs


def _keys(store: Mapping[str, object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, entry in store.items():
        if not isinstance(entry, dict):
            continue
        for name in ("sessionId", "sessionFile"):
            if isinstance(value := entry.get(name), str) and value:
                found.setdefault(stem_of(value.replace("\\", "/")), key)
    return found


def _stands_beside(name: str) -> bool:
    """Say whether a file only goes with a session, as its trajectory or a checkpoint of it."""
    stem = name.removesuffix(".jsonl")
    return stem != name and (stem.endswith(".trajectory") or ".checkpoint." in stem)
