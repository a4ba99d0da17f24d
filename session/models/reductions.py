"""What a request to a model leaves out because the model's provider refuses it; remembered per model.

A refusal names what is at fault: in its ``param``, or in its words. The request is made once more without
that, and if it is answered the next ones leave it out from the start, until the process ends.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from durable import causes
from session.models.assembly import FIELDS, OPAQUE, holds_thoughts
from session.models.model import Prompt

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
_PROMPT_AT_FAULT = re.compile(r"\b(?:messages|prompt|input)\b (?:is|are|was|were|resulted|exceeds?)\b", re.I)
_TOKENS = re.compile(r"max_(?:completion_|output_|new_)?tokens|completion|answer|output", re.IGNORECASE)
LIMITS = ("max_tokens", "max_completion_tokens")
WINDOW_HINT = "set model.context_window, and model.max_output_tokens to at most a quarter of it"
_TOOLS_HINT = "the model cannot use tools there: enable tools on the server, or choose another model"
# The two names of the limit of an answer, but not where a refusal proposes one.
_LIMIT = re.compile(r"(?<!use )(?<!use .)(?<!favor of )(?<!favor of .)\b(max_(?:completion_)?tokens)\b", re.I)
# From so many tools that are refused one by one on, none is sent.
MOST_TOOLS_REFUSED = 8

GO_WITHOUT = "nothing to do if the answers are good; otherwise choose another model or server"
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
        if not self.without:
            return prompt
        fields = (FIELDS if "thoughts" in self.without else set()) | (self.without & {OPAQUE})
        messages = [{name: each[name] for name in each if name not in fields} for each in prompt.messages]
        tools = [tool for tool in prompt.tools if not self.without & {"tools", f"tool:{tool.name}"}]
        forced = prompt.force_tool if prompt.force_tool in {tool.name for tool in tools} else ""
        return replace(prompt, messages=messages, tools=tools, force_tool=forced)


@dataclass(slots=True)
class Reductions:
    """What is known of each model, and what the operator has to be told about it."""

    known: dict[str, Reduced] = field(default_factory=dict)
    # Kinds of files that a provider refused, by model.
    refused_parts: dict[str, set[str]] = field(default_factory=dict)
    _notes: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def notes(self) -> list[tuple[str, str]]:
        """Say what requests leave out, each with what the operator can do."""
        return list(self._notes.values())

    def of(self, model: str) -> Reduced:
        """Return how requests to a model begin."""
        return self.known.get(model, Reduced())

    def note(self, model: str, name: str, said: str, hint: str = GO_WITHOUT) -> None:
        """Tell the operator once that something is left out."""
        if (model, name) in self._notes:
            return
        self._notes[model, name] = f"{model}: requests go without {name}: {said}", hint
        log.warning("model.request_reduced", model=model, left_out=name, said=said, hint=hint)

    def keep(self, model: str, reduced: Reduced, said: Mapping[str, str]) -> None:
        """Remember what was answered, with what the provider had said of each thing that it left out."""
        before = self.of(model)
        # Another request may have learned something meanwhile.
        self.known[model] = replace(reduced, without=reduced.without | before.without)
        for name in sorted(reduced.without - before.without):
            self.note(model, name, said.get(name, ""), _TOOLS_HINT if name == "tools" else GO_WITHOUT)
        if reduced.max_tokens not in (0, before.max_tokens):
            words, hint = said.get("fewer", ""), "set model.max_output_tokens"
            if reduced.window:
                words, hint = f"the server's window has {reduced.window} tokens", WINDOW_HINT
            self.note(model, f"more than {reduced.max_tokens} answer tokens", words, hint)

    def learn_window(self, model: str, words: str) -> None:
        """Remember the window that a server names."""
        if (window := _number(_WINDOW, words)) and window != self.of(model).window:
            self.known[model] = replace(self.of(model), window=window)

    def refuse_parts(self, model: str, kinds: Collection[str], said: str) -> None:
        """Remember that a provider takes no files of these kinds."""
        self.refused_parts.setdefault(model, set()).update(kinds)
        for kind in kinds:
            self.note(model, kind, said, "if the model accepts them, set model.takes")


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a provider said of a request: its status, and all its words, ``param`` among them."""

    status: int | None
    words: str


def complaint_of(error: BaseException, model: str) -> Complaint:
    """Read what a provider said; the model's own name is none of its words."""
    chain = list(causes(error))
    found = [getattr(getattr(link, "response", None), "status_code", None) for link in chain]
    found += [getattr(link, "status_code", None) for link in chain]
    words = " ".join(str(link)[:MAX_SEARCHED_CHARS] for link in chain)
    # As the OpenAI client begins: the number is a status, and no count.
    words = re.sub(r"Error code: \d+", "", words)
    for name in (model, model.partition("/")[2]):
        # The name of a model may speak of tools or pictures.
        words = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "", words) if len(name) > 3 else words
    return Complaint(next((each for each in found if isinstance(each, int) and each), None), words)


