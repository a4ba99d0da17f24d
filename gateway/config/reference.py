"""What each key of the configuration means, in words and as a JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from gateway.config.schema import ADDRESSES

NOT_BUILT = "Not implemented yet: no effect."

# One entry for each key and each table, by its path; a page, an example file and editors show them.
# The tables of an agent have the keys of the sections of the same names, and mean what those mean.
AGENT: Final = "agents.*."
WORDS: Mapping[str, str] = {
    "workspace": "Folder for all data. A relative path starts at the folder of this file.",
    "timezone": "Time zone for everything shown, stored or sent to the model, such as `Europe/Berlin`.",
    "broker": "The message queue between the platforms and the model.",
    "broker.url": "`embedded`, or `amqp://user:password@host:5672/vhost` (`amqps://` for TLS). Secret.",
    "broker.partitions": "Number of inbound queues. It must be the same in all processes of a gateway.",
    "broker.queue_type": "`auto`: classic queues on a single node before RabbitMQ 4.0, otherwise quorum.",
    "broker.heartbeat_s": "Interval between AMQP heartbeats, in seconds.",
    "broker.name": "Prefix for the names of all exchanges and queues.",
    "broker.ca_file": "Absolute path of a CA certificate for `amqps://`. If empty, the system's are used.",
    "broker.cert_file": "Client certificate, if the broker requires one.",
    "broker.key_file": "Key for the client certificate, if it is in a separate file.",
    "model": "The language model, called through LiteLLM.",
    "model.name": "A LiteLLM model name. The built-in model `echo` only repeats each message.",
    "model.echo_delay_s": "How long `echo` waits before it answers, in seconds.",
    "model.api_base": "Base URL of your own server, such as `http://127.0.0.1:8000/v1`.",
    "model.api_key": "API key. If empty, the provider's variable is used, such as `OPENAI_API_KEY`. Secret.",
    "model.context_window": "Context window in tokens. 0: the value in LiteLLM's table, otherwise 128,000.",
    "model.max_output_tokens": "Maximum length of an answer, in tokens.",
    "model.timeout_s": "How many seconds the model may be silent. An unstreamed answer must finish by then.",
    "model.stream": "Stream answers only if someone can watch them being written (`auto`), or `always`.",
    "model.max_tool_rounds": "Maximum number of rounds of tool calls per turn.",
    "model.fallbacks": "Models to try in turn if the previous one is unavailable or rejects the request.",
    "model.takes": "Input other than text: `image`, `pdf`. If empty, LiteLLM's table or a trial decides.",
    "model.cache": "Mark the stable part of each request for providers that cache only what is marked.",
    "model.small": "Cheaper model for titles, summaries and memory. If empty, the main model is used.",
    "model.embedding": "Model for mode `relevant`, facts and search: `openai/text-embedding-3-small`.",
    "limits": "Concurrency, rates, time-outs and spending caps. For rates and caps, 0 means no limit.",
    "limits.concurrent_turns": "Maximum number of turns that one process runs at the same time.",
    "limits.turn_timeout_s": "Time limit for one turn including its tools, in seconds.",
    "limits.pending_per_chat": "If more messages wait in a chat, it gets one notice. No message is lost.",
    "limits.flood_per_chat": "If more messages wait in a chat, further ones are rejected.",
    "limits.model_tries": "Failed model requests after which a message is parked. Outages do not count.",
    "limits.attempts": "Crashes while answering a message after which it is parked.",
    "limits.outage_hours": "How many hours messages wait for an unavailable model before they are parked.",
    "limits.drain_s": "How many seconds running turns may continue at shutdown.",
    "limits.turns_per_person_per_hour": "Maximum number of turns per person and hour.",
    "limits.cost_per_day_usd": "Spending cap per day (UTC), in US dollars, checked before each request.",
    "limits.background_calls_per_hour": "Maximum requests per hour for summaries, titles, memory and facts.",
    "limits.background_calls_per_day": "Maximum such requests per day.",
    "limits.queue_mode": "What happens to messages that arrive during an answer. See docs/queue-modes.md.",
    "limits.collect_s": "How many seconds mode `collect` waits for further messages.",
    "limits.workers": "Number of worker processes (needs RabbitMQ); 0: one per core. See docs/workers.md.",
    "limits.worker_timeout_s": "How many seconds a worker may be unresponsive before it is restarted.",
    "limits.cost_per_chat_per_day_usd": "Spending cap per chat and day (UTC), in US dollars.",
    "limits.cost_per_person_per_day_usd": "Spending cap per person and day (UTC), in US dollars.",
    "limits.cost_per_job_per_day_usd": "Spending cap per scheduled job and day (UTC), in US dollars.",
    "limits.tokens_per_day": "Maximum number of tokens for all requests per day (UTC).",
    "session": "When sessions end and how long they are kept.",
    "session.idle_hours": "After this many idle hours, the next message starts a new session; 0: never.",
    "session.recent_sessions": "Number of earlier sessions from the chat whose summaries the model gets.",
    "session.recent_days": "Maximum age of the newest message in those sessions, in days.",
    "session.retention_days": "Age in days at which to delete closed sessions and archive idle ones; 0: "
    "never.",
    "session.cache_mb": "Memory for recently used sessions, in megabytes.",
    "history": "Which messages from a session are sent with a request.",
    "history.mode": "Send all messages, the newest ones, or the most relevant ones.",
    "history.changing_parts": "Put time, chat and playbooks into the newest message (`end`) or system "
    "prompt.",
    "history.last": "Mode `last`: maximum number of messages.",
    "history.budget_tokens": "Mode `last`: maximum number of tokens.",
    "history.candidates": "Mode `relevant`: number of older messages that are compared with the new one.",
    "history.exchanges_always": "Mode `relevant`: number of newest exchanges that are always sent.",
    "history.max_messages": "Mode `relevant`: maximum number of messages.",
    "history.relevance": "Mode `relevant`: minimum similarity for an older exchange to be sent.",
    "history.full_tool_results": "Number of newest tool results that are sent in full.",
    "compaction": "How a session that grows too long is summarised. The preset sets the defaults.",
    "compaction.preset": "Compaction method. Each key below overrides one of its defaults.",
    "compaction.threshold": "`archive`, `budget`: share of the window or budget at which compaction starts.",
    "compaction.reserve_tokens": "`overlay`: number of tokens in the window to keep free.",
    "compaction.keep_recent_tokens": "`overlay`, `budget`: number of tokens of the newest messages to keep.",
    "compaction.keep_recent_turns": "`annabelle`: number of newest turns to keep.",
    "compaction.max_chars": "`annabelle`: number of characters at which compaction starts.",
    "compaction.min_turns": "`annabelle`: minimum number of turns before compaction starts.",
    "compaction.cooldown_s": "Pause after a failure, in seconds. `annabelle` also pauses after a success.",
    "compaction.timeout_s": "Time limit for one summary request, in seconds.",
    "compaction.chars_per_token": "Characters per token, to estimate what the provider did not count.",
    "memory": "What is remembered beyond a session.",
    "memory.scope": "Keep one memory per chat (`chat`) or one for the whole workspace (`workspace`).",
    "memory.window": "Number of messages at which the older half is moved into memory.",
    "memory.max_kb": "Maximum size of `MEMORY.md`, in kilobytes.",
    "memory.profile_max_kb": "Maximum size of `USER.md` when the tool `profile` writes it, in kilobytes.",
    "memory.versions": "Number of earlier versions of `MEMORY.md`, `USER.md` and facts to keep; 0: none.",
    "memory.version_days": "Number of days to keep these versions; 0: none are kept.",
    "people": 'Direct chats that belong to one person and share memory: `ada = ["telegram:1", "discord:2"]`.',
    "tools": "Tools offered to the model.",
    "tools.direct": "Tools in direct chats.",
    "tools.groups": "Tools in groups.",
    "tools.policy": "Which tools may run: `allow`, `ask` or `deny`, by name or `*`. See docs/approvals.md.",
    "tools.policy.approval_timeout_s": "How long to wait for an approval, in seconds.",
    "tools.policy.people": 'For one person: `[tools.policy.people.ada]` or `."telegram:1"`.',
    "tools.policy.chats": 'For a chat and its topics: `[tools.policy.chats."telegram:-100123"]`.',
    "tools.policy.channels": "For a channel: `[tools.policy.channels.discord]`.",
    "tools.web_fetch": "The tool that reads web pages.",
    "tools.web_fetch.enabled": "Offer it in direct chats. For groups, add it to `tools.groups` as well.",
    "tools.web_fetch.max_kb": "Maximum size of a page after decompression, in kilobytes.",
    "tools.web_fetch.timeout_s": "Time limit for a page including redirects and extraction, in seconds.",
    "tools.shell": "The tool that runs commands in a sandbox.",
    "tools.shell.enabled": "Offer it in direct chats. For groups, add it to `tools.groups` as well.",
    "tools.shell.network": "Let its commands use the network.",
    "tools.shell.timeout_s": "Time limit for a command, in seconds.",
    "mcp": "One `[mcp.NAME]` table per server, with `command` or `url`. See [Tools](tools.md#mcp-servers).",
    "mcp.*.command": "Program and arguments of a stdio server, as a list.",
    "mcp.*.url": "URL of an HTTP server.",
    "mcp.*.headers_file": "File with HTTP headers for `url`, one per line; for example, to send a token.",
    "mcp.*.env": "Additional environment variables for the program. Secret.",
    "mcp.*.network": "Let the program use the network.",
    "mcp.*.readable": "Files and folders that the program may read, as absolute paths.",
    "mcp.*.channels": "Channels or chats that get its tools. If empty, all chats except groups.",
    "mcp.*.people": "People from `[people]` who get its tools. If empty, everyone.",
    "mcp.*.repeatable": "Tools that may run again after a crash.",
    "mcp.*.trusted": "Trust what the server says about its tools, such as that a tool is read-only.",
    "mcp.*.timeout_s": "Time limit for one call, in seconds.",
    "agents": "One `[agents.NAME]` table per agent: its persona, model, tools and memory. See "
    "[Agents](agents.md).",
    "agents.*.description": "Description that `/agent` shows.",
    "agents.*.persona": "Persona. If empty, the agent uses the one in its folder, or else the workspace's.",
    "agents.*.choosable": "Let chats choose this agent with `/agent`. If false, only bindings can use it.",
    "bindings": "Which chat talks to [which agent](agents.md#who-talks-to-whom).",
    "bindings.*.agent": "Name of the agent. `default` is the one without a table.",
    "bindings.*.channel": "A channel, such as `discord`.",
    "bindings.*.chat": "The key of a chat.",
    "bindings.*.topic": "The key of a topic in a group.",
    "bindings.*.person": "A person from `[people]`.",
    "bindings.*.command": "A command name of your own, without the slash.",
    "bindings.*.fixed": "Prevent the chat from choosing another agent with `/agent`.",
    "state": "Where the gateway keeps what nobody is meant to read.",
    "state.url": "`postgresql://user:password@host:5432/database` instead of a file in the workspace. "
    "It needs [RabbitMQ](rabbitmq.md). Secret.",
    "state.local_dir": "Absolute path of a local folder for search indexes, for when [several "
    "machines share the workspace](shared-folders.md). If empty, they are in the workspace.",
    "facts": "Individual facts, extracted from conversations.",
    "facts.enabled": "Extract facts and send them to the model.",
    "facts.idle_s": "How many seconds after the last message facts are extracted.",
    "facts.max_turns": "Number of newest turns from which facts are extracted.",
    "facts.confidence": "Minimum confidence that the model must have in a fact, from 0 to 1.",
    "channels": "The chat platforms.",
    "channels.telegram": "A Telegram bot.",
    "channels.telegram.enabled": "Start this bot.",
    "channels.telegram.token": "Bot token from @BotFather. Secret.",
    "channels.telegram.request_timeout_s": "Time limit for one request to Telegram, in seconds.",
    "channels.telegram.allow_from": "Ids of people who may use the bot; `*` allows everyone.",
    "channels.telegram.direct": "What strangers get: a pairing code, nothing, or answers.",
    "channels.telegram.groups": "When to answer in groups: when mentioned, always, or never.",
    "channels.telegram.group_allow": "Ids of groups in which the bot answers; `*` allows all groups.",
    "channels.telegram.stream": "Show answers while they are written, by editing a message.",
    "channels.telegram.queue_mode": "Queue mode for this channel. If empty, `limits.queue_mode` applies.",
    "channels.telegram.base_url": "URL of the Bot API; change it to use your own server.",
    "channels.telegram.base_file_url": "URL from which the Bot API serves files.",
    "channels.telegram.poll_timeout_s": "Time-out for long polling, in seconds.",
    "channels.discord": "A Discord bot.",
    "channels.discord.enabled": "Start this bot.",
    "channels.discord.token": "Bot token from Discord's developer portal. Secret.",
    "channels.discord.request_timeout_s": "Time limit for one request to Discord, in seconds.",
    "channels.discord.allow_from": "Ids of people who may use the bot; `*` allows everyone.",
    "channels.discord.direct": "What strangers get: a pairing code, nothing, or answers.",
    "channels.discord.groups": "When to answer on servers: when mentioned, always, or never.",
    "channels.discord.group_allow": "Ids of servers or channels in which the bot answers; `*` allows all.",
    "channels.discord.stream": "Show answers while they are written, by editing a message.",
    "channels.discord.queue_mode": "Queue mode for this channel. If empty, `limits.queue_mode` applies.",
    "channels.discord.api_base_url": "URL of Discord's API.",
    "channels.discord.gateway_url": "URL of Discord's gateway. If empty, the one that Discord announces.",
    "channels.discord.cdn_base_url": "URL of Discord's CDN. If empty, the one that Discord announces.",
    "channels.discord.heartbeat_timeout_s": "How long Discord's gateway may be silent, in seconds.",
    "channels.discord.sweep_s": "Interval between searches for missed messages, in seconds.",
    "channels.web": "The web console and HTTP API as a channel.",
    "channels.web.enabled": f"Enable it. {NOT_BUILT}",
    "media": "Files that people send.",
    "media.max_mb": "Maximum size of a file, in megabytes.",
    "media.timeout_s": "Time limit for a download, in seconds.",
    "http": "The web console and HTTP API.",
    "http.host": "Address to listen on. Any address other than loopback requires a token.",
    "http.port": "Port to listen on; 0 picks a free port.",
    "http.token": "API token with all rights. Beyond loopback: at least 16 characters, 8 of them different.",
    "http.allowed_hosts": "Host names to accept in addition to `localhost` and `127.0.0.1`.",
    "http.requests_per_minute": "Maximum number of requests per token and minute; more get 429. 0: no limit.",
    "metrics": "Prometheus metrics for processes without the HTTP API; others use `http.port`.",
    "metrics.port": "Port for `/metrics` and `/healthz` in a process with role channels; 0: off.",
    "telemetry": "OpenTelemetry traces. They need the extra `otel`.",
    "telemetry.endpoint": "URL of an OTLP collector over HTTP. If empty, the `OTEL_` variables apply.",
    "telemetry.sample": "Share of messages to trace, from 0 to 1.",
    "log": "The log, which is written to stderr.",
    "log.format": "`auto` writes readable lines on a terminal, otherwise JSON.",
    "log.level": "Lowest level that is logged.",
}

_PATH_OR_NONE = {"pattern": "^(/|$)"}
_NOT_EMPTY = {"minLength": 1}
_KEYS_OF_CHATS = {"propertyNames": {"pattern": "^[^:]+:."}}
# What the checks of the code ask of a text or of a name, where a regular expression can say it: for no value
# that they take may it be stricter. By the path of the key, as above.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "workspace": _NOT_EMPTY,
    "broker.url": {"pattern": r"^(embedded$|[aA][mM][qQ][pP][sS]?://[^/?#])"},
    "state.url": {"pattern": r"^($|[pP][oO][sS][tT][gG][rR][eE][sS]([qQ][lL])?://[^/?#])"},
    "broker.ca_file": _PATH_OR_NONE,
    "broker.cert_file": _PATH_OR_NONE,
    "broker.key_file": _PATH_OR_NONE,
    "people": {
        "additionalProperties": {
            "type": "array",
            "items": {"type": "string", "pattern": r"^[a-z][a-z0-9_]{0,31}:\S+$"},
        }
    },
    "tools.policy.chats": _KEYS_OF_CHATS,
    "mcp": {"propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$"}},
    "mcp.*.readable": {"items": {"type": "string", "pattern": "^/"}},
    "agents": {"propertyNames": {"pattern": "^[a-z][a-z0-9_-]{0,31}$", "not": {"const": "default"}}},
    "bindings.*.command": {"pattern": "^([a-z][a-z0-9_]{0,31})?$"},
    "channels.telegram.base_url": _NOT_EMPTY,
    "channels.telegram.base_file_url": _NOT_EMPTY,
    "channels.discord.api_base_url": _NOT_EMPTY,
}
# Of a secret, which a header has to carry.
_WITHOUT_SPACES: Final = "^[!-~]*$"
# One model compares the texts of all agents.
_REFUSED: Final = ("agents.*.model.embedding",)


def json_schema(settings: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a configuration file, as editors of TOML take it.

    Each key has its default, its range and its words, with the unit of a number; each secret may also be
    given as a file's name. It needs nothing of a later draft than 7, which is as far as some editors go.
    """
    schema = settings.model_json_schema()
    tables = schema.pop("$defs", {})
    # Every key has a default, the workspace too, though its model asks for one.
    schema.pop("required", None)
    inlined = _inlined(schema, tables, ())
    inlined["properties"]["workspace"]["default"] = "~/.chat-gateway"
    # In a file the keys at the top stand before the first table.
    inlined["properties"] = dict(sorted(inlined["properties"].items(), key=lambda each: is_table(each[1])))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **inlined, "title": "chat-gateway"}


