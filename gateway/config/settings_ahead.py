"""Tables of the configuration that are read and checked already, though nothing acts on them yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from channels.tables import ConfigTable, Seconds

Decision = Literal["allow", "ask", "deny"]
Bindings = Annotated[
    tuple[Mapping[str, str], ...],
    BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value),
]
AgentTable = Mapping[str, Any]


class Policy(ConfigTable):
    """``[tools.policy]``: besides its own key each key is a tool, ``mcp.<server>.<tool>`` or ``*``."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Decision] = Field(init=False)

    approval_timeout_s: Seconds = 600.0


class WebFetch(ConfigTable):
    """``[tools.web_fetch]``."""

    enabled: bool = False
    max_kb: int = Field(default=512, ge=1)
    timeout_s: Seconds = 20.0


class Shell(ConfigTable):
    """``[tools.shell]``."""

    enabled: bool = False
    sandbox: Literal["auto", "bubblewrap", "landlock"] = "auto"
    network: bool = False
    timeout_s: Seconds = 60.0


class State(ConfigTable):
    """``[state]``."""

    local_dir: str = ""
