"""``[state]``: where the files of this machine alone lie."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field, field_validator

from channels.tables import ConfigTable


class State(ConfigTable):
    """``[state]``."""

    # What a schema can say of it.
    local_dir: str = Field(default="", json_schema_extra={"pattern": "^$|^[/~]"})

    @field_validator("local_dir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not value:
            return value
        path = os.path.expanduser(value)  # noqa: PTH111 - a user that is not there is no error of its own
        if "\0" in value or not Path(path).is_absolute():
            raise ValueError(
                f"{value!r}: expected the absolute path of a folder on a disk of this machine, such as "
                "/var/lib/chat-gateway-local; empty: in the workspace"
            )
        return os.path.normpath(path)