def smaller(
    said: Complaint, reduced: Reduced, *, sent: Mapping[str, Any], tokens: int, too_long: bool
) -> tuple[Reduced, str] | None:
    """Say what a refused request may be made once more without, and its name; None where nothing is named.

    ``sent`` is the request as it was made, ``tokens`` the estimate of its messages and tools; ``too_long``:
    the refusal was taken for one of its length.
    """
    if said.status not in _STATUSES:
        return None
    if fewer := _fewer(said, reduced, sent=sent, tokens=tokens, too_long=too_long):
        return fewer, "fewer"
    name = "" if too_long else _tool_at_fault(said, reduced, sent) or _part_at_fault(said, reduced, sent)
    if not name or name in reduced.without:
        return None
    return replace(reduced, without=reduced.without | {name}), name


def is_short(said: Complaint, *, asked: int, tokens: int) -> bool:
    """Say whether a request that is refused as too long is so by the ``asked`` tokens of its answer."""
    return tokens < asked and not _PROMPT_AT_FAULT.search(said.words)


def names_files(said: Complaint) -> bool:
    """Say whether a refusal is about pictures or other files in the request."""
    return said.status in _STATUSES and bool(_PICTURES.search(said.words))


def _tool_at_fault(said: Complaint, reduced: Reduced, sent: Mapping[str, Any]) -> str:
    """Name the one tool that a refusal names, by its name or its place, as ``tool:NAME``; empty: none."""
    names = [str(tool.get("function", {}).get("name")) for tool in sent.get("tools") or ()]
    places = [int(place) for place in re.findall(r"\btools?[.\[]+(\d{1,4})", said.words)]
    found = [names[place] for place in places if place < len(names)]
    if not found and re.search(r"schema|parameters|properties|function", said.words, re.IGNORECASE):
        # A tool called ls or read may be a word of any sentence.
        found = [name for name in names if re.search(rf"['\"`:]\s*{re.escape(name)}(?![\w-])", said.words)]
        found = found if len(found) == 1 else []
    if found and sum(each.startswith("tool:") for each in reduced.without) >= MOST_TOOLS_REFUSED:
        return "tools"
    return f"tool:{found[0]}" if found else ""


def _part_at_fault(said: Complaint, reduced: Reduced, sent: Mapping[str, Any]) -> str:
    """Name what a refusal names of a request besides single tools; empty: nothing."""
    messages = sent["messages"]
    parts = {name for name in sent if sent[name]} - reduced.without
    parts |= {"thoughts"} if holds_thoughts(messages) else set()
    parts |= {"cache"} if "'cache_control'" in str(messages) else set()
    for name, pattern in _NAMED.items():
        if name in parts and (pattern.search(said.words) or re.search(rf"param\W+{name}\b", said.words)):
            return name
    calls = (call for message in messages for call in message.get("tool_calls") or ())
    fields = {name for each in (*messages, *calls) for name in each} - _USUAL
    if any(re.search(rf"\b{re.escape(name)}\b", said.words) for name in fields):
        return OPAQUE
    limit = _LIMIT.search(said.words)
    return limit[1].lower() if limit and not reduced.without & {*LIMITS} else ""


def _fewer(
    said: Complaint, reduced: Reduced, *, sent: Mapping[str, Any], tokens: int, too_long: bool
) -> Reduced | None:
    """Ask for fewer answer tokens where those do not fit the window, or are more than the model writes."""
    limits = {**sent, **sent.get("extra_body", {})}
    asked = int(limits.get(LIMITS[0]) or limits.get(LIMITS[1]) or 0)
    if not asked or not (too_long or (_TOKENS.search(said.words) and _TOO_MANY.search(said.words))):
        return None
    window, most = _number(_WINDOW, said.words), _number(_ANSWER_LIMIT, said.words)
    if window:
        most = 0 if _PROMPT_AT_FAULT.search(said.words) else max(window // 4, MIN_TOKENS)
    elif not most and too_long and not reduced.max_tokens and is_short(said, asked=asked, tokens=tokens):
        # Most of it is the room for the answer.
        most = max(asked // 4, MIN_TOKENS)
    if not MIN_TOKENS <= most < asked:
        return None
    return replace(reduced, max_tokens=most, window=window or reduced.window)


def _number(pattern: re.Pattern[str], words: str) -> int:
    found = pattern.search(words)
    return next((int(each) for each in found.groups() if each), 0) if found else 0
