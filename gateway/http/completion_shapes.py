"""The shapes of OpenAI's chat completions, as far as a gateway fills them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gateway.http.messages import has_surrogate
from gateway.http.shape import Shape

MAX_USER_CHARS = 512


class ContentPart(BaseModel):
    """A part of a message's content; of the last message only texts are taken."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str
    text: str | None = None


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

    The gateway keeps the conversation: earlier messages and system prompts are not read. Tools, temperature
    and limits are the gateway's, and those of the request are not read either.
    """

    model_config = ConfigDict(extra="allow", strict=True)

    model: str = Field(max_length=MAX_USER_CHARS)
    messages: list[ChatMessage] = Field(min_length=1, fail_fast=True)
    user: str | None = Field(default=None, max_length=MAX_USER_CHARS)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None

    @model_validator(mode="after")
    def _asks_something(self) -> CompletionIn:
        if not self.text.strip():
            raise ValueError("messages: there is no message with role user that has a text")
        if has_surrogate(self.text) or has_surrogate(self.user or ""):
            raise ValueError("half of a surrogate pair is no text")
        return self

    @property
    def text(self) -> str:
        """What is asked: the text of the last message with the role user."""
        last = next((each for each in reversed(self.messages) if each.role == "user"), None)
        if last is None or last.content is None:
            return ""
        if isinstance(last.content, str):
            return last.content
        for part in last.content:
            if part.type != "text":
                raise ValueError(f"messages: a part of type {part.type[:40]!r} cannot be taken; send texts")
        return "\n".join(part.text for part in last.content if part.text)


class UsageOut(Shape):
    """The tokens of all calls of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class MessageOut(Shape):
    """The answer; ``files`` are paths, on the gateway's machine, of files that came with it."""

    role: Literal["assistant"]
    content: str
    refusal: None = None
    files: list[str] = Field(default=[])


class ChoiceOut(Shape):
    """The one answer."""

    index: Literal[0]
    message: MessageOut
    finish_reason: Literal["stop", "length"]
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
