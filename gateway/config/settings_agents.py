"""``[[bindings]]``: which chats talk to which agent."""

from __future__ import annotations

from typing import Annotated, Final, get_args

from pydantic import BeforeValidator, Field, model_validator

from channels.tables import ConfigTable
from session.context.agents import By

# What a binding may name; one thing each.
BY: Final = (*get_args(By), "command")


class Binding(ConfigTable):
    """One of ``[[bindings]]``: an agent, and one thing that is sent to it."""

    agent: str = Field(min_length=1)
    channel: str = ""
    chat: str = ""
    topic: str = ""
    person: str = ""
    command: str = Field(default="", pattern=r"^([a-z][a-z0-9_]{0,31})?\Z")
    fixed: bool = False

    @model_validator(mode="after")
    def _one_thing(self) -> Binding:
        if len([name for name in BY if getattr(self, name)]) != 1:
            raise ValueError(f"expected exactly one of {', '.join(BY)}")
        if self.fixed and self.command:
            raise ValueError("fixed holds for chats: leave it out beside command")
        return self


Bindings = Annotated[
    tuple[Binding, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
