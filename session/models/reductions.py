"""What a request to a model leaves out because the model's provider refuses it; remembered per model.

A refusal names what is at fault: in its ``param``, or in its words. The request is made once more without
that, and if it is answered the next ones leave it out from the start, until the process ends.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from durable import causes
from session.models.model import Message, Prompt
from session.models.opaque import OPAQUE
from session.models.thoughts import holds_thoughts, without_thoughts

MAX_SEARCHED_CHARS = 4_000
# A refusal with another status is about the key, the rate, the size or the server's health.
_STATUSES = frozenset({None, 400, 404, 405, 415, 422, 500, 501})
# Fewer answer tokens than these are of no use.
MIN_TOKENS = 16
_USUAL = frozenset(
    {"reasoning_content", "thinking_blocks", "role", "content", "tool_calls", "tool_call_id", "name"}
    | {"id", "type", "function", "cache_control"}
)
_UNKNOWN = (
    r"(?:unsupported|not (?:be )?supported|not permitted|not allowed|unknown|unrecognized|unexpected|extra"
    r"|forbidden|no such|does not exist|instead|invalid (?:param|arg|field|key))"
)
_INCAPABLE = r"(?:not|n't|n’t|no|without|cannot|unsupported|un-supported|requires?|only)\b"
_TOOLS = (
    r"\btools?\b(?!_choice)(?: (?:use|using|calls?|calling|choice))?|\bfunctions?[ _-]?(?:call(?:ing|s)?)?\b"
)
# In this order: the more exact first.
_NAMED: Mapping[str, re.Pattern[str]] = {
    "tools": re.compile(
        r"enable-auto-tool-choice|tool-call-parser|--jinja"
        r"|unsupported param(?:eter)?:? '?\"?(?:tools|functions)\b"
        rf"|{_INCAPABLE}[^.;{{}}]{{0,40}}(?:{_TOOLS})|(?:{_TOOLS})[^.;{{}}]{{0,40}}{_INCAPABLE}"
        r"|['\"](?:body['\"],? ?['\"])?tools['\"][^.;]{0,60}(?:not permitted|forbidden|unexpected|unknown)",
        re.IGNORECASE,
    ),
    "tool_choice": re.compile(r"tool[_ -]?choice|function[_ ]call\b", re.IGNORECASE),
    "stream_options": re.compile(r"stream_options|include_usage", re.IGNORECASE),
    "stream": re.compile(
        rf"to stream this model|\bstream(?:ing|ed)?\b['\"]?[^.;]{{0,40}}{_UNKNOWN}"
        rf"|{_UNKNOWN}[^.;]{{0,20}}\bstream(?:ing)?\b",
        re.IGNORECASE,
    ),
    "cache": re.compile(r"cache_control|cache[ _]?point|prompt caching", re.IGNORECASE),
    "thoughts": re.compile(r"reasoning_content|thinking", re.IGNORECASE),
}
_PICTURES = re.compile(
    r"image|vision|multi-?modal|picture|input_file|file_data|\bpdf\b|\bdocuments?\b|mmproj"
    r"|content['\"\]]*[^.;]{0,30}(?:must be|should be|expected|valid)[^.;]{0,20}string",
    re.IGNORECASE,
)
_TOO_MANY = re.compile(r"too large|at most|less than|exceed|maximum|greater|valid range|must be|> ?\d", re.I)
_WINDOW = re.compile(
    r"(?:context|sequence|model[_ ]len(?:gth)?)[ _-]?(?:length|window|size|limit|len)?[^\d.;]{0,40}?(\d{3,})"
    r"|n_ctx\D{0,12}(\d{3,})|\d \+ \d+ > (\d{3,})",
    re.IGNORECASE,
)
_ANSWER_LIMIT = re.compile(
    r"at most (\d+) (?:completion|output)|(?:less than|equal|up to|<=?)[^\d]{0,14}(\d+)"
    r"|\[\d+, ?(\d+)\]|> (\d+), which is the maximum"
    r"|maximum (?:allowed |number of )?(?:output|completion)\D{0,30}(\d+)",
    re.IGNORECASE,
)
_INPUT = re.compile(
    r"(?<!\d)(\d{1,9})(?: tokens)? (?:in|of|from) (?:the|your)?\s?(?:text )?(?:messages|prompt|input)"
    r"|has (\d{1,9}) input|(?<!\d)(\d{1,9}) (?:input|prompt) tokens|resulted in (\d{1,9})"
    r"|(?<!\d)(\d{1,9}) \+ \d{1,9} >",
    re.IGNORECASE,
)
_PROMPT_AT_FAULT = re.compile(r"\b(?:messages|prompt|input)\b (?:is|are|was|were|resulted|exceeds?)\b", re.I)
_TOKENS = re.compile(r"max_(?:completion_|output_|new_)?tokens|completion|answer|output", re.IGNORECASE)
WINDOW_HINT = "set model.context_window, and model.max_output_tokens to a quarter of it at most"
# How the OpenAI client begins: the number is a status, and no count.
_OPENING = re.compile(r"Error code: \d+")
_HINTS = {
    "tools": "the model cannot use tools there: enable them at the server, or choose another model",
    "window": WINDOW_HINT,
    "max_tokens": "set model.max_output_tokens",
}

log = structlog.get_logger("model")


@dataclass(frozen=True, slots=True)
class Reduced:
    """How requests to one model differ from what was asked for.

    Args:
        without: the names of what they leave out; ``tool:NAME`` is one tool.
        max_tokens: the most tokens of an answer; 0: as many as asked for.
        window: the model's window as its server names it; 0: it never did.
    """

    without: frozenset[str] = frozenset()
    max_tokens: int = 0
    window: int = 0

    def prompt(self, prompt: Prompt) -> Prompt:
        """Leave tools and fields of messages out of a prompt."""
        without = self.without
        if "thoughts" in without:
            prompt = without_thoughts(prompt)
        if OPAQUE in without:
            kept = [{**message} for message in prompt.messages]
            for message in kept:
                message.pop(OPAQUE, None)
            prompt = replace(prompt, messages=kept)
        if "tools" in without:
            return replace(prompt, tools=(), force_tool="")
        tools = [tool for tool in prompt.tools if f"tool:{tool.name}" not in without]
        if len(tools) == len(prompt.tools):
            return prompt
        forced = prompt.force_tool if any(tool.name == prompt.force_tool for tool in tools) else ""
        return replace(prompt, tools=tools, force_tool=forced)


@dataclass(slots=True)
class Reductions:
    """What is known of each model, and what the operator has to be told about it."""

    known: dict[str, Reduced] = field(default_factory=dict)
    # Kinds of files that a provider refused, by model.
    refused_parts: dict[str, set[str]] = field(default_factory=dict)
    _notes: dict[tuple[str, str], str] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Say what requests leave out, for the operator."""
        return list(self._notes.values())

    def of(self, model: str) -> Reduced:
        """Return how requests to a model begin."""
        return self.known.get(model, Reduced())

    def note(self, model: str, name: str, said: str, hint: str = "") -> None:
        """Tell the operator once that something is left out."""
        if (model, name) in self._notes:
            return
        self._notes[model, name] = f"{model}: requests go without {name}: {said}"
        log.warning("model.request_reduced", model=model, left_out=name, said=said, hint=hint)

    def keep(self, model: str, reduced: Reduced, said: Mapping[str, str]) -> None:
        """Remember what was answered, with what the provider had said of each thing that it left out."""
        before = self.of(model)
        self.known[model] = reduced
        for name in sorted(reduced.without - before.without):
            hint = _HINTS["tools"] if name == "tools" else ""
            self.note(model, name, said.get(name, ""), hint)
        if reduced.max_tokens and reduced.max_tokens != before.max_tokens:
            by_window = f"the server's window has {reduced.window} tokens" if reduced.window else ""
            words = by_window or said.get("fewer", "")
            hint = _HINTS["window" if by_window else "max_tokens"]
            self.note(model, f"more than {reduced.max_tokens} answer tokens", words, hint)

    def learn_window(self, model: str, words: str) -> None:
        """Remember the window that a server names."""
        if (window := _number(_WINDOW, words)) and window != self.of(model).window:
            self.known[model] = replace(self.of(model), window=window)

    def refuse_parts(self, model: str, kinds: Collection[str], said: str) -> None:
        """Remember that a provider takes no files of these kinds."""
        self.refused_parts.setdefault(model, set()).update(kinds)
        for kind in kinds:
            self.note(model, kind, said, "if the model takes them, set model.takes")


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a provider said of a request: its status, and all its words, ``param`` and ``code`` among them."""

    status: int | None
    words: str
    param: str = ""
    code: str = ""


def complaint_of(error: BaseException, model: str) -> Complaint:
    """Read what a provider said; the model's own name is none of its words."""
    chain = list(causes(error))
    status: int | None = None
    fields: Mapping[str, Any] = {}
    for link in chain:
        response = getattr(link, "response", None)
        found = getattr(response, "status_code", None) or getattr(link, "status_code", None)
        status = status or (found if isinstance(found, int) else None)
        body = getattr(link, "body", None)
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        if not fields and isinstance(inner, Mapping):
            fields = inner
    words = " ".join(_OPENING.sub("", str(link)[:MAX_SEARCHED_CHARS]) for link in chain)
    for name in (model, model.partition("/")[2]):
        # The name of a model may speak of tools or pictures.
        words = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "", words) if len(name) > 3 else words
    texts = {name: value if isinstance(value := fields.get(name), str) else "" for name in fields}
    return Complaint(status, words, texts.get("param", ""), texts.get("code", ""))