def _inlined(table: dict[str, Any], tables: Mapping[str, Any], above: tuple[str, ...]) -> dict[str, Any]:
    """Put each table in the place of its name, and our words in that of the code's."""
    more = table.get("additionalProperties", False)
    found: dict[str, Any] = {"type": "object", "additionalProperties": more, "properties": {}}
    if "required" in table:
        found["required"] = table["required"]
    for name, value in table["properties"].items():
        path = (*above, name)
        entry = _plain(value)
        if "$ref" in entry:
            entry = _inlined(tables[entry["$ref"].rpartition("/")[2]], tables, path)
        elif "$ref" in str(entry.get("items")):
            one = entry["items"]["$ref"].rpartition("/")[2]
            entry["items"] = _inlined(tables[one], tables, (*path, "*"))
        elif "$ref" in str(entry.get("additionalProperties")):
            one = entry["additionalProperties"]["$ref"].rpartition("/")[2]
            entry["additionalProperties"] = _inlined(tables[one], tables, (*path, "*"))
        dotted = ".".join(path)
        if dotted in _REFUSED:
            continue
        entry |= SHAPES.get(dotted) or SHAPES.get(dotted.removeprefix(AGENT), {})
        if entry.get("writeOnly"):
            entry["pattern"] = _WITHOUT_SPACES
        words = _words(dotted)
        found["properties"][name] = entry | ({"description": words} if words else {})
        if entry.get("writeOnly") or path in ADDRESSES:
            file = f"File that contains `{name}`."
            found["properties"][f"{name}_file"] = {"type": "string", "description": file}
    return found


