"""The typed configuration: every section, key, default and range, frozen once read."""

from __future__ import annotations

import ipaddress
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Annotated, Final, Literal, get_args
from urllib.parse import unquote, urlsplit
from zoneinfo import ZoneInfo

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from channels.tables import (
    MOST,
    ConfigTable,
    DiscordTable,
    FileKinds,
    HttpUrl,
    Pause,
    QueueMode,
    Seconds,
    Strings,
    TelegramTable,
    Web,
    hide_password,
    sound_secret,
)
from session.compaction.presets import Numbers, Preset, numbers_of
from session.context.agents import By

# It names files, tools and policies.
SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class McpServer(ConfigTable):
    """``[mcp.NAME]``: a server on its stdio by ``command``, or over HTTP at ``url``."""

    command: Strings = ()
    url: HttpUrl = Field(default="", repr=False)
    headers_file: str = ""
    env: Mapping[str, SecretStr] = Field(default_factory=dict)
    network: bool = False
    readable: Strings = ()
    channels: Strings = ()
    people: Strings = ()
    repeatable: Strings = ()
    trusted: bool = False
    timeout_s: Seconds = 60.0

    @field_validator("command")
    @classmethod
    def _found_anywhere(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        # The server works in a folder of its own, where a relative path means another place.
        if value and os.sep in value[0] and not os.path.isabs(value[0]):  # noqa: PTH117 - a word, not a path yet
            raise ValueError("use the program's absolute path, or a name found in PATH")
        return value

    @field_validator("readable")
    @classmethod
    def _whole_paths(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not os.path.isabs(each) for each in value):  # noqa: PTH117 - words, not paths yet
            raise ValueError("use absolute paths")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> McpServer:
        if bool(self.command) == bool(self.url):
            raise ValueError("set command for a stdio server, or url for an HTTP server")
        mine = ("headers_file",) if self.command else ("env", "network", "readable")
        wrong = [name for name in mine if getattr(self, name)]
        if wrong:
            raise ValueError(
                f"{wrong[0]} cannot be set for a server with {'command' if self.command else 'url'}"
            )
        return self


def check_servers(servers: Mapping[str, McpServer], people: Mapping[str, object]) -> Mapping[str, McpServer]:
    """Return the tables of all servers.

    Raises:
        ValueError: a name cannot be that of a server, or of a person who is listed.
    """
    for name, server in servers.items():
        if not SERVER_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r}: expected a name of at most 32 letters, digits, '_' and '-', "
                "that starts with a letter or a digit"
            )
        unknown = [person for person in server.people if person not in people]
        if unknown:
            raise ValueError(f"{name}: people: [people] has no {unknown[0]!r}")
    return servers


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


def is_address(value: str, schemes: Sequence[str]) -> bool:
    """Say whether ``value`` is the address of a server, of one of these schemes."""
    try:
        parts = urlsplit(value)
        sound = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    # A raw "#", "?" or "/" in the password would end the address before its host.
    sound = sound and "@" not in f"{parts.path}{parts.query}{parts.fragment}"
    # ``urlsplit`` leaves out tabs and line ends; whoever connects may not.
    return sound and value.isprintable() and " " not in value


class Metrics(ConfigTable):
    """``[metrics]``."""

    port: int = Field(default=0, ge=0, le=65535)


class Telemetry(ConfigTable):
    """``[telemetry]``."""

    endpoint: HttpUrl = ""
    sample: float = Field(default=1.0, ge=0, le=1)


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


class State(ConfigTable):
    """``[state]``. ``url`` may hold a password: show ``shown_url`` instead."""

    url: str = Field(default="", repr=False)
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

    @field_validator("url")
    @classmethod
    def _known_kind(cls, value: str) -> str:
        if value and not is_address(value, ("postgresql", "postgres")):
            raise ValueError(
                'expected postgresql://user:password@host:5432/database, with "%23" for "#" and so on; '
                "empty: a file in the workspace"
            )
        return value

    @property
    def password(self) -> str:
        """The password within ``url``, decoded; empty where it has none."""
        return unquote(urlsplit(self.url).password or "")

    @property
    def shown_url(self) -> str:
        """``url`` with its password hidden."""
        return hide_password(self.url)


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


