"""What a tool is, and the box in which a turn finds the ones it may use."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import structlog

import durable
from durable import plain_value
from session.errors import ToolError
from session.models.model import Payer, ToolCall, ToolSpec

MAX_RESULT_BYTES = 64 * 1024
# OpenAI refuses a request with more.
MAX_TOOLS = 128

_CUT_NOTE = "\n[cut: the result was {size} bytes; the limit is {limit}]"
# The types of JSON Schema, as they are read here.
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ToolPlace:
    """Where a tool acts: ``folder`` is the files folder of the scope, relative paths start there.

    ``stem`` names the files of the conversation; ``previous`` is the archive that a compaction left behind,
    by the name in the session's ``compact`` line, None without one. ``scope`` is the name of the scope, empty
    where none was drawn, ``session_id`` the ULID of the session, ``message_id`` that of the message being
    answered, ``sender`` who wrote it (``id``, ``name``, ``username``; empty for a job), ``source`` whether a
    person or the clock did. ``group`` says whether several people read the answer. ``call_id`` is the model's
    own id of the call that runs.

    ``chat`` is the conversation for which it works where ``key`` works for another one: the parent of a
    subagent, the chat that reads a job's answer; empty: it is ``key``. ``parent`` is the conversation that
    started a subagent, such as a job that answers in ``chat``; empty: ``key`` is no subagent's. ``payer`` is
    for whom it counts what a tool asks of a model; None: for the conversation alone.
    """

    folder: Path
    key: str
    stem: str = ""
    previous: str | None = None
    scope: str = ""
    session_id: str = ""
    message_id: str = ""
    sender: Mapping[str, str] = field(default_factory=dict)
    source: str = "interactive"
    group: bool = False
    chat: str = ""
    parent: str = ""
    call_id: str = ""
    payer: Payer | None = None


def parameters(*required: str, **properties: Mapping[str, Any]) -> dict[str, Any]:
    """Write the JSON Schema of a tool's arguments: each by its name, then which of them must be there."""
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": list(required)} if required else schema


class Tool(Protocol):
    """One thing that a model can have done: a description of it, and ``run``."""

    @property
    def spec(self) -> ToolSpec:
        """What the model is told about it."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether running it again after a crash does no harm."""
        ...

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Do it and return the result for the model; ``arguments`` fit the spec's schema.

        Raises:
            ToolError: it cannot be done; the text goes to the model.
        """
        ...


class ToolSource(Protocol):
    """Tools that come and go while the daemon runs."""

    def tools(self) -> Sequence[Tool]:
        """List them as they are now, always in the same order."""
        ...

    def get(self, name: str) -> Tool | None:
        """Return the one that is offered under a name; None where there is none right now."""
        ...

    def owns(self, name: str) -> bool:
        """Say whether a name is that of a tool of its own, be it there or not."""
        ...


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What goes back to the model: at most ``MAX_RESULT_BYTES`` of UTF-8."""

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ToolRun:
    """A call of a tool that is over; ``tool`` is empty where there is none of the name that was asked for."""

    tool: str
    began_ns: int
    took_s: float
    failed: bool


