"""The shapes of OpenAI's chat completions, as far as a gateway fills them."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.http.messages import has_surrogate
from gateway.http.shape import Shape

MAX_USER_CHARS = 512
_PROMPTS = frozenset({"system", "developer"})
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


class ContentPart(BaseModel):
    """A part of a message's content; of the last message, texts and images as data URLs are used."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None
    image_url: Any = None

    @property
    def picture(self) -> tuple[str, bytes]:
        """The type and the bytes of a picture."""
        url = self.image_url.get("url") if isinstance(self.image_url, dict) else self.image_url
        head, comma, data = url.partition(",") if isinstance(url, str) else ("", "", "")
        mime, *marks = head.lower().removeprefix("data:").split(";")
        if not head.startswith("data:image/") or not comma or "base64" not in marks:
            raise ValueError("messages: image_url: send the image as a data URL: data:image/png;base64,…")
        try:
            return mime, base64.b64decode(data, validate=True)
        except ValueError:
            raise ValueError("messages: the data URL of an image is not base64") from None


class ChatMessage(BaseModel):
    """A message of the client's history."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    # A body may hold a million elements: to describe the fault of each would hold up the loop for seconds.
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None


class StreamOptions(BaseModel):
    """Options of a stream."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool | None = None


class CompletionIn(BaseModel):
    """A request of an OpenAI client: the last user message is asked in the chat ``web:<user>``.

    The gateway keeps the conversation and uses its own tools, temperature and limits. Such fields of a
    request have no effect; ``ignored`` lists them. Fields that would change the answer's form are refused.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(max_length=MAX_USER_CHARS)
    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    user: str | None = Field(default=None, max_length=MAX_USER_CHARS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: Any = None
    tool_choice: Any = None
    function_call: Any = None
    response_format: Any = None

    def check(self) -> None:
        """Check that a chat can answer it.

        Raises:
            ValueError: it asks for what no chat honours, or for nothing.
        """
        for name, choice in (("tool_choice", self.tool_choice), ("function_call", self.function_call)):
            if choice not in (None, "auto", "none"):
                raise ValueError(f'{name}: the gateway runs its own tools and cannot force one; send "auto"')
        form = self.response_format
        if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
            raise ValueError(
                "response_format: only text is supported; leave it out and ask for the format in the message"
            )
        if self.n not in (None, 1):
            raise ValueError("n: only one answer is supported; leave it out and repeat the request")
        last = next((each.role for each in reversed(self.messages) if each.role not in _PROMPTS), "user")
        if last != "user":
            raise ValueError(
                f"messages: the last one has the role {last[:40]!r}; end with a message with role user"
            )
        if not self.text.strip() and not self.pictures:
            raise ValueError("messages: no message with role user has a text")
        if has_surrogate(self.text) or has_surrogate(self.user or ""):
            raise ValueError("a text contains half of a surrogate pair")

    @property
    def text(self) -> str:
        """What is asked: the text of the last message with the role user."""
        content = self._content
        if isinstance(content, str):
            return content
        for part in content:
            if part.type not in ("text", "image_url"):
                raise ValueError(
                    f"messages: a part of type {part.type[:40]!r} is not supported; send text and images"
                )
        return "\n".join(part.text for part in content if part.text and part.type == "text")

    @property
    def pictures(self) -> list[tuple[str, bytes]]:
        """The pictures that go along, each with its type."""
        content = self._content
        return (
            [] if isinstance(content, str) else [part.picture for part in content if part.type == "image_url"]
        )

    @property
    def _content(self) -> str | list[ContentPart]:
        last = next((each for each in reversed(self.messages) if each.role == "user"), None)
        return (last.content if last is not None else None) or ""

    @property
    def ignored(self) -> list[str]:
        """What the request has and the gateway does not read: fields, and two kinds of messages."""
        roles = [each.role for each in self.messages]
        names = ["system"] if _PROMPTS.intersection(roles) else []
        names += ["history"] if sum(role not in _PROMPTS for role in roles) > 1 else []
        own = {"tools": self.tools, "tool_choice": self.tool_choice, "function_call": self.function_call}
        fields = own | (self.model_extra or {})
        return names + [
            name for name, value in fields.items() if value not in (None, [], {}) and NAME.fullmatch(name)
        ]


class UsageOut(Shape):
    """Tokens of all model calls of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class MessageOut(Shape):
    """The answer; ``files`` are local paths of its files, on the machine of the gateway.

    A stateless call may request tools: ``tool_calls`` then has them, and ``content`` may be null.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    files: list[str] = Field(default=[])
    tool_calls: list[dict[str, Any]] = Field(default=[])


class ChoiceOut(Shape):
    """The answer; there is always exactly one."""

    index: Literal[0]
    message: MessageOut
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: None = None


class CompletionOut(Shape):
    """An answer in the format of OpenAI's API."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceOut]
    usage: UsageOut


class ModelOut(Shape):
    """A name that clients can use as ``model``."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsOut(Shape):
    """All models."""

    object: Literal["list"]
    data: list[ModelOut]
