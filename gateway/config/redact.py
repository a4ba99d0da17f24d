"""Takes every known secret out of what is about to be shown or logged."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from urllib.parse import parse_qsl, quote, quote_plus

from pydantic import BaseModel, SecretStr

from channels.tables import HIDDEN
from gateway.config.agents import settings_of
from gateway.config.settings import Broker, Settings, State, effective_compaction, effective_history

MASK = "***"
# Shorter ones would black out ordinary text: recognised only within an address.
MIN_WORD_CHARS = 4
# Shorter ones count only as whole words.
MIN_ANYWHERE_CHARS = 6
# Of a value in the query of an address: a shorter one may be a version or a date.
MIN_QUERY_CHARS = 12
# Of a variable that merely looks like a key.
MIN_VARIABLE_CHARS = 8
_ESCAPED = {"\\": r"\\+", '"': r"\\*\"", "'": r"\\*'", "/": r"\\*/"}
_VARIABLE = re.compile(r"_(API_?KEY|TOKEN|SECRET|PASSWORD|ACCESS_KEY(_ID)?)$")
_USER_INFO = r"(?<=://)(?P<user>[^\s/:@\"']*):[^\s/@\"']+@"


class Redactor:
    """Replaces secrets by ``***``, in whichever of their usual spellings they turn up.

    ``unguarded`` names those that are too short to be told from ordinary text.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.unguarded = tuple(name for name, value in secrets.items() if 0 < len(value) < MIN_WORD_CHARS)
        spellings = {form for value in secrets.values() for form in _spellings(value)}
        ordered = sorted(spellings, key=lambda form: (-len(form), form))
        # Longest first: of two secrets, one of which begins the other, none may leave its rest standing.
        self._pattern = re.compile("|".join([*map(_pattern_of, ordered), _USER_INFO]))
        self._plain = re.compile("|".join(map(_pattern_of, ordered))) if ordered else None

    @classmethod
    def of(cls, settings: Settings | None = None, environ: Mapping[str, str] | None = None) -> Redactor:
        """Return the one that knows the secrets of the configuration and the environment's keys."""
        environ = os.environ if environ is None else environ
        found = {
            name: value
            for name, value in environ.items()
            if _VARIABLE.search(name) and len(value) >= MIN_VARIABLE_CHARS
        }
        return cls(found | (secrets_of(settings) if settings is not None else {}))

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        if "://" in text:
            return self._pattern.sub(_masked, text)
        return text if self._plain is None else self._plain.sub(MASK, text)

    def error(self, error: BaseException) -> str:
        """Return the traceback of ``error``, its causes included, without secrets."""
        return self.text("".join(traceback.format_exception(error)).rstrip("\n"))


def secrets_of(settings: Settings) -> dict[str, str]:
    """Map the dotted name of every secret that is set to its value."""
    found = {name: value for name, value in _walk(settings, "") if value}
    if settings.broker.password:
        found["broker.url"] = settings.broker.password
    if settings.state_table.password:
        found["state.url"] = settings.state_table.password
    return found


def _walk(table: BaseModel, above: str) -> Iterator[tuple[str, str]]:
    for name in type(table).model_fields:
        value = getattr(table, name)
        if isinstance(value, SecretStr):
            yield f"{above}{name}", value.get_secret_value()
        elif isinstance(value, str):
            yield from _in_address(value, f"{above}{name}")
        elif isinstance(value, BaseModel):
            yield from _walk(value, f"{above}{name}.")
        elif isinstance(value, Mapping):
            yield from _named(value, f"{above}{name}.")


def _in_address(value: str, name: str) -> Iterator[tuple[str, str]]:
    """Give the query of an address, where many a server has its key, and its long values."""
    address, _, query = value.partition("?")
    if query and "://" in address:
        yield f"{name}?", query
        for key, found in parse_qsl(query):
            if len(found) >= MIN_QUERY_CHARS:
                yield f"{name}?{key}", found


def _named(table: Mapping[str, object], above: str) -> Iterator[tuple[str, str]]:
    """Give the secrets below names that people choose, such as ``mcp.NAME.env.TOKEN``."""
    for name, value in table.items():
        if isinstance(value, SecretStr):
            yield f"{above}{name}", value.get_secret_value()
        elif isinstance(value, BaseModel):
            yield from _walk(value, f"{above}{name}.")


def _spellings(secret: str) -> Iterator[str]:
    """Give the forms in which a secret is met: plain, in an address, a Telegram token's secret part."""
    if len(secret) < MIN_WORD_CHARS:
        return
    yield from (secret, quote(secret, safe=""), quote(secret), quote_plus(secret))
    head, colon, rest = secret.partition(":")
    if colon and head.isdigit() and len(rest) >= MIN_VARIABLE_CHARS:
        # A bot's token is its public number, a colon, and this secret.
        yield rest


def _pattern_of(form: str) -> str:
    """Match a form also as JSON and repr spell it, at any depth: with backslashes before some characters."""
    anywhere = "".join(map(_pattern_of_one, form))
    return anywhere if len(form) >= MIN_ANYWHERE_CHARS else rf"(?<!\w){anywhere}(?!\w)"


def _pattern_of_one(character: str) -> str:
    if character.isascii():
        return _ESCAPED.get(character, re.escape(character))
    return rf"(?:{character}|\\+u{ord(character):04x}|\\+x{ord(character):02x})"


def _masked(match: re.Match[str]) -> str:
    user = match["user"]
    return MASK if user is None else f"{user}:{MASK}@"


def shown_settings(settings: Settings) -> dict[str, object]:
    """Return the whole configuration as plain values, effective, with every secret hidden."""
    redactor = Redactor.of(settings)
    shown = _plain(settings, redactor)
    shown["history"] = _plain(effective_history(settings), redactor)
    shown["compaction"] = asdict(effective_compaction(settings))
    shown["agents"] = {name: _of_agent(settings, name, redactor) for name in settings.agents}
    return shown


def _of_agent(settings: Settings, name: str, redactor: Redactor) -> dict[str, object]:
    """Show what holds for an agent, with what it leaves out."""
    own = settings_of(settings, name)
    plain = {table: _plain(getattr(own, table), redactor) for table in ("model", "tools", "memory")}
    return _plain(settings.agents[name], redactor) | plain | {"compaction": asdict(effective_compaction(own))}


def _plain(table: BaseModel, redactor: Redactor) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, info in type(table).model_fields.items():
        if isinstance(table, (Broker, State)) and name == "url":
            found[name] = table.shown_url
        else:
            found[info.alias or name] = _shown(getattr(table, name), redactor)
    return found | {name: _shown(value, redactor) for name, value in (table.model_extra or {}).items()}


def _shown(value: object, redactor: Redactor) -> object:
    if isinstance(value, BaseModel):
        return _plain(value, redactor)
    if isinstance(value, SecretStr):
        return HIDDEN if value.get_secret_value() else ""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {name: _shown(item, redactor) for name, item in value.items()}
    if isinstance(value, tuple) and any(isinstance(item, BaseModel) for item in value):
        return [{name: one for name, one in _plain(item, redactor).items() if one} for item in value]
    if isinstance(value, str) and "://" in value:
        # Many a server has its key there.
        address, mark, _ = value.partition("?")
        return redactor.text(address) + (f"?{HIDDEN}" if mark else "")
    if isinstance(value, tuple):
        return tuple(_shown(item, redactor) for item in value)
    return redactor.text(value) if isinstance(value, str) else value
