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
from typing import Annotated, Any, Final, Literal, get_args
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
    is_address,
    sound_secret,
)
from session.compaction.rules import Numbers, Preset, numbers_of
from session.context.scopes import By

# What the checks below ask of a text or a name, where a regular expression can say it: for no value that they
# take may it be stricter.
_PATH_OR_NONE: Final[dict[str, Any]] = {"pattern": "^(/|$)"}
_BROKER: Final[dict[str, Any]] = {"pattern": r"^(embedded$|[aA][mM][qQ][pP][sS]?://[^/?#])"}
_POSTGRES: Final[dict[str, Any]] = {"pattern": r"^($|[pP][oO][sS][tT][gG][rR][eE][sS]([qQ][lL])?://[^/?#])"}
_ONE_PERSON: Final[dict[str, Any]] = {
    "type": "array",
    "items": {"type": "string", "pattern": r"^[a-z][a-z0-9_]{0,31}:\S+$"},
}
_PEOPLE: Final[dict[str, Any]] = {"additionalProperties": _ONE_PERSON}


def _named(pattern: str, **more: Any) -> Any:
    """Say in a schema how the names of tables look that people choose."""
    return {"propertyNames": {"pattern": pattern, **more}}


# It names files, tools and policies.
SERVER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")


class McpServer(ConfigTable):
    """``[mcp.NAME]``: a server on its stdio by ``command``, or over HTTP at ``url``."""

    command: Strings = ()
    """Program and arguments of a stdio server, as a list."""
    url: HttpUrl = Field(default="", repr=False)
    """URL of an HTTP server."""
    headers_file: str = ""
    """File with HTTP headers for `url`, one per line; for example, to send a token."""
    env: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Additional environment variables for the program. Secret."""
    network: bool = False
    """Let the program use the network."""
    readable: Strings = Field(default=(), json_schema_extra={"items": {"type": "string", "pattern": "^/"}})
    """Files and folders that the program may read, as absolute paths."""
    channels: Strings = ()
    """Channels or chats that get its tools. If empty, all chats except groups."""
    people: Strings = ()
    """People from `[people]` who get its tools. If empty, everyone."""
    repeatable: Strings = ()
    """Tools that may run again after a crash."""
    trusted: bool = False
    """Trust what the server says about its tools, such as that a tool is read-only."""
    timeout_s: Seconds = 60.0
    """Time limit for one call, in seconds."""

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
    """Name of the agent. `default` is the one without a table."""
    channel: str = ""
    """A channel, such as `discord`."""
    chat: str = ""
    """The key of a chat."""
    topic: str = ""
    """The key of a topic in a group."""
    person: str = ""
    """A person from `[people]`."""
    command: str = Field(default="", json_schema_extra={"pattern": "^([a-z][a-z0-9_]{0,31})?$"})
    """A command name of your own, without the slash."""
    fixed: bool = False
    """Prevent the chat from choosing another agent with `/agent`."""

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


def is_server(value: str, schemes: Sequence[str]) -> bool:
    """Say whether ``value`` is the address of a server that may hold a password."""
    if not is_address(value, schemes):
        return False
    parts = urlsplit(value)
    # A raw "#", "?" or "/" in the password would end the address before its host.
    return "@" not in f"{parts.path}{parts.query}{parts.fragment}"


class Metrics(ConfigTable):
    """Prometheus metrics for processes without the HTTP API; others use `http.port`."""

    port: int = Field(default=0, ge=0, le=65535)
    """Port for `/metrics` and `/healthz` in a process with role channels; 0: off."""


class Telemetry(ConfigTable):
    """OpenTelemetry traces. They need the extra `otel`."""

    endpoint: HttpUrl = ""
    """URL of an OTLP collector over HTTP. If empty, the `OTEL_` variables apply."""
    sample: float = Field(default=1.0, ge=0, le=1)
    """Share of messages to trace, from 0 to 1."""


class WebFetch(ConfigTable):
    """The tool that reads web pages."""

    enabled: bool = False
    """Offer it in direct chats. For groups, add it to `tools.groups` as well."""
    max_kb: int = Field(default=512, ge=1)
    """Maximum size of a page after decompression, in kilobytes."""
    timeout_s: Seconds = 20.0
    """Time limit for a page including redirects and extraction, in seconds."""


class Shell(ConfigTable):
    """The tool that runs commands in a sandbox."""

    enabled: bool = False
    """Offer it in direct chats. For groups, add it to `tools.groups` as well."""
    network: bool = False
    """Let its commands use the network."""
    timeout_s: Seconds = 60.0
    """Time limit for a command, in seconds."""


class _Server(ConfigTable):
    """A server at an address that may hold a password: show ``shown_url`` instead of ``url``."""

    url: str

    @property
    def password(self) -> str:
        """The password within ``url``, decoded; empty where it has none."""
        return unquote(urlsplit(self.url).password or "")

    @property
    def shown_url(self) -> str:
        """``url`` with its password hidden."""
        return hide_password(self.url)


class State(_Server):
    """Where the gateway keeps what nobody is meant to read."""

    url: str = Field(default="", repr=False, json_schema_extra=_POSTGRES)
    """`postgresql://user:password@host:5432/database` instead of a file in the workspace. It needs
    [RabbitMQ](rabbitmq.md). Secret."""
    # What a schema can say of it.
    local_dir: str = Field(default="", json_schema_extra={"pattern": "^$|^[/~]"})
    """Absolute path of a local folder for search indexes, for when [several machines share the
    workspace](shared-folders.md). If empty, they are in the workspace."""

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
        if value and not is_server(value, ("postgresql", "postgres")):
            raise ValueError(
                'expected postgresql://user:password@host:5432/database, with "%23" for "#" and so on; '
                "empty: a file in the workspace"
            )
        return value


Decision = Literal["allow", "ask", "deny"]
Table = Mapping[str, Decision]


class Policy(ConfigTable):
    """Which tools may run: `allow`, `ask` or `deny`, by name or `*`. See docs/approvals.md."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Decision] = Field(init=False)

    approval_timeout_s: Seconds = 600.0
    """How long to wait for an approval, in seconds."""
    people: Mapping[str, Table] = Field(default_factory=dict)
    """For one person: `[tools.policy.people.ada]` or `."telegram:1"`."""
    chats: Mapping[str, Table] = Field(default_factory=dict, json_schema_extra=_named("^[^:]+:."))
    """For a chat and its topics: `[tools.policy.chats."telegram:-100123"]`."""
    channels: Mapping[str, Table] = Field(default_factory=dict)
    """For a channel: `[tools.policy.channels.discord]`."""

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