class Toolbox:
    """The tools of this daemon by name, those of a source that changes behind those that stay.

    ``heard`` is told of each call when it is over. ``optional`` names tools that another configuration has.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        source: ToolSource | None = None,
        *,
        heard: Callable[[ToolRun], None] | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}
        self._optional = frozenset(optional)
        self._source = source
        self._heard = heard
        # Names that some request went without, since it holds no more.
        self.left_out: set[str] = set()

    def specs(self, allowed: Collection[str], place: ToolPlace) -> list[ToolSpec]:
        """Describe the tools that are on offer at ``place`` and allowed, always in the same order.

        Of more than ``MAX_TOOLS`` those of the source come last and are left out, which the log tells.
        """
        own = ((tool, tool.spec) for name, tool in self._tools.items() if name in allowed)
        sourced = ((tool, tool.spec) for tool in self._sourced())
        here = (*own, *(each for each in sourced if each[1].name in allowed))
        specs = [spec for tool, spec in here if _serves(tool, place)]
        left_out = [spec.name for spec in specs[MAX_TOOLS:]]
        if not self.left_out.issuperset(left_out):
            hint = f"a request can have {MAX_TOOLS} tools: deny some in [tools.policy]"
            _log.warning("tools.left_out", count=len(left_out), tools=left_out[:20], hint=hint)
            self.left_out.update(left_out)
        return specs[:MAX_TOOLS]

    def sourced(self) -> list[str]:
        """Name the tools of the source; each knows by itself where it is on offer."""
        return [tool.spec.name for tool in self._sourced()]

    def get(self, name: str) -> Tool | None:
        """Return the tool of that name, if there is one."""
        found = self._tools.get(name)
        return self._source.get(name) if found is None and self._source is not None else found

    def may_repeat(self, name: str) -> bool:
        """Say whether a call that a crash interrupted may be made again; never one of a tool that is gone."""
        tool = self.get(name)
        if tool is not None:
            return tool.repeatable
        # A tool that never was did nothing; one that is off by now may have acted while it was on.
        if name in self._optional:
            return False
        return self._source is None or not self._source.owns(name)

    def _sourced(self) -> Sequence[Tool]:
        return self._source.tools() if self._source is not None else ()

    async def run(self, call: ToolCall, place: ToolPlace, allowed: Collection[str]) -> ToolResult:
        """Run a call; whatever goes wrong becomes an error result, and only cancellation is raised."""
        if self._heard is None:
            return await self._run(call, place, allowed)
        began_ns, began = durable.wall_ns(), durable.monotonic()
        failed = True
        try:
            result = await self._run(call, place, allowed)
            failed = result.is_error
            return result
        finally:
            # Whatever a model writes is no name of a tool, and would be one more figure each time.
            name = call.name if self.get(call.name) is not None else ""
            self._heard(ToolRun(name, began_ns, durable.monotonic() - began, failed))

    async def _run(self, call: ToolCall, place: ToolPlace, allowed: Collection[str]) -> ToolResult:
        try:
            tool = self.get(call.name)
            if tool is None or call.name not in allowed or not _serves(tool, place):
                names = ", ".join(spec.name for spec in self.specs(allowed, place)) or "none"
                raise ToolError(f"there is no tool {call.name!r}; the tools are: {names}")
            text = await tool.run(arguments_of(call, tool.spec), replace(place, call_id=call.id))
            return ToolResult(capped(text))
        except ToolError as error:
            return ToolResult(capped(f"error: {error}"), is_error=True)
        except Exception as error:  # noqa: BLE001 - a fault of one tool ends one call, with its traceback logged
            _log.exception("tool.failed", tool=call.name, key=place.key)
            return ToolResult(f"error: the tool failed ({type(error).__name__})", is_error=True)


def arguments_of(call: ToolCall, spec: ToolSpec) -> dict[str, Any]:
    """Read the arguments of a call and check them against the tool's schema.

    Half of a character, whose escape JSON allows, becomes U+FFFD: nothing that is stored or sent can hold it.

    Raises:
        ToolError: no JSON, no object, an argument missing or of a wrong type.
    """
    try:
        arguments = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ToolError("the arguments are not a JSON object")
    usable: dict[str, Any] = plain_value(arguments)
    problems = _problems(usable, spec.parameters)
    if problems:
        raise ToolError("; ".join(problems))
    return usable


def capped(text: str, limit_bytes: int = MAX_RESULT_BYTES) -> str:
    """Cut ``text`` to ``limit_bytes`` of UTF-8 at a character boundary, and say so at its end."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode()
    note = _CUT_NOTE.format(size=len(data), limit=limit_bytes)
    return data[: limit_bytes - len(note)].decode("utf-8", "ignore") + note


def _serves(tool: Tool, place: ToolPlace) -> bool:
    # Asked for each tool at each request: to ask whether it keeps the Protocol takes twenty times as long.
    serves = getattr(tool, "serves", None)
    return serves is None or bool(serves(place))


def _problems(arguments: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    """Check the part of JSON Schema that tools use: required, type, enum, minimum.

    The schema of a server outside may say other things, too, which are for that server to check.
    """
    required = schema.get("required")
    problems = [
        f"argument {name!r} is missing"
        for name in (required if isinstance(required, list) else ())
        if isinstance(name, str) and name not in arguments
    ]
    for name, rule in schema.get("properties", {}).items():
        if name not in arguments or not isinstance(rule, dict):
            continue
        value, wanted, least = arguments[name], rule.get("type"), rule.get("minimum")
        if isinstance(wanted, str) and wanted in TYPES and not _is_a(value, wanted):
            problems.append(f"argument {name!r} is not of type {wanted}")
        elif isinstance(rule.get("enum"), list) and value not in rule["enum"]:
            problems.append(f"argument {name!r} is not one of {', '.join(map(str, rule['enum']))}")
        elif _is_number(least) and _is_number(value) and value < least:
            problems.append(f"argument {name!r} is below {least}")
    return problems


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_a(value: object, wanted: str) -> bool:
    if isinstance(value, bool):
        return wanted == "boolean"
    return isinstance(value, TYPES[wanted])
