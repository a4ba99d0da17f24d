"""What the model server answers: requests and replies, the markers in a text, and OpenAI's shapes; pure."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from session.memory.titles import NAME_INSTRUCTIONS, SUMMARY_INSTRUCTIONS

ERRORS = {
    "toolong": (
        "context_length_exceeded",
        "This model's maximum context length is 128 tokens. However, your messages are longer.",
    ),
    "refuse": ("content_policy_violation", "Your request was rejected as a result of our safety system."),
}
BLOCK = re.compile(r"\A<gateway-context>.*?</gateway-context>\s*", re.DOTALL)
SUMMED_UP = """\
## Goal
To talk.
## Progress
- [x] talked
## Key Decisions
- **go on**: it is early
## Next Steps
1. talk
## Critical Context
"""
FACT = re.compile(r"fact-\d{4}")
# A message of a conversation that facts are drawn from, and what it asks to have noted.
NOTED = re.compile(r"^\[(\d+)\] .*?\[\[fact:(.*?)\]\]", re.MULTILINE)
MARKER = re.compile(r"\[\[(\w+)(?::(.*?))?\]\]", re.DOTALL)


@dataclass
class Reply:
    """One scripted answer; ``body`` replaces everything after the status."""

    # A list: in blocks, as Mistral writes it.
    text: Any = None
    tool_calls: list[tuple[str, str]] = field(default_factory=list)  # name, arguments as text
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    slow_s: float = 0.0
    finish: str = ""
    reasoning: str = ""
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    # The whole body of a refusal, for servers that do not write one as OpenAI does.
    refusal: dict[str, Any] | None = None
    # Fields that OpenAI does not know, in a message with tool calls and in each of its calls.
    in_message: dict[str, Any] = field(default_factory=dict)
    in_calls: dict[str, Any] = field(default_factory=dict)
    held: asyncio.Event | None = None  # no answer before this is set
    # Half of a stream is written, and no more before this is set.
    half: asyncio.Event | None = None
    # hang | html | garbage | cut | nochoices | unstreamed (whole, always) | done (no end but [DONE])
    # | unended (no reason, no count, no [DONE]).
    kind: str = ""


@dataclass
class Seen:
    """One request as it came, and how it ended: running, answered, refused, cut, aborted (by the client)."""

    n: int
    at: float
    body: dict[str, Any]
    headers: dict[str, str]
    outcome: str = "running"
    status: int = 0
    # Where it was sent, and from which port.
    path: str = ""
    port: int = 0

    @property
    def messages(self) -> list[dict[str, Any]]:
        return list(self.body.get("messages", ()))

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.body.get("tools") or ()]

    @property
    def text(self) -> str:
        return newest_text(self.messages)

    @property
    def is_summary(self) -> bool:
        return self.text.startswith("<conversation>")

    @property
    def aside(self) -> str:
        """What the background asks for beside all turns: ``summary``, ``name``, or nothing."""
        told = str(self.messages[0].get("content")) if self.messages else ""
        return {SUMMARY_INSTRUCTIONS: "summary", NAME_INSTRUCTIONS: "name"}.get(told, "")


def summed_up(seen: Seen) -> Reply:
    """Sum up a conversation: the form that is asked for, and every ``fact-0000`` that was shown."""
    return Reply(text=SUMMED_UP + " ".join(dict.fromkeys(FACT.findall(seen.text))))


def facts_of(seen: Seen) -> str:
    """Write the arguments of a call that notes what the messages ask for by ``[[fact:TEXT]]``."""
    facts = [
        {"text": text, "category": "project", "confidence": 0.95, "message": int(number)}
        for number, text in NOTED.findall(seen.text)
    ]
    return json.dumps({"facts": facts})


class Markers:
    """Reads what a message asks the server to do, and counts how often it asked."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()

    def reply(self, seen: Seen) -> Reply:
        marks = [(match[1], match[2] or "") for match in MARKER.finditer(seen.text)]
        rounds = [value for name, value in marks if name == "tool"]
        done = sum(1 for message in since_newest_user(seen.messages) if message.get("tool_calls"))
        reply = Reply(text=f"stub: {MARKER.sub('', seen.text).strip()}")
        if done < len(rounds):
            reply = Reply(tool_calls=calls_in(rounds[done]))
        for name, value in marks:
            if name == "status":
                self._status(reply, value, seen)
            else:
                _apply(reply, name, value, seen)
        return reply

    def _status(self, reply: Reply, value: str, seen: Seen) -> None:
        code, *options = value.split()
        wanted = dict(option.split("=", 1) for option in options)
        self._times[seen.text] += 1
        if self._times[seen.text] <= int(wanted.get("times", 10**9)):
            reply.status = int(code)
            if "retry-after" in wanted:
                reply.headers["retry-after"] = wanted["retry-after"]