MIN_TOKEN_CHARS = 16
# Different ones: fewer are guessed.
MIN_TOKEN_KINDS = 8
Count = Annotated[int, Field(ge=1)]
Amount = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
_PERSON = re.compile(r"\w[\w.-]{0,63}")
MAX_PERSON_BYTES = 64
_KEY = re.compile(r"[a-z][a-z0-9_]{0,31}:\S+")


def zone_of(name: str) -> tzinfo:
    """Return the zone of an IANA name; UTC also where the machine has no zone database.

    Raises:
        ValueError, OSError: there is no such zone.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except KeyError as error:
        raise ValueError(f"no time zone {name!r}") from error


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Broker(ConfigTable):
    """``[broker]``. ``url`` may hold a password: show ``shown_url`` instead."""

    url: str = Field(default="embedded", repr=False)
    partitions: int = Field(default=64, ge=1, le=256)
    queue_type: Literal["auto", "classic", "quorum"] = "auto"
    heartbeat_s: int = Field(default=10, ge=1, le=65_534)
    name: str = Field(default="chat", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""

    @field_validator("url")
    @classmethod
    def _known_kind(cls, value: str) -> str:
        if value != "embedded" and not is_address(value, ("amqp", "amqps")):
            raise ValueError(
                'expected "embedded" or amqp://user:password@host:5672/vhost (or amqps://), '
                'with "%23" for "#" and so on'
            )
        return value

    @field_validator("ca_file", "cert_file", "key_file")
    @classmethod
    def _whole_path(cls, value: str) -> str:
        if value and not value.startswith("/"):
            raise ValueError("expected an absolute path, such as /etc/chat-gateway/ca.pem")
        return value

    @property
    def embedded(self) -> bool:
        """Whether the queue lives in the daemon's own process."""
        return self.url == "embedded"

    @property
    def password(self) -> str:
        """The password within ``url``, decoded; empty where it has none."""
        return "" if self.embedded else unquote(urlsplit(self.url).password or "")

    @property
    def shown_url(self) -> str:
        """``url`` with its password hidden."""
        return hide_password(self.url)


class ModelSettings(ConfigTable):
    """``[model]``."""

    name: str = Field(default="echo", min_length=1)
    echo_delay_s: Pause = 0.0
    api_base: HttpUrl = ""
    api_key: SecretStr = SecretStr("")
    context_window: Amount = 0
    max_output_tokens: Count = 4096
    timeout_s: Seconds = 120.0
    stream: Literal["auto", "always"] = "auto"
    max_tool_rounds: Count = 25
    fallbacks: Strings = ()
    takes: FileKinds = ()
    cache: bool = True
    small: str = ""
    embedding: str = ""

    _sound_key = field_validator("api_key")(sound_secret)


class LimitsSettings(ConfigTable):
    """``[limits]``. 0 turns off the limits per person, chat, job, day and hour."""

    concurrent_turns: Count = 64
    turn_timeout_s: Seconds = 600.0
    pending_per_chat: Count = 50
    flood_per_chat: Count = 5000
    model_tries: Count = 5
    attempts: Count = 3
    outage_hours: Pause = 24.0
    drain_s: Pause = 25.0
    turns_per_person_per_hour: Amount = 0
    cost_per_day_usd: Pause = 0.0
    background_calls_per_hour: Amount = 60
    background_calls_per_day: Amount = 500
    queue_mode: QueueMode = "followup"
    collect_s: Pause = 0.5
    workers: Amount = 1
    worker_timeout_s: Seconds = 30.0
    cost_per_chat_per_day_usd: Pause = 0.0
    cost_per_person_per_day_usd: Pause = 0.0
    cost_per_job_per_day_usd: Pause = 0.0
    tokens_per_day: Amount = 0


class SessionSettings(ConfigTable):
    """``[session]``."""

    idle_hours: Pause = 0.0
    recent_sessions: Amount = 3
    recent_days: Pause = 14.0
    retention_days: Pause = 0.0
    cache_mb: Count = 256


