"""The named tokens of the API with their rights (``state/tokens.json``): made, listed, revoked, looked up.

A token is 256 random bits, shown once. The file holds its SHA-256 alone, and that of the cookie which a
browser gets for it: from neither can anything be found that opens a door.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import structlog

import durable
from gateway.errors import GatewayError
from session.disk.layout import Seen, seen
from session.disk.state import locked, read_state, write_state
from session.errors import StoreError

log = structlog.get_logger("tokens")

Right = Literal["read", "write", "admin"]
RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "admin")
# By it secret scanners, and people, know what they found.
PREFIX: Final = "cgw_"
_KEY_BYTES: Final = 32
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


class TokenError(GatewayError):
    """A token cannot be made, or there is none of this name."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: the name of the token that was shown, what it may do, and the token's digest."""

    name: str
    right: Right
    sha256: str = field(default="", repr=False)

    def may(self, right: Right) -> bool:
        """Say whether the token's right includes ``right``: each includes those before it in ``RIGHTS``."""
        return RIGHTS.index(self.right) >= RIGHTS.index(right)


class Tokens:
    """The tokens of one workspace.

    Args:
        state: the folder of our own files.
        clock: the wall clock, UTC.
    """

    def __init__(self, state: Path, *, clock: Callable[[], datetime] = durable.now) -> None:
        self._path = state / "tokens.json"
        self._lock = state / "tokens.lock"
        self._clock = clock
        self._seen: Seen | None = None
        # By the digest of a token, and by that of its cookie.
        self._by_token: dict[str, Caller] = {}
        self._by_cookie: dict[str, Caller] = {}

    def add(self, name: str, right: Right) -> str:
        """Make a token and return it: it is kept nowhere.

        Raises:
            TokenError: the name is taken, or cannot be one.
            StoreError: the disk refused; there is no such token.
        """
        if not _NAME.fullmatch(name):
            raise TokenError(
                f"{name!r} is not a valid token name", hint="use a-z, 0-9, - and _, at most 64 characters"
            )
        token = PREFIX + durable.token_urlsafe(32)
        with locked(self._lock):
            entries = self._entries()
            if name in entries:
                raise TokenError(
                    f"a token named {name} already exists", hint=f"chat-gateway tokens revoke {name}"
                )
            entries[name] = {
                "right": right,
                "sha256": _digest(token),
                "cookie_sha256": _digest(cookie_of(token)),
                "created_at": self._clock().astimezone(UTC).isoformat(timespec="seconds"),
            }
            write_state(self._path, {"tokens": entries})
        return token

    def revoke(self, name: str) -> None:
        """Let a token open nothing any more: running daemons look at the file with each request.

        Raises:
            TokenError: there is none of this name.
            StoreError: the disk refused; it holds as before.
        """
        with locked(self._lock):
            entries = self._entries()
            if entries.pop(name, None) is None:
                raise TokenError(f"no token is named {name}", hint="chat-gateway tokens list")
            write_state(self._path, {"tokens": entries})

    def rows(self) -> list[dict[str, Any]]:
        """List ``name, right, created_at``, by name.

        Raises:
            StoreError: the file cannot be read.
        """
        return [
            {"name": name, "right": entry["right"], "created_at": entry.get("created_at")}
            for name, entry in sorted(self._entries().items())
        ]

    def of_token(self, token: str) -> Caller | None:
        """Return who shows this token; None: nobody's. Where the file cannot be read, none is anybody's."""
        self._refresh()
        return self._by_token.get(_digest(token))

    def holds(self, caller: Caller) -> bool:
        """Say whether who was let in may still be: the token was not revoked."""
        self._refresh()
        return self._by_token.get(caller.sha256) == caller

    def of_cookie(self, cookie: str) -> Caller | None:
        """Return whose browser shows this cookie; as ``of_token``."""
        self._refresh()
        return self._by_cookie.get(_digest(cookie))

    def cookie_key(self) -> str:
        """Return the random key of this workspace by which the cookie of ``http.token`` is made.

        Raises:
            StoreError: the file cannot be read, or the disk refused it.
        """
        path = self._path.with_name("cookie-key.json")
        with locked(self._lock):
            key = read_state(path).get("key")
            if not isinstance(key, str) or len(key) < _KEY_BYTES:
                key = durable.token_hex(_KEY_BYTES)
                write_state(path, {"key": key})
        return key

    def _refresh(self) -> None:
        now = seen(self._path)
        if now == self._seen:
            return
        self._by_token, self._by_cookie = {}, {}
        try:
            entries = self._entries() if now is not None else {}
        except StoreError as error:
            log.error("tokens.unreadable", error=str(error), hint=error.hint)
            entries = {}
        for name, entry in entries.items():
            caller = Caller(name, entry["right"], str(entry.get("sha256")))
            self._by_token[caller.sha256] = caller
            self._by_cookie[str(entry.get("cookie_sha256"))] = caller
        self._seen = now

    def _entries(self) -> dict[str, Mapping[str, Any]]:
        found = read_state(self._path).get("tokens")
        return {
            name: entry
            for name, entry in (found.items() if isinstance(found, dict) else ())
            if isinstance(entry, dict) and entry.get("right") in RIGHTS
        }


def cookie_of(token: str, key: str = "") -> str:
    """Return the value that stands for a token in a browser, from which the token cannot be found.

    With a random ``key`` that holds also of a token that people chose.
    """
    purpose = f"chat-gateway console{key}".encode()
    return hmac.new(token.encode("utf-8", "surrogatepass"), purpose, hashlib.sha256).hexdigest()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