def smaller(
    said: Complaint, reduced: Reduced, *, sent: Mapping[str, Any], tokens: int, too_long: bool
) -> tuple[Reduced, str] | None:
    """Say what a refused request may be made once more without, and its name; None where nothing is named.

    Args:
        said: the refusal.
        reduced: what the request left out already.
        sent: the request as it was made.
        tokens: the estimate of its messages and tools.
        too_long: whether the refusal was taken for one of its length.
    """
    if said.status not in _STATUSES:
        return None
    if fewer := _fewer(said, reduced, sent=sent, tokens=tokens, too_long=too_long):
        return fewer, "fewer"
    if too_long:
        return None
    if name := _tool_at_fault(said, sent):
        return replace(reduced, without=reduced.without | {f"tool:{name}"}), f"tool:{name}"
    offered = {name for name in sent if sent[name]} | _in_messages(sent["messages"])
    for name, pattern in _NAMED.items():
        if name in offered - reduced.without and (said.param == name or pattern.search(said.words)):
            return replace(reduced, without=reduced.without | {name}), name
    if OPAQUE not in reduced.without and _names_opaque(said, sent["messages"]):
        return replace(reduced, without=reduced.without | {OPAQUE}), OPAQUE
    field_name = "max_completion_tokens" if "max_completion_tokens" in sent else "max_tokens"
    other = "max_tokens" if field_name == "max_completion_tokens" else "max_completion_tokens"
    named = said.param == field_name or re.search(rf"\b{field_name}\b", said.words)
    if named and field_name in sent and not reduced.without & {field_name, other}:
        return replace(reduced, without=reduced.without | {field_name}), field_name
    return None