class Broker(_Server):
    """The message queue between the platforms and the model."""

    url: str = Field(default="embedded", repr=False, json_schema_extra=_BROKER)
    """`embedded`, or `amqp://user:password@host:5672/vhost` (`amqps://` for TLS). Secret."""
    partitions: int = Field(default=64, ge=1, le=256)
    """Number of inbound queues. It must be the same in all processes of a gateway."""
    queue_type: Literal["auto", "classic", "quorum"] = "auto"
    """`auto`: classic queues on a single node before RabbitMQ 4.0, otherwise quorum."""
    heartbeat_s: int = Field(default=10, ge=1, le=65_534)
    """Interval between AMQP heartbeats, in seconds."""
    name: str = Field(default="chat", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z")
    """Prefix for the names of all exchanges and queues."""
    ca_file: str = Field(default="", json_schema_extra=_PATH_OR_NONE)
    """Absolute path of a CA certificate for `amqps://`. If empty, the system's are used."""
    cert_file: str = Field(default="", json_schema_extra=_PATH_OR_NONE)
    """Client certificate, if the broker requires one."""
    key_file: str = Field(default="", json_schema_extra=_PATH_OR_NONE)
    """Key for the client certificate, if it is in a separate file."""

    @field_validator("url")
    @classmethod
    def _known_kind(cls, value: str) -> str:
        if value != "embedded" and not is_server(value, ("amqp", "amqps")):
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


class ModelSettings(ConfigTable):
    """The language model, called through LiteLLM."""

    name: str = Field(default="echo", min_length=1)
    """A LiteLLM model name. The built-in model `echo` only repeats each message."""
    echo_delay_s: Pause = 0.0
    """How long `echo` waits before it answers, in seconds."""
    api_base: HttpUrl = ""
    """Base URL of your own server, such as `http://127.0.0.1:8000/v1`."""
    api_key: SecretStr = SecretStr("")
    """API key. If empty, the provider's variable is used, such as `OPENAI_API_KEY`. Secret."""
    context_window: Amount = 0
    """Context window in tokens. 0: the value in LiteLLM's table, otherwise 128,000."""
    max_output_tokens: Count = 4096
    """Maximum length of an answer, in tokens."""
    timeout_s: Seconds = 120.0
    """How many seconds the model may be silent. An unstreamed answer must finish by then."""
    stream: Literal["auto", "always"] = "auto"
    """Stream answers only if someone can watch them being written (`auto`), or `always`."""
    max_tool_rounds: Count = 25
    """Maximum number of rounds of tool calls per turn."""
    fallbacks: Strings = ()
    """Models to try in turn if the previous one is unavailable or rejects the request."""
    takes: FileKinds = ()
    """Input other than text: `image`, `pdf`. If empty, LiteLLM's table or a trial decides."""
    cache: bool = True
    """Mark the stable part of each request for providers that cache only what is marked."""
    small: str = ""
    """Cheaper model for titles, summaries and memory. If empty, the main model is used."""
    embedding: str = ""
    """Model for mode `relevant`, facts and search: `openai/text-embedding-3-small`."""

    _sound_key = field_validator("api_key")(sound_secret)


class LimitsSettings(ConfigTable):
    """Concurrency, rates, time-outs and spending caps. For rates and caps, 0 means no limit."""

    concurrent_turns: Count = 64
    """Maximum number of turns that one process runs at the same time."""
    turn_timeout_s: Seconds = 600.0
    """Time limit for one turn including its tools, in seconds."""
    pending_per_chat: Count = 50
    """If more messages wait in a chat, it gets one notice. No message is lost."""
    flood_per_chat: Count = 5000
    """If more messages wait in a chat, further ones are rejected."""
    model_tries: Count = 5
    """Failed model requests after which a message is parked. Outages do not count."""
    attempts: Count = 3
    """Crashes while answering a message after which it is parked."""
    outage_hours: Pause = 24.0
    """How many hours messages wait for an unavailable model before they are parked."""
    drain_s: Pause = 25.0
    """How many seconds running turns may continue at shutdown."""
    turns_per_person_per_hour: Amount = 0
    """Maximum number of turns per person and hour."""
    cost_per_day_usd: Pause = 0.0
    """Spending cap per day (UTC), in US dollars, checked before each request."""
    background_calls_per_hour: Amount = 60
    """Maximum requests per hour for summaries, titles, memory and facts."""
    background_calls_per_day: Amount = 500
    """Maximum such requests per day."""
    queue_mode: QueueMode = "followup"
    """What happens to messages that arrive during an answer. See docs/queue-modes.md."""
    collect_s: Pause = 0.5
    """How many seconds mode `collect` waits for further messages."""
    workers: Amount = 1
    """Number of worker processes (needs RabbitMQ); 0: one per core. See docs/workers.md."""
    worker_timeout_s: Seconds = 30.0
    """How many seconds a worker may be unresponsive before it is restarted."""
    cost_per_chat_per_day_usd: Pause = 0.0
    """Spending cap per chat and day (UTC), in US dollars."""
    cost_per_person_per_day_usd: Pause = 0.0
    """Spending cap per person and day (UTC), in US dollars."""
    cost_per_job_per_day_usd: Pause = 0.0
    """Spending cap per scheduled job and day (UTC), in US dollars."""
    tokens_per_day: Amount = 0
    """Maximum number of tokens for all requests per day (UTC)."""


class SessionSettings(ConfigTable):
    """When sessions end and how long they are kept."""

    idle_hours: Pause = 0.0
    """After this many idle hours, the next message starts a new session; 0: never."""
    recent_sessions: Amount = 3
    """Number of earlier sessions from the chat whose summaries the model gets."""
    recent_days: Pause = 14.0
    """Maximum age of the newest message in those sessions, in days."""
    retention_days: Pause = 0.0
    """Age in days at which to delete closed sessions and archive idle ones; 0: never."""
    cache_mb: Count = 256
    """Memory for recently used sessions, in megabytes."""


class History(ConfigTable):
    """Which messages from a session are sent with a request."""

    mode: Literal["all", "last", "relevant"] = "all"
    """Send all messages, the newest ones, or the most relevant ones."""
    changing_parts: Literal["end", "system"] = "end"
    """Put time, chat and playbooks into the newest message (`end`) or system prompt."""
    last: Count = 50
    """Mode `last`: maximum number of messages."""
    budget_tokens: Count = 50000
    """Mode `last`: maximum number of tokens."""
    candidates: Count = 30
    """Mode `relevant`: number of older messages that are compared with the new one."""
    exchanges_always: Amount = 3
    """Mode `relevant`: number of newest exchanges that are always sent."""
    max_messages: Amount = 20
    """Mode `relevant`: maximum number of messages."""
    relevance: float = Field(default=0.45, ge=-1, le=1)
    """Mode `relevant`: minimum similarity for an older exchange to be sent."""
    full_tool_results: Amount = 2
    """Number of newest tool results that are sent in full."""


class Compaction(ConfigTable):
    """How a session that grows too long is summarised. The preset sets the defaults."""

    preset: Preset = "overlay"
    """Compaction method. Each key below overrides one of its defaults."""
    threshold: float | None = Field(default=None, gt=0, le=1)
    """`archive`, `budget`: share of the window or budget at which compaction starts."""
    reserve_tokens: int | None = Field(default=None, ge=0)
    """`overlay`: number of tokens in the window to keep free."""
    keep_recent_tokens: int | None = Field(default=None, ge=0)
    """`overlay`, `budget`: number of tokens of the newest messages to keep."""
    keep_recent_turns: int | None = Field(default=None, ge=0)
    """`annabelle`: number of newest turns to keep."""
    max_chars: int | None = Field(default=None, ge=1)
    """`annabelle`: number of characters at which compaction starts."""
    min_turns: int | None = Field(default=None, ge=0)
    """`annabelle`: minimum number of turns before compaction starts."""
    cooldown_s: float | None = Field(default=None, ge=0, le=MOST)
    """Pause after a failure, in seconds. `annabelle` also pauses after a success."""
    timeout_s: float | None = Field(default=None, gt=0, le=MOST)
    """Time limit for one summary request, in seconds."""
    chars_per_token: float | None = Field(default=None, gt=0)
    """Characters per token, to estimate what the provider did not count."""


class MemorySettings(ConfigTable):
    """What is remembered beyond a session."""

    scope: Literal["chat", "workspace"] = "chat"
    """Keep one memory per chat (`chat`) or one for the whole workspace (`workspace`)."""
    window: int = Field(default=100, ge=2)
    """Number of messages at which the older half is moved into memory."""
    max_kb: Count = 32
    """Maximum size of `MEMORY.md`, in kilobytes."""
    profile_max_kb: Count = 8
    """Maximum size of `USER.md` when the tool `profile` writes it, in kilobytes."""
    versions: Amount = 50
    """Number of earlier versions of `MEMORY.md`, `USER.md` and facts to keep; 0: none."""
    version_days: Pause = 90.0
    """Number of days to keep these versions; 0: none are kept."""


class Tools(ConfigTable):
    """Tools offered to the model."""

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
    """Tools in direct chats."""
    groups: Strings = ("skill_read", "memory_search", "session_archive_read")
    """Tools in groups."""
    policy: Policy = Policy()
    web_fetch: WebFetch = WebFetch()
    shell: Shell = Shell()


class AgentTable(ConfigTable):
    """``[agents.<name>]``: what its tables leave out is as in the sections of the same names."""

    description: str = ""
    """Description that `/agent` shows."""
    persona: str = ""
    """Persona. If empty, the agent uses the one in its folder, or else the workspace's."""
    choosable: bool = True
    """Let chats choose this agent with `/agent`. If false, only bindings can use it."""
    model: ModelSettings = ModelSettings()
    tools: Tools = Tools()
    memory: MemorySettings = MemorySettings()
    compaction: Compaction = Compaction()


class Facts(ConfigTable):
    """Individual facts, extracted from conversations."""

    enabled: bool = True
    """Extract facts and send them to the model."""
    idle_s: Pause = 300.0
    """How many seconds after the last message facts are extracted."""
    max_turns: Count = 10
    """Number of newest turns from which facts are extracted."""
    confidence: Share = 0.7
    """Minimum confidence that the model must have in a fact, from 0 to 1."""


class Channels(ConfigTable):
    """The chat platforms."""

    telegram: TelegramTable = TelegramTable()
    discord: DiscordTable = DiscordTable()
    web: Web = Web()


class MediaSettings(ConfigTable):
    """Files that people send."""

    max_mb: Count = 20
    """Maximum size of a file, in megabytes."""
    timeout_s: Seconds = 60.0
    """Time limit for a download, in seconds."""


class Http(ConfigTable):
    """The web console and HTTP API."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Address to listen on. Any address other than loopback requires a token."""
    port: int = Field(default=8006, ge=0, le=65535)
    """Port to listen on; 0 picks a free port."""
    token: SecretStr = Field(default=SecretStr(""), validate_default=True)
    """API token with all rights. Beyond loopback: at least 16 characters, 8 of them different."""
    allowed_hosts: Strings = ()
    """Host names to accept in addition to `localhost` and `127.0.0.1`."""
    requests_per_minute: Amount = 0
    """Maximum number of requests per token and minute; more get 429. 0: no limit."""

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
    """The log, which is written to stderr."""

    format: Literal["auto", "console", "json"] = "auto"
    """`auto` writes readable lines on a terminal, otherwise JSON."""
    level: Literal["debug", "info", "warning", "error", "critical"] = "info"
    """Lowest level that is logged."""


class Settings(ConfigTable):
    """The whole configuration."""

    workspace: Path = Field(json_schema_extra={"minLength": 1})
    """Folder for all data. A relative path starts at the folder of this file."""
    timezone: str = "UTC"
    """Time zone for everything shown, stored or sent to the model, such as `Europe/Berlin`."""
    broker: Broker = Broker()
    model: ModelSettings = ModelSettings()
    limits: LimitsSettings = LimitsSettings()
    session: SessionSettings = SessionSettings()
    history: History = History()
    compaction: Compaction = Compaction()
    memory: MemorySettings = MemorySettings()
    people: Mapping[str, Strings] = Field(default_factory=dict, json_schema_extra=_PEOPLE)
    """Direct chats that belong to one person and share memory: `ada = ["telegram:1", "discord:2"]`."""
    tools: Tools = Tools()
    facts: Facts = Facts()
    channels: Channels = Channels()
    media: MediaSettings = MediaSettings()
    http: Http = Http()
    mcp: Mapping[str, McpServer] = Field(
        default_factory=dict, json_schema_extra=_named("^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")
    )
    """One `[mcp.NAME]` table per server, with `command` or `url`. See [Tools](tools.md#mcp-servers)."""
    agents: Mapping[str, AgentTable] = Field(
        default_factory=dict,
        json_schema_extra=_named("^[a-z][a-z0-9_-]{0,31}$", **{"not": {"const": "default"}}),
    )
    """One `[agents.NAME]` table per agent: its persona, model, tools and memory. See [Agents](agents.md)."""
    bindings: Bindings = ()
    """Which chat talks to [which agent](agents.md#who-talks-to-whom)."""
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
