"""The tables of the tools that have settings of their own."""

from __future__ import annotations

from pydantic import Field

from channels.tables import ConfigTable, Seconds


class WebFetch(ConfigTable):
    """``[tools.web_fetch]``."""

    enabled: bool = False
    max_kb: int = Field(default=512, ge=1)
    timeout_s: Seconds = 20.0


class Shell(ConfigTable):
    """``[tools.shell]``."""

    enabled: bool = False
    network: bool = False
    timeout_s: Seconds = 60.0
