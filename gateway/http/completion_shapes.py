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
    """A part of a message's content; of the last message texts are taken, and pictures as data URLs."""

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
            raise ValueError("messages: image_url: give the picture as a data URL: data:image/png;base64,…")
        try:
            return mime, base64.b64decode(data, validate=True)
        except ValueError:
            raise ValueError("messages: the data URL of a picture is no base64") from None


class ChatMessage(BaseModel):
    """A message as the client keeps it."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    # A body may hold a million elements: to describe the fault of each would hold up the loop for seconds.
    content: str | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None


class StreamOptions(BaseModel):
    """What a stream tells besides the answer."""

    model_config = ConfigDict(extra="allow", strict=True)

    include_usage: bool | None = None


class CompletionIn(BaseModel):
    """A request of any OpenAI client: the last message of the user is asked, in the chat ``web:<user>``.

    The gateway keeps the conversation, and tools, temperature and limits are its own: what of these a request
    has is not read, and ``ignored`` names it. What would change the form of the answer is refused.
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
                raise ValueError(f'{name}: the gateway runs its own tools and forces none; send "auto"')
        form = self.response_format
        if form is not None and not (isinstance(form, dict) and form.get("type") == "text"):
            raise ValueError(
                "response_format: answers are texts; leave it out, and ask for the form in words"
            )
        if self.n not in (None, 1):
            raise ValueError("n: there is one answer; leave it out, and send the request again for another")
        last = next((each.role for each in reversed(self.messages) if each.role not in _PROMPTS), "user")
        if last != "user":
            raise ValueError(
                f"messages: the last is of role {last[:40]!r}; put what is asked behind it, with role user"
            )
        if not self.text.strip() and not self.pictures:
            raise ValueError("messages: there is no message with role user that has a text")
        if has_surrogate(self.text) or has_surrogate(self.user or ""):
            raise ValueError("half of a surrogate pair is no text")

    @property
    def text(self) -> str:
        """What is asked: the text of the last message with the role user."""
        content = self._content
        if isinstance(content, str):
            return content
        for part in content:
            if part.type not in ("text", "image_url"):
                raise ValueError(
                    f"messages: a part of type {part.type[:40]!r} cannot be taken; send texts and pictures"
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
    """The tokens of all calls of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class MessageOut(Shape):
    """The answer; ``files`` are paths, on the gateway's machine, of files that came with it.

    A call without a session may ask for tools: then ``tool_calls`` has them, and ``content`` may be null.
    """

    role: Literal["assistant"]
    content: str | None
    refusal: None = None
    files: list[str] = Field(default=[])
    tool_calls: list[dict[str, Any]] = Field(default=[])


class ChoiceOut(Shape):
    """The one answer."""

    index: Literal[0]
    message: MessageOut
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: None = None


class CompletionOut(Shape):
    """An answer as OpenAI's API gives it."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceOut]
    usage: UsageOut


class ModelOut(Shape):
    """What a client may name as ``model``."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelsOut(Shape):
    """All of them."""

    object: Literal["list"]
    data: list[ModelOut]
