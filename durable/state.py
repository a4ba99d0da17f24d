"""Small JSON documents that carry a version: an older one is read, a newer one refused."""

from __future__ import annotations

import json
from typing import Any

from durable.errors import Damaged, NewerVersion


def check_version(found: object, known: int, what: str, *, error: type[NewerVersion] = NewerVersion) -> None:
    """Refuse what a newer version of this program wrote; what carries no number at all is older.

    Raises:
        NewerVersion: as ``error``; the caller has written nothing yet.
    """
    if type(found) is int and found > known:
        raise error(
            f"{what} was written by a newer version of chat-gateway: version {found}, not {known}",
            hint="install that version of chat-gateway; nothing was written",
        )


def decode_state(
    data: bytes, known: int, what: str, *, error: type[NewerVersion] = NewerVersion
) -> dict[str, Any]:
    """Read the object of a state file.

    Raises:
        Damaged: it is no object.
        NewerVersion: as ``check_version``.
    """
    try:
        content = json.loads(data)
    # Damage may hold more brackets than the parser can go down.
    except (ValueError, RecursionError) as fault:
        raise Damaged(f"{what} is damaged") from fault
    if not isinstance(content, dict):
        raise Damaged(f"{what} is damaged: not a JSON object")
    check_version(content.get("v"), known, what, error=error)
    return content
