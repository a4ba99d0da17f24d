"""What each key of the configuration means, in words and as a JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

NOT_BUILT = "Not built yet: it changes nothing."

# One entry for each key and each table, by its path; a page, an example file and editors show them.
# The tables of an agent have the keys of the sections of the same names, and mean what those mean.
AGENT: Final = "agents.*."
WORDS: Mapping[str, str] = {
    "workspace": "The folder of everything that is kept; relative to this file's folder.",
    "timezone": "The zone of times that are shown, stored and told to the model; any IANA name.",
    "broker": "The queue between the platforms and the conversations.",
    "broker.url": "`embedded`, or `amqp://user:password@host:5672/vhost` (`amqps://` with TLS). A secret.",
    "broker.partitions": "How many inbound queues there are; the same in every process of a gateway.",
    "broker.queue_type": "`auto`: classic on a single node before RabbitMQ 4.0, else quorum.",
    "broker.heartbeat_s": "How often broker and gateway show each other that they live.",
    "broker.name": "The first part of the name of each exchange and queue.",
    "broker.ca_file": "With `amqps://`: whom to trust (a whole path); empty: whom the machine trusts.",
    "broker.cert_file": "The certificate of this process, where the broker asks for one.",
    "broker.key_file": "Its key, where that is not in the same file.",
    "model": "The model that answers, asked through LiteLLM.",
    "model.name": "Any model that LiteLLM knows; `echo` is built in and repeats what it is told.",
    "model.echo_delay_s": "How long `echo` takes.",
    "model.api_base": "The address of a server of your own, such as `http://127.0.0.1:8000/v1`.",
    "model.api_key": "The provider's key; without one its own variable, such as `OPENAI_API_KEY`. A secret.",
    "model.context_window": "How many tokens the model takes; 0: as the tables know it, else 128,000.",
    "model.max_output_tokens": "How long an answer may be.",
    "model.timeout_s": "How long one request may take.",
    "model.stream": "When answers come as streams: `auto`: where somebody reads along, or `always`.",
    "model.max_tool_rounds": "How often the model may call tools within one turn.",
    "model.fallbacks": "Models that are asked, in this order, when the one before is away or refuses.",
    "model.takes": "What the model reads beyond text: `image`, `pdf`; empty: LiteLLM's table, else tried.",
    "model.cache": "Mark the part of a request that stays the same, for providers that cache nothing else.",
    "model.small": "A cheaper model for names, summaries and consolidation; empty: the same.",
    "model.embedding": "For vectors (`relevant`, facts, searches), such as `openai/text-embedding-3-small`.",
    "limits": "How much is done at once, how often, and at what price; 0 lifts a limit per hour or day.",
    "limits.concurrent_turns": "Turns that one process works on at once.",
    "limits.turn_timeout_s": "How long a turn may take, its tools included.",
    "limits.pending_per_chat": "Waiting messages beyond which a chat is told so, once. None is refused.",
    "limits.flood_per_chat": "Waiting messages of a chat beyond which each further one ends in a notice.",
    "limits.model_tries": "How often the model fails on a message before it is parked. Outages do not count.",
    "limits.attempts": "How often a message is begun that never came to an end, before it is parked.",
    "limits.outage_hours": "How long messages wait for a model that is away, before they are parked.",
    "limits.drain_s": "How long running turns have when the gateway is told to end.",
    "limits.turns_per_person_per_hour": "Turns of one person within an hour.",
    "limits.cost_per_day_usd": "What all requests of a day may cost; held before each one, as the next four.",
    "limits.background_calls_per_hour": "Requests for summaries, names, notes and facts within an hour.",
    "limits.background_calls_per_day": "The same within a day.",
    "limits.queue_mode": "What a message does that comes while others wait or run: docs/queue-modes.md.",
    "limits.collect_s": "How many seconds mode `collect` waits for another message before it begins.",
    "limits.workers": "Processes for conversations, over RabbitMQ alone; 0: one a core. See docs/workers.md.",
    "limits.worker_timeout_s": "How long the loop of one may stand still before it is started anew.",
    "limits.cost_per_chat_per_day_usd": "What the requests of one chat may cost in a day (UTC).",
    "limits.cost_per_person_per_day_usd": "What those for one person may cost in a day.",
    "limits.cost_per_job_per_day_usd": "What those of one cron job may cost in a day.",
    "limits.tokens_per_day": "How many tokens all requests of a day may take.",
    "session": "Where conversations begin and end, and how long they are kept.",
    "session.idle_hours": "A conversation that was silent so long ends at the next message; 0: never.",
    "session.recent_sessions": "How many former conversations of a chat the model is told of.",
    "session.recent_days": "How old the youngest message of those may be.",
    "session.retention_days": "Ended ones older than this are deleted, idle ones archived; 0: never.",
    "session.cache_mb": "Memory for conversations that were used lately.",
    "history": "Which messages of a conversation are sent with a request.",
    "history.mode": "All, the newest ones, or those that are near to the new message.",
    "history.changing_parts": "Whether time, chat and playbooks stand in the newest message (`end`).",
    "history.last": "Mode `last`: how many messages at most.",
    "history.budget_tokens": "Mode `last`: how many tokens at most.",
    "history.candidates": "Mode `relevant`: how many older messages are compared.",
    "history.exchanges_always": "Mode `relevant`: how many of the newest exchanges are always sent.",
    "history.max_messages": "Mode `relevant`: how many messages at most.",
    "history.relevance": "Mode `relevant`: the least similarity of an older exchange.",
    "history.full_tool_results": "How many of the newest tool results are sent whole.",
    "compaction": "How a conversation that grows too long is summed up; the preset sets the numbers.",
    "compaction.preset": "A way to compact, with numbers of its own; each key below replaces one of them.",
    "compaction.threshold": "`archive`, `budget`: the part of the window or budget that starts it.",
    "compaction.reserve_tokens": "`overlay`: what stays free of the window.",
    "compaction.keep_recent_tokens": "`overlay`, `budget`: how much of the newest messages stays.",
    "compaction.keep_recent_turns": "`annabelle`: how many of the newest turns stay.",
    "compaction.max_chars": "`annabelle`: how many characters start it.",
    "compaction.min_turns": "`annabelle`: how many turns there are at least.",
    "compaction.cooldown_s": "How long none is tried after a failure; `annabelle`: nor after a success.",
    "compaction.timeout_s": "How long one request for a summary may take.",
    "compaction.chars_per_token": "How many characters count as a token where the provider did not count.",
    "memory": "What is remembered beyond a conversation.",
    "memory.scope": "Whether each chat has a memory of its own, or the whole workspace one.",
    "memory.window": "How many messages start a consolidation; the newer half of them stays.",
    "memory.max_kb": "How large `MEMORY.md` may become.",
    "memory.profile_max_kb": "How large `USER.md` may become by the tool `profile`.",
    "memory.versions": "How many former ones of `MEMORY.md`, of `USER.md` and of facts are kept; 0: none.",
    "memory.version_days": "How many days they are kept; 0: none is.",
    "people": 'The direct chats of one person, which share memory: `ada = ["telegram:1", "discord:2"]`.',
    "tools": "Which tools a model may use.",
    "tools.direct": "In direct chats.",
    "tools.groups": "In groups.",
    "tools.policy": "Which tool may run: `allow`, `ask` or `deny`, by its name or `*`: docs/approvals.md.",
    "tools.policy.approval_timeout_s": "How long an approval is waited for.",
    "tools.policy.people": 'The same for one person: `[tools.policy.people.ada]`, or `."telegram:1"`.',
    "tools.policy.chats": 'The same for a chat, its topics too: `[tools.policy.chats."telegram:-100123"]`.',
    "tools.policy.channels": "The same for a channel: `[tools.policy.channels.discord]`.",
    "tools.web_fetch": "The tool that reads pages of the web.",
    "tools.web_fetch.enabled": "Whether direct chats are offered it; groups where `tools.groups` names it.",
    "tools.web_fetch.max_kb": "How much of a page is read, unpacked.",
    "tools.web_fetch.timeout_s": "How long a page may take, redirects and extraction included.",
    "tools.shell": "The tool that runs commands in a sandbox.",
    "tools.shell.enabled": "Whether direct chats are offered it; groups where `tools.groups` names it.",
    "tools.shell.network": "Whether its commands reach the network.",
    "tools.shell.timeout_s": "How long a command may take.",
    "mcp": "One table a server: `[mcp.NAME]` with `command` or `url`, and [more](tools.md#mcp-servers).",
    "mcp.*.command": "Its program and arguments, for a server on its stdio; a list.",
    "mcp.*.url": "Its address, for a server over HTTP.",
    "mcp.*.headers_file": "A file with a header a line that requests to `url` carry, such as a token.",
    "mcp.*.env": "Variables that the program is given besides a few harmless ones. Secrets.",
    "mcp.*.network": "Whether the program reaches the network.",
    "mcp.*.readable": "Files and folders, by whole paths, that the program may read.",
    "mcp.*.channels": "The channels or chats that are offered its tools; empty: every one.",
    "mcp.*.people": "The people, as `[people]` names them, that are offered its tools; empty: all.",
    "mcp.*.repeatable": "Tools that may run again after a crash.",
    "mcp.*.trusted": "Whether what it says of its tools is believed, such as that one only reads.",
    "mcp.*.timeout_s": "How long one call may take.",
    "agents": "One table an agent: `[agents.NAME]` with a persona, a model, tools and memory of its own, and "
    "[more](agents.md).",
    "agents.*.description": "What `/agent` says of it.",
    "agents.*.persona": "Who it is; empty: what its folder says, else the persona of the workspace.",
    "agents.*.choosable": "Whether a chat may choose it with `/agent`; else it is there for bindings.",
    "bindings": "Which chat talks to [which agent](agents.md#who-talks-to-whom).",
    "bindings.*.agent": "The agent; `default`: the one without a table.",
    "bindings.*.channel": "A channel, such as `discord`.",
    "bindings.*.chat": "A chat, by its key.",
    "bindings.*.topic": "A topic of a group, by its key.",
    "bindings.*.person": "A person of `[people]`.",
    "bindings.*.command": "A command of a name of your own, without the slash.",
    "bindings.*.fixed": "Whether the chat cannot choose another one with `/agent`.",
    "state": "Where files lie that are this machine's alone.",
    "state.local_dir": "A folder on a disk of this machine, absolute, for queue, ledgers and indexes, "
    "where [several machines share the workspace](shared-folders.md); empty: in the workspace.",
    "facts": "Single facts that are drawn from conversations.",
    "facts.enabled": "Whether they are drawn, and told to the model.",
    "facts.idle_s": "After so long without a message.",
    "facts.max_turns": "From so many of the last turns.",
    "facts.confidence": "How sure the model has to be of one, from 0 to 1.",
    "channels": "The platforms.",
    "channels.telegram": "A Telegram bot.",
    "channels.telegram.enabled": "Whether it runs.",
    "channels.telegram.token": "From @BotFather. A secret.",
    "channels.telegram.request_timeout_s": "How long one request to Telegram may take.",
    "channels.telegram.allow_from": "Ids of people who may talk to the bot; `*`: everyone.",
    "channels.telegram.direct": "Strangers get a code, are not answered, or are welcome.",
    "channels.telegram.groups": "Whether groups are answered when the bot is named, always, or never.",
    "channels.telegram.group_allow": "Ids of groups that are served; `*`: every one.",
    "channels.telegram.stream": "Whether a draft is edited while the model writes.",
    "channels.telegram.queue_mode": "Empty: `limits.queue_mode`.",
    "channels.telegram.base_url": "The address of the Bot API, for a server of your own.",
    "channels.telegram.base_file_url": "The address of its files.",
    "channels.telegram.poll_timeout_s": "How long Telegram holds a request while nothing comes.",
    "channels.discord": "A Discord bot.",
    "channels.discord.enabled": "Whether it runs.",
    "channels.discord.token": "From Discord's developer portal. A secret.",
    "channels.discord.request_timeout_s": "How long one request to Discord may take.",
    "channels.discord.allow_from": "Ids of people who may talk to the bot; `*`: everyone.",
    "channels.discord.direct": "Strangers get a code, are not answered, or are welcome.",
    "channels.discord.groups": "Whether channels are answered when the bot is named, always, or never.",
    "channels.discord.group_allow": "Ids of servers or channels that are served; `*`: every one.",
    "channels.discord.stream": "Whether a draft is edited while the model writes.",
    "channels.discord.queue_mode": "Empty: `limits.queue_mode`.",
    "channels.discord.api_base_url": "The address of Discord's API.",
    "channels.discord.gateway_url": "The address of its events; empty: what Discord names.",
    "channels.discord.cdn_base_url": "The address of its files; empty: what Discord names.",
    "channels.discord.heartbeat_timeout_s": "How long its events may be silent.",
    "channels.discord.sweep_s": "How often channels are looked through for messages that were not told.",
    "channels.web": "The page and the HTTP API as a channel.",
    "channels.web.enabled": f"Whether it is served. {NOT_BUILT}",
    "media": "Files that people send.",
    "media.max_mb": "How large one may be.",
    "media.timeout_s": "How long one may take to be fetched.",
    "http": "The page and the API.",
    "http.host": "The address that is served; beyond this machine it needs a token.",
    "http.port": "The port; 0 takes any.",
    "http.token": "A secret that clients show; beyond loopback at least 16 characters, 8 of them different.",
    "http.allowed_hosts": "Names under which the server is reached besides `localhost` and `127.0.0.1`.",
    "http.requests_per_minute": "How many requests each token may make; beyond it 429. 0: any number.",
    "metrics": "What Prometheus reads; every other process has it on `http.port`.",
    "metrics.port": "Where a process with role channels serves `/metrics` and `/healthz`; 0: nowhere.",
    "telemetry": "Traces of OpenTelemetry; they need the extra `otel`.",
    "telemetry.endpoint": "The address of a collector (OTLP over HTTP); empty: as `OTEL_` variables say.",
    "telemetry.sample": "Which share of the messages is traced, 0 to 1.",
    "log": "The log, on stderr.",
    "log.format": "`auto`: lines for people on a terminal, else JSON.",
    "log.level": "The least that is written.",
}

# What a number counts, by the end of its key's name.
UNITS: Mapping[str, str] = {
    "_s": "seconds",
    "_mb": "megabytes",
    "_kb": "kilobytes",
    "_hours": "hours",
    "_days": "days",
    "_usd": "US dollars",
}

_PATH_OR_NONE = {"pattern": "^(/|$)"}
_NOT_EMPTY = {"minLength": 1}
_KEYS_OF_CHATS = {"propertyNames": {"pattern": "^[^:]+:."}}
# What the checks of the code ask of a text or of a name, where a regular expression can say it: for no value
# that they take may it be stricter. By the path of the key, as above.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "workspace": _NOT_EMPTY,
    "broker.url": {"pattern": r"^(embedded$|[aA][mM][qQ][pP][sS]?://[^/?#])"},
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
        if entry.get("writeOnly") or path == ("broker", "url"):
            file = f"The file that holds `{name}`, in the place of it."
            found["properties"][f"{name}_file"] = {"type": "string", "description": file}
    return found


def _words(name: str) -> str:
    """Say what a key means; the unit of its number stands behind it where the words do not say it."""
    words = WORDS.get(name, "") or WORDS.get(name.removeprefix(AGENT), "")
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return f"{words} In {unit}." if words and unit and unit not in words else words


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