class History(ConfigTable):
    """``[history]``. A compaction preset may stand for ``mode`` and ``changing_parts``: see ``presets``."""

    mode: Literal["all", "last", "relevant"] = "all"
    changing_parts: Literal["end", "system"] = "end"
    last: Count = 50
    budget_tokens: Count = 50000
    candidates: Count = 30
    exchanges_always: Amount = 3
    max_messages: Amount = 20
    relevance: float = Field(default=0.45, ge=-1, le=1)
    full_tool_results: Amount = 2


class Compaction(ConfigTable):
    """``[compaction]`` as written: a number is None unless set; the preset fills it in (see ``presets``)."""

    preset: Preset = "overlay"
    threshold: float | None = Field(default=None, gt=0, le=1)
    reserve_tokens: int | None = Field(default=None, ge=0)
    keep_recent_tokens: int | None = Field(default=None, ge=0)
    keep_recent_turns: int | None = Field(default=None, ge=0)
    max_chars: int | None = Field(default=None, ge=1)
    min_turns: int | None = Field(default=None, ge=0)
    cooldown_s: float | None = Field(default=None, ge=0, le=MOST)
    timeout_s: float | None = Field(default=None, gt=0, le=MOST)
    chars_per_token: float | None = Field(default=None, gt=0)


class MemorySettings(ConfigTable):
    """``[memory]``."""

    scope: Literal["chat", "workspace"] = "chat"
    window: int = Field(default=100, ge=2)
    max_kb: Count = 32
    profile_max_kb: Count = 8
    versions: Amount = 50
    version_days: Pause = 90.0


class Tools(ConfigTable):
    """``[tools]``: which tools a direct chat and a group may use."""

    direct: Strings = (
        "read",
        "write",
        "edit",
        "ls",
        "grep",
        "profile",
        "skill_read",
        "memory_search",
        "schedule",
        "send_file",
        "session_archive_read",
        "spawn",
    )
    groups: Strings = ("skill_read", "memory_search", "session_archive_read")
    policy: Policy = Policy()
    web_fetch: WebFetch = WebFetch()
    shell: Shell = Shell()


class AgentTable(ConfigTable):
    """``[agents.<name>]``: what its tables leave out is as in the sections of the same names."""

    description: str = ""
    persona: str = ""
    choosable: bool = True
    model: ModelSettings = ModelSettings()
    tools: Tools = Tools()
    memory: MemorySettings = MemorySettings()
    compaction: Compaction = Compaction()


class Facts(ConfigTable):
    """``[facts]``."""

    enabled: bool = True
    idle_s: Pause = 300.0
    max_turns: Count = 10
    confidence: Share = 0.7


class Channels(ConfigTable):
    """``[channels]``. Adapters of other packages add their tables through ``load(..., tables=…)``."""

    telegram: TelegramTable = TelegramTable()
    discord: DiscordTable = DiscordTable()
    web: Web = Web()


class MediaSettings(ConfigTable):
    """``[media]``."""

    max_mb: Count = 20
    timeout_s: Seconds = 60.0


