"""``[tools.policy]``: which tool may run, must be asked for, or is not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import ConfigDict, Field, field_validator

from channels.tables import ConfigTable, Seconds

Decision = Literal["allow", "ask", "deny"]
Table = Mapping[str, Decision]


class Policy(ConfigTable):
    """Besides its own keys each key is a tool, ``mcp.<server>.<tool>``, ``mcp.<server>.*`` or ``*``."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Decision] = Field(init=False)

    approval_timeout_s: Seconds = 600.0
    people: Mapping[str, Table] = Field(default_factory=dict)
    chats: Mapping[str, Table] = Field(default_factory=dict)
    channels: Mapping[str, Table] = Field(default_factory=dict)

    @field_validator("chats")
    @classmethod
    def _by_key(cls, value: Mapping[str, Table]) -> Mapping[str, Table]:
        for key in value:
            if not all(key.partition(":")):
                raise ValueError(f'{key!r}: expected a key, such as "telegram:-100123"')
        return value

    @property
    def tools(self) -> Table:
        """What holds for everybody, by tool."""
        return dict(self.__pydantic_extra__ or {})