def _words(name: str) -> str:
    return WORDS.get(name, "") or WORDS.get(name.removeprefix(AGENT), "")


def _plain(entry: dict[str, Any]) -> dict[str, Any]:
    """Leave out what TOML has no use for: null, and titles made of names."""
    kept = {name: value for name, value in entry.items() if name not in ("title", "anyOf")}
    for choice in entry.get("anyOf", ()):
        if choice.get("type") != "null":
            kept |= choice
    if kept.get("default", ...) is None:
        del kept["default"]
    if "pattern" in kept:
        # Python's end of text; in the regular expressions of JSON Schema it would be the letter.
        kept["pattern"] = kept["pattern"].replace(r"\Z", "$")
    return kept


def is_table(entry: Mapping[str, Any]) -> bool:
    """Say whether a schema is that of a table."""
    return entry.get("type") == "object"


def keys(schema: Mapping[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every table and key of a schema with its dotted name, a table before its keys.

    A table whose name people choose is ``*``, and so is one of a list: ``mcp.*.url``, ``bindings.*.agent``.
    """
    for name, entry in schema["properties"].items():
        path = (*above, name)
        yield ".".join(path), entry
        chosen = entry.get("additionalProperties") or entry.get("items")
        if "properties" in entry:
            yield from keys(entry, path)
        elif isinstance(chosen, dict) and "properties" in chosen:
            yield from keys(chosen, (*path, "*"))
