"""The adapters' own configuration tables, read and checked without any platform's SDK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
)

# What stands in the place of a secret that is shown.
HIDDEN = "********"
QueueMode = Literal["followup", "collect", "steer", "interrupt"]


class ConfigTable(BaseModel):
    """A frozen table of the configuration that refuses unknown keys and never shows what it was given."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        regex_engine="python-re",
    )


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _as_ids(value: object) -> object:
    """Take platform ids written as numbers, too: ``allow_from = [12345678]``."""
    if not isinstance(value, (list, tuple)):
        return value
    return tuple(str(item) if type(item) is int else item for item in value)


def is_address(value: str, schemes: Sequence[str]) -> bool:
    """Say whether ``value`` is the address of a server, of one of these schemes."""
    try:
        parts = urlsplit(value)
        sound = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    # ``urlsplit`` leaves out tabs and line ends; whoever connects may not.
    return sound and value.isprintable() and " " not in value


def _address_of(*schemes: str) -> AfterValidator:
    def check(value: str) -> str:
        if value and not is_address(value, schemes):
            beginnings = " or ".join(f"{scheme}://" for scheme in schemes)
            raise ValueError(f"expected an address that begins with {beginnings}")
        return value

    return AfterValidator(check)


Strings = Annotated[tuple[str, ...], BeforeValidator(_as_tuple)]
FileKinds = Annotated[tuple[Literal["image", "pdf"], ...], BeforeValidator(_as_tuple)]
_IDS = {"type": "array", "items": {"type": ["string", "integer"]}}
Ids = Annotated[tuple[str, ...], BeforeValidator(_as_ids), WithJsonSchema(_IDS)]
# As far as a regular expression can say it.
_HTTP = {"type": "string", "pattern": r"^([hH][tT][tT][pP][sS]?://[^/?#\s]\S*)?$"}
_SOCKET = {"type": "string", "pattern": r"^([wW][sS][sS]?://[^/?#\s]\S*)?$"}
HttpUrl = Annotated[str, _address_of("http", "https"), WithJsonSchema(_HTTP)]
SocketUrl = Annotated[str, _address_of("ws", "wss"), WithJsonSchema(_SOCKET)]
# Thirty years, or as many hours, days or dollars: beyond some such bound times leave the calendar.
MOST = 10**9
Seconds = Annotated[float, Field(gt=0, le=MOST)]
Pause = Annotated[float, Field(ge=0, le=MOST)]


def sound_secret(value: SecretStr) -> SecretStr:
    """Return ``value`` unless it holds what no header can carry, such as a newline from a careless copy."""
    text = value.get_secret_value()
    if not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("expected printable ASCII characters without spaces (the value is not shown)")
    return value


def hide_password(url: str) -> str:
    """Return ``url`` with the password of its user hidden."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    if parts.password is None:
        return url
    user, at, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}:{HIDDEN}{at}{place}"))


# The pattern of an address takes none.
_NOT_EMPTY: Final[dict[str, Any]] = {"minLength": 1}


class Platform(ConfigTable):
    """What every chat platform's table has: a token, and who may talk to the bot."""

    enabled: bool = False
    """Start this bot."""
    token: SecretStr = Field(default=SecretStr(""), validate_default=True)
    """Bot token. Secret."""
    request_timeout_s: Seconds = 30.0
    """Time limit for one request to the platform, in seconds."""
    allow_from: Ids = ()
    """Ids of people who may use the bot; `*` allows everyone."""
    direct: Literal["pairing", "allowlist", "open"] = "pairing"
    """What strangers get: a pairing code, nothing, or answers."""
    groups: Literal["mention", "all", "off"] = "mention"
    """When to answer in groups: when mentioned, always, or never."""
    group_allow: Ids = ()
    """Ids of groups in which the bot answers; `*` allows all groups."""
    stream: bool = True
    """Show answers while they are written, by editing a message."""
    queue_mode: Literal["", "followup", "collect", "steer", "interrupt"] = ""
    """Queue mode for this channel. If empty, `limits.queue_mode` applies."""

    @field_validator("token")
    @classmethod
    def _needed_when_enabled(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if info.data.get("enabled") and not value.get_secret_value():
            raise ValueError("missing, though enabled = true; give token, token_file or a credential")
        return sound_secret(value)


class TelegramTable(Platform):
    """A Telegram bot."""

    token: SecretStr = Field(default=SecretStr(""), validate_default=True)
    """Bot token from @BotFather. Secret."""
    request_timeout_s: Seconds = 30.0
    """Time limit for one request to Telegram, in seconds."""
    base_url: HttpUrl = Field(
        default="https://api.telegram.org/bot", min_length=1, json_schema_extra=_NOT_EMPTY
    )
    """URL of the Bot API; change it to use your own server."""
    base_file_url: HttpUrl = Field(
        default="https://api.telegram.org/file/bot", min_length=1, json_schema_extra=_NOT_EMPTY
    )
    """URL from which the Bot API serves files."""
    poll_timeout_s: int = Field(default=30, ge=0)
    """Time-out for long polling, in seconds."""


class DiscordTable(Platform):
    """A Discord bot."""

    token: SecretStr = Field(default=SecretStr(""), validate_default=True)
    """Bot token from Discord's developer portal. Secret."""
    request_timeout_s: Seconds = 30.0
    """Time limit for one request to Discord, in seconds."""
    groups: Literal["mention", "all", "off"] = "mention"
    """When to answer on servers: when mentioned, always, or never."""
    group_allow: Ids = ()
    """Ids of servers or channels in which the bot answers; `*` allows all."""
    api_base_url: HttpUrl = Field(
        default="https://discord.com/api/v10", min_length=1, json_schema_extra=_NOT_EMPTY
    )
    """URL of Discord's API."""
    gateway_url: SocketUrl = ""
    """URL of Discord's gateway. If empty, the one that Discord announces."""
    cdn_base_url: HttpUrl = ""
    """URL of Discord's CDN. If empty, the one that Discord announces."""
    heartbeat_timeout_s: Seconds = 60.0
    """How long Discord's gateway may be silent, in seconds."""
    sweep_s: Seconds = 60.0
    """Interval between searches for missed messages, in seconds."""


class Web(ConfigTable):
    """The web console and HTTP API as a channel."""

    enabled: bool = True
    """Enable it. Not implemented yet: no effect."""