def _apply(reply: Reply, name: str, value: str, seen: Seen) -> None:
    if name in ("delay", "slow"):
        setattr(reply, f"{name}_s", float(value))
    elif name in ("hang", "html", "garbage", "cut", "nochoices", "done", "unended"):
        reply.kind = name
    elif name == "empty":
        reply.text, reply.tool_calls = "", []
    elif name == "say":
        reply.text = value
    elif name == "long":
        reply.text = ("0123456789" * (int(value) // 10 + 1))[: int(value)]
    elif name in ("filter", "length"):
        reply.finish = "content_filter" if name == "filter" else "length"
    elif name == "loop":
        reply.tool_calls = [(seen.tools[0] if seen.tools else "ls", '{"path": "."}')]
    elif name in ERRORS:
        code, message = ERRORS[name]
        reply.status = 400
        reply.error = {"message": message, "type": "invalid_request_error", "code": code}


def newest_text(messages: list[dict[str, Any]]) -> str:
    """Return the text of the newest user message, without what the gateway put at its head."""
    for message in reversed(messages):
        if message.get("role") == "user":
            content = message.get("content")
            if isinstance(content, list):
                content = "\n".join(block.get("text", "") for block in content)
            return BLOCK.sub("", content or "", count=1)
    return ""


def since_newest_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for i in range(len(messages) - 1, -1, -1):
        if messages[i].get("role") == "user":
            return messages[i:]
    return messages


def calls_in(value: str) -> list[tuple[str, str]]:
    """Read ``name {json} name {json}``; what is no JSON is taken as the arguments' text to the end."""
    calls: list[tuple[str, str]] = []
    rest = value.strip()
    while rest:
        name, _, rest = rest.partition(" ")
        try:
            _, end = json.JSONDecoder().raw_decode(rest.lstrip())
        except ValueError:
            return [*calls, (name, rest.strip())]
        rest = rest.lstrip()
        calls.append((name, rest[:end]))
        rest = rest[end:].strip()
    return calls


def forced_tool(body: dict[str, Any]) -> str | None:
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        return str(choice.get("function", {}).get("name", ""))
    if choice in ("required", "any") and body.get("tools"):
        return str(body["tools"][0]["function"]["name"])
    only = [tool["function"]["name"] for tool in body.get("tools") or ()]
    return "save_memory" if only == ["save_memory"] and choice != "none" and choice is not None else None


def arguments_for(body: dict[str, Any], name: str) -> dict[str, Any]:
    if name == "save_memory":
        stamp = time.strftime("[%Y-%m-%d %H:%M]")
        return {
            "history_entry": f"{stamp} The user and the stub talked. The stub repeated everything.",
            "memory_update": "# Memory\n\n- The stub remembers this.\n",
        }
    samples = {"string": "x", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    for tool in body.get("tools") or ():
        if tool["function"]["name"] == name:
            schema = tool["function"].get("parameters", {})
            required = schema.get("required", ())
            return {key: samples.get(schema["properties"][key].get("type"), "x") for key in required}
    return {}


def message_of(seen: Seen, reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": f"call_{seen.n}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
                **reply.in_calls,
            }
            for i, (name, arguments) in enumerate(reply.tool_calls)
        ]
        message |= reply.in_message
    return message


def usage_of(seen: Seen, reply: Reply) -> dict[str, Any]:
    prompt = len(json.dumps(seen.messages)) // 4 + 1
    completion = len(reply.text or "") // 4 + 1
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return reply.usage if reply.usage is not None else counted


def finish_of(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.tool_calls else "stop")


def completion(seen: Seen, reply: Reply) -> dict[str, Any]:
    choice = {"index": 0, "message": message_of(seen, reply), "finish_reason": finish_of(reply)}
    if reply.error:
        return {"error": reply.error}
    return {
        "id": f"chatcmpl-{seen.n}",
        "object": "chat.completion",
        "created": int(seen.at),
        "model": seen.body.get("model", "stub"),
        "choices": [] if reply.kind == "nochoices" else [choice],
        "usage": usage_of(seen, reply),
    }


def deltas(seen: Seen, reply: Reply) -> list[dict[str, Any]]:
    """Cut the answer into a stream's pieces: reasoning, text in four, calls with split arguments."""
    pieces: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    message = message_of(seen, reply)
    if reply.reasoning:
        pieces.append({"reasoning_content": reply.reasoning})
    pieces += [{name: value} for name, value in reply.in_message.items()]
    text = reply.text or ""
    # Blocks come one by one, each in a list.
    step = max(1, -(-len(text) // 4)) if isinstance(text, str) else 1
    pieces += [{"content": text[i : i + step]} for i in range(0, len(text), step)]
    for i, call in enumerate(message.get("tool_calls", ())):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        opening = {**call, "index": i, "function": {"name": call["function"]["name"], "arguments": ""}}
        pieces.append({"tool_calls": [opening]})
        for part in (arguments[:half], arguments[half:]):
            pieces.append({"tool_calls": [{"index": i, "function": {"arguments": part}}]})
    return pieces