class Http(ConfigTable):
    """``[http]``."""

    host: str = Field(default="127.0.0.1", min_length=1)
    port: int = Field(default=8006, ge=0, le=65535)
    token: SecretStr = Field(default=SecretStr(""), validate_default=True)
    allowed_hosts: Strings = ()
    requests_per_minute: Amount = 0

    @field_validator("token")
    @classmethod
    def _needed_beyond_loopback(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        host = info.data.get("host")
        token = value.get_secret_value()
        faults = (
            ("missing", not token),
            (f"under {MIN_TOKEN_CHARS} characters", len(token) < MIN_TOKEN_CHARS),
            (f"under {MIN_TOKEN_KINDS} different characters", len(set(token)) < MIN_TOKEN_KINDS),
        )
        fault = next((words for words, holds in faults if holds), "")
        if host is not None and not is_loopback(host) and fault:
            cure = "create one with: openssl rand -hex 32" if token else "set token or token_file"
            raise ValueError(f"{fault}, though host = {host!r} is not loopback; {cure}")
        return sound_secret(value)


class Log(ConfigTable):
    """``[log]``."""

    format: Literal["auto", "console", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error", "critical"] = "info"


class Settings(ConfigTable):
    """The whole configuration."""

    workspace: Path
    timezone: str = "UTC"
    broker: Broker = Broker()
    model: ModelSettings = ModelSettings()
    limits: LimitsSettings = LimitsSettings()
    session: SessionSettings = SessionSettings()
    history: History = History()
    compaction: Compaction = Compaction()
    memory: MemorySettings = MemorySettings()
    people: Mapping[str, Strings] = Field(default_factory=dict)
    tools: Tools = Tools()
    facts: Facts = Facts()
    channels: Channels = Channels()
    media: MediaSettings = MediaSettings()
    http: Http = Http()
    mcp: Mapping[str, McpServer] = Field(default_factory=dict)
    agents: Mapping[str, AgentTable] = Field(default_factory=dict)
    bindings: Bindings = ()
    # ``[state]``: the attribute ``state`` is the folder.
    state_table: State = Field(default=State(), alias="state")
    log: Log = Log()
    metrics: Metrics = Metrics()
    telemetry: Telemetry = Telemetry()
    _file: Path | None = PrivateAttr(default=None)

    @field_validator("timezone")
    @classmethod
    def _known_zone(cls, value: str) -> str:
        try:
            zone_of(value)
        except (ValueError, OSError) as error:
            raise ValueError("expected the name of a time zone such as Europe/Berlin") from error
        return value

    @field_validator("people")
    @classmethod
    def _one_person_each(cls, value: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        owner: dict[str, str] = {}
        alike: dict[str, str] = {}
        for name, keys in value.items():
            if not _PERSON.fullmatch(name) or len(name.encode()) > MAX_PERSON_BYTES:
                raise ValueError(
                    f"{name!r}: expected letters, digits, '_', '-' and '.', not starting with '-' or '.', "
                    f"and at most {MAX_PERSON_BYTES} bytes: it becomes a folder name"
                )
            # Not every file system tells them apart, and two people would have one folder.
            same = alike.setdefault(unicodedata.normalize("NFKC", name).casefold(), name)
            if same != name:
                raise ValueError(f"{same!r} and {name!r} are too similar; rename one of them")
            for key in keys:
                if not _KEY.fullmatch(key):
                    raise ValueError(
                        f"{name}: {key!r}: expected channel:chat_id without spaces, such as telegram:1; "
                        "chat-gateway sessions list shows the keys"
                    )
                if owner.setdefault(key, name) != name:
                    raise ValueError(
                        f"{key} belongs to both {owner[key]} and {name}; keep it with one of them"
                    )
        return value

    @field_validator("mcp")
    @classmethod
    def _sound_servers(cls, value: Mapping[str, McpServer], info: ValidationInfo) -> Mapping[str, McpServer]:
        return check_servers(value, info.data.get("people") or {})

    @property
    def file(self) -> Path | None:
        """The file that it was read from; None: defaults and environment alone."""
        return self._file

    def read_from(self, file: Path | None) -> None:
        """Note the file that it was read from."""
        self._file = file

    @property
    def zone(self) -> tzinfo:
        """The zone named by ``timezone``."""
        return zone_of(self.timezone)

    @property
    def state(self) -> Path:
        """The folder of our own files within the workspace."""
        return self.workspace / "state"

    @property
    def local_dir(self) -> Path | None:
        """Where the files of this machine alone are wanted; None: in the workspace."""
        return Path(self.state_table.local_dir) if self.state_table.local_dir else None


def effective_compaction(settings: Settings) -> Numbers:
    """Return the preset's numbers, each replaced by the one that the configuration sets."""
    given = {
        field.name: value
        for field in fields(Numbers)
        if (value := getattr(settings.compaction, field.name)) is not None
    }
    return replace(numbers_of(settings.compaction.preset), **given)


def effective_history(settings: Settings) -> History:
    """Return ``[history]`` with the preset's ``mode`` and ``changing_parts`` where they were not set."""
    by_preset: dict[str, str] = {}
    if settings.compaction.preset == "annabelle":
        by_preset = {"mode": "relevant", "changing_parts": "system"}
    elif settings.compaction.preset == "budget":
        by_preset = {"mode": "last"}
    history = settings.history
    return history.model_copy(
        update={name: value for name, value in by_preset.items() if name not in history.model_fields_set}
    )
