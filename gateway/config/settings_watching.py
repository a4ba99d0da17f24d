"""The tables of the configuration that say who looks on: ``[metrics]`` and ``[telemetry]``."""

from __future__ import annotations

from pydantic import Field

from channels.tables import ConfigTable, HttpUrl


class Metrics(ConfigTable):
    """``[metrics]``."""

    port: int = Field(default=0, ge=0, le=65535)


class Telemetry(ConfigTable):
    """``[telemetry]``."""

    endpoint: HttpUrl = ""
    sample: float = Field(default=1.0, ge=0, le=1)
