"""``[[bindings]]``: which chats talk to which agent."""

from __future__ import annotations

import re
from typing import Annotated, Final, get_args

from pydantic import BeforeValidator, Field, field_validator, model_validator

from channels.tables import ConfigTable
from session.context.scopes import By

# As the menus of platforms take it.
_COMMAND: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
# What a binding may name; one thing each.
BY: Final = (*get_args(By), "command")


class Binding(ConfigTable):
    """One of ``[[bindings]]``: an agent, and one thing that is sent to it."""

    agent: str = Field(min_length=1)
    channel: str = ""
    chat: str = ""
    topic: str = ""
    person: str = ""
    command: str = ""
    fixed: bool = False

    @field_validator("command")
    @classmethod
    def _a_name(cls, value: str) -> str:
        if value and _COMMAND.fullmatch(value) is None:
            raise ValueError(
                "expected a name of up to 32 lower-case letters, digits and '_', without the slash"
            )
        return value

    @model_validator(mode="after")
    def _one_thing(self) -> Binding:
        if len([name for name in BY if getattr(self, name)]) != 1:
            raise ValueError(f"expected exactly one of {', '.join(BY)}")
        if self.fixed and self.command:
            raise ValueError("fixed applies to chats; remove it from a binding with command")
        return self


Bindings = Annotated[
    tuple[Binding, ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
