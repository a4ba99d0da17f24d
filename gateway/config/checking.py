"""Finds names in a configuration that nothing answers to, and files with secrets that others can read.

These do not stop a daemon, which may be given the missing part later; ``config check`` reports them.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import pwd
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gateway.config.agents import nearest, settings_of
from gateway.config.finding import SERVICE_ENVIRONMENT, SERVICE_FILE, contents, in_the_way, named_files
from gateway.config.redact import Redactor, secrets_of
from gateway.config.settings import Settings, Tools
from session.models.credentials import PROVIDERS, cure, lacks_key, owner_of

_TOOLS: Final = frozenset({*Tools().direct, *Tools().groups, "web_fetch", "shell"})
_KeyPath = tuple[str, ...]
# Of providers whose ids of groups are numbers.
_NUMBERED: Final = ("telegram", "discord")
_TABLE: Final = "model_prices_and_context_window_backup.json"


def faults(settings: Settings) -> Iterator[tuple[_KeyPath, str]]:
    """Yield the key and what is wrong with it, as ``load`` words it."""
    blocking = in_the_way(settings.workspace)
    if blocking is not None:
        yield ("workspace",), f"{blocking} is not a folder"
    yield from _models(settings, ())
    yield from _tools(settings.tools, settings, (), {"direct", "groups", "policy"})
    for name, table in settings.agents.items():
        here = ("agents", name)
        if {"name", "fallbacks", "small", "api_key"} & table.model.model_fields_set:
            yield from _models(settings_of(settings, name), here)
        if table.tools.model_fields_set:
            yield from _tools(settings_of(settings, name).tools, settings, here, table.tools.model_fields_set)
    for name in _NUMBERED:
        table = getattr(settings.channels, name)
        for key in ("allow_from", "group_allow"):
            for value in getattr(table, key):
                if value != "*" and not value.removeprefix("-").isdecimal():
                    yield (
                        ("channels", name, key),
                        f"{value!r} is not a numeric id; see docs/{name}.md",
                    )


def exposed_files(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield which files with secrets others can read or change, and the cure.

    What the machine hands to a service lies below ``/run`` and is open to all in a container of one user.

    Raises:
        OSError: one cannot be looked at.
    """
    file, workspace = settings.file, settings.workspace
    if file is None:
        return
    place = workspace.stat() if workspace.exists() else None
    users = {0, os.geteuid(), place.st_uid if place else 0}
    for path, holds_secret in _files_of(file, settings):
        real = Path(os.path.realpath(path))
        if real.is_relative_to("/run") or not real.is_file():
            continue
        found = real.stat()
        groups = {0, os.getegid(), place.st_gid if place else 0}
        with contextlib.suppress(KeyError):
            groups.add(pwd.getpwuid(found.st_uid).pw_gid)
        open_to = found.st_mode & (0o007 if found.st_gid in groups else 0o077)
        of_service = file == SERVICE_FILE
        cure = f"chown root:chat-gateway {path}; chmod 640 {path}" if of_service else f"chmod go= {path}"
        if found.st_uid not in users:
            text = f"{path} belongs to the user {found.st_uid}, who can change it"
            yield text, cure if of_service else f"chown {os.geteuid()} {path}"
        if open_to & 0o022:
            yield f"others can change {path}", cure
        elif holds_secret and open_to & 0o044:
            yield f"others can read {path}, which contains a secret", cure


def _files_of(file: Path, settings: Settings) -> Iterator[tuple[Path, bool]]:
    """Yield the configuration and the files that it names, each with whether it holds a secret."""
    # As JSON it has no comments; the password of the broker's own guest is no secret.
    written = json.dumps(tomllib.loads(contents(file).decode("utf-8-sig")), default=str, ensure_ascii=False)
    written = written.replace("guest:guest@", "")
    secrets = {name: value for name, value in secrets_of(settings).items() if value != "guest"}
    yield file.absolute(), Redactor(secrets).text(written) != written
    public = {Path(each) for each in (settings.broker.ca_file, settings.broker.cert_file)}
    headers = [each.headers_file for each in settings.mcp.values() if each.headers_file]
    named = {*named_files(file)[1:], *(settings.workspace / Path(each).expanduser() for each in headers)}
    if file == SERVICE_FILE:
        named.add(SERVICE_ENVIRONMENT)
    for path in sorted(named):
        yield path, path not in public


def unknown_provider(name: str) -> str:
    """Say that LiteLLM knows no provider for a model of this name; empty: it does."""
    prefix, slash, _ = name.partition("/")
    if (slash and prefix in PROVIDERS) or name.startswith("ft:") or name in _listed():
        return ""
    if slash:
        near = difflib.get_close_matches(prefix, PROVIDERS, 1, 0.6)
        return f"LiteLLM knows no provider {prefix!r}" + (f"; nearest: {near[0]!r}" if near else "")
    owner = owner_of(f"{name}-") or "openai"
    return f"no provider is known for {name!r}; write PROVIDER/MODEL, such as {owner}/{name}"


def _models(settings: Settings, above: _KeyPath) -> Iterator[tuple[_KeyPath, str]]:
    model = settings.model
    named = [("name", model.name), *(("fallbacks", each) for each in model.fallbacks)]
    named += [(key, value) for key in ("small", "embedding") if (value := getattr(model, key))]
    for key, name in named:
        if name == "echo":
            continue
        if words := unknown_provider(name):
            yield (*above, "model", key), words
        elif (
            key == "name" and not model.api_key.get_secret_value() and not model.api_base and lacks_key(name)
        ):
            yield (*above, "model", "name"), f"no API key for {name}: {cure(name)}"


def _tools(
    tools: Tools, whole: Settings, above: _KeyPath, keys: Collection[str]
) -> Iterator[tuple[_KeyPath, str]]:
    for key in {"direct", "groups"} & {*keys}:
        for name in getattr(tools, key):
            if words := _unknown_tool(name, whole):
                yield (*above, "tools", key), words
    if "policy" not in keys:
        return
    policy = tools.policy
    tables: list[tuple[_KeyPath, Mapping[str, str]]] = [((), policy.tools)]
    for kind in ("people", "chats", "channels"):
        tables += [((kind, who), table) for who, table in getattr(policy, kind).items()]
    for place, table in tables:
        for name in table:
            if name != "*" and (words := _unknown_tool(name, whole)):
                yield (*above, "tools", "policy", *place, name), words
    channels = [*type(whole.channels).model_fields, "cli", "cron"]
    for name in policy.channels:
        if name not in channels:
            yield (
                (*above, "tools", "policy", "channels", name),
                f"no channel {name!r}{nearest(name, sorted(channels))}",
            )


def _unknown_tool(name: str, settings: Settings) -> str:
    # What a server offers is known once it was asked.
    if name in _TOOLS or (name.startswith("mcp_") and settings.mcp):
        return ""
    if name.startswith("mcp."):
        server = name.split(".")[1]
        return (
            "" if server in settings.mcp else f"no server {server!r}{nearest(server, sorted(settings.mcp))}"
        )
    return f"no tool {name!r}{nearest(name, sorted(_TOOLS))}"


@cache
def _listed() -> Collection[str]:
    """Return the models of LiteLLM's table, which is read without its import; empty where it is not there."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            return frozenset(json.loads(Path(folder, _TABLE).read_bytes()))
        except (OSError, ValueError):
            continue
    return frozenset()