def is_short(said: Complaint, *, asked: int, tokens: int) -> bool:
    """Say whether a request that is refused as too long is so by the ``asked`` tokens of its answer."""
    return tokens < asked and not _PROMPT_AT_FAULT.search(said.words)


def names_files(said: Complaint) -> bool:
    """Say whether a refusal is about pictures or other files in the request."""
    return said.status in _STATUSES and bool(_PICTURES.search(said.words))


def _tool_at_fault(said: Complaint, sent: Mapping[str, Any]) -> str:
    """Name the one tool that a refusal names, by its name or its place; empty where it names none."""
    names = [str(tool["function"]["name"]) for tool in sent.get("tools") or ()]
    for found in re.finditer(r"\btools?[.\[]+(\d+)", f"{said.param} {said.words}"):
        if int(found[1]) < len(names):
            return names[int(found[1])]
    if not re.search(r"schema|parameters|properties|function", said.words, re.IGNORECASE):
        return ""
    quoted = set(re.findall(r"[\w-]+", said.words))
    # A tool called ls or read may be a word of any sentence.
    found_names = [name for name in names if name in quoted and re.search(rf"['\"`:]\s*{name}\b", said.words)]
    return found_names[0] if len(found_names) == 1 else ""


def _in_messages(messages: Sequence[Message]) -> set[str]:
    """Say which of the parts that can be left out stand in messages."""
    found = {"thoughts"} if holds_thoughts(messages) else set()
    return found | ({"cache"} if any(is_marked(each) for each in messages) else set())


def is_marked(message: Message) -> bool:
    """Say whether a message bears a mark for the provider's cache."""
    content = message.get("content")
    blocks = [message, *(content if isinstance(content, list) else ())]
    return any("cache_control" in block for block in blocks if isinstance(block, Mapping))


def _names_opaque(said: Complaint, messages: Sequence[Message]) -> bool:
    """Say whether a refusal names a field that only the provider understands."""
    names = {name for message in messages for name in message if name not in _USUAL}
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    names |= {name for call in calls for name in call if name not in _USUAL}
    return any(re.search(rf"\b{re.escape(name)}\b", said.words) for name in names)


def _fewer(
    said: Complaint, reduced: Reduced, *, sent: Mapping[str, Any], tokens: int, too_long: bool
) -> Reduced | None:
    """Ask for fewer answer tokens where those do not fit the window, or are more than the model writes."""
    asked = int(sent.get("max_tokens") or sent.get("max_completion_tokens") or 0)
    if not asked or not (too_long or (_TOKENS.search(said.words) and _TOO_MANY.search(said.words))):
        return None
    window, limit = _number(_WINDOW, said.words), _number(_ANSWER_LIMIT, said.words)
    if window:
        prompt = window if _PROMPT_AT_FAULT.search(said.words) else tokens
        room = window - (_number(_INPUT, said.words) or prompt) - MIN_TOKENS
        most = min(room, max(window // 4, MIN_TOKENS)) if room < asked else 0
    elif limit:
        most = limit
    else:
        # Too long, though most of it is the room for the answer.
        short = too_long and not reduced.max_tokens and is_short(said, asked=asked, tokens=tokens)
        most = max(asked // 4, MIN_TOKENS) if short else 0
    if not MIN_TOKENS <= most < asked:
        return None
    return replace(reduced, max_tokens=most, window=window or reduced.window)


def _number(pattern: re.Pattern[str], words: str) -> int:
    found = pattern.search(words)
    return next((int(each) for each in found.groups() if each), 0) if found else 0
