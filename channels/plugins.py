"""Finds adapters by name: those of this package, and those that other packages offer by an entry point."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from channels.base import Channel, Kind, Site
from channels.errors import ChannelError
from channels.tables import DiscordTable, Platform, TelegramTable

GROUP = "chat_gateway.channels"
BUILT_IN = (
    Kind("telegram", TelegramTable, "channels.telegram.adapter:build"),
    Kind("discord", DiscordTable, "channels.discord.adapter:build"),
)
# Names that the gateway itself serves.
OWN = ("web", "cli", "cron")
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class InstalledAdapters:
    """The adapters that can be configured, by name, and what is wrong with those that cannot."""

    kinds: Mapping[str, Kind]
    problems: tuple[str, ...] = ()

    def tables(self) -> dict[str, type[Platform]]:
        """Return the configuration tables of the adapters that other packages bring."""
        own = {kind.name for kind in BUILT_IN}
        return {name: kind.table for name, kind in self.kinds.items() if name not in own}


@cache
def installed() -> InstalledAdapters:
    """Look through the installed packages, once."""
    return look(entry_points(group=GROUP))


def look(points: Iterable[EntryPoint]) -> InstalledAdapters:
    """Join what the entry points offer to the built-in adapters; a broken one is named, and left out."""
    kinds = {kind.name: kind for kind in BUILT_IN}
    problems: list[str] = []
    for point in points:
        where = f"channel {point.name!r} of {point.value}"
        try:
            kind = point.load()
        except Exception as error:  # noqa: BLE001 - another package's import may raise anything
            problems.append(f"{where} cannot be imported: {type(error).__name__}: {error}")
            continue
        problem = _problem(kind, kinds)
        if problem:
            problems.append(f"{where}: {problem}")
        else:
            kinds[kind.name] = kind
    return InstalledAdapters(kinds, tuple(problems))


def _problem(kind: object, known: Mapping[str, Kind]) -> str:
    if not isinstance(kind, Kind):
        return f"expected a channels.base.Kind, not {type(kind).__name__}"
    if not _NAME.fullmatch(kind.name):
        return f"the name {kind.name!r} is not of the form [a-z][a-z0-9_]{{0,31}}"
    if kind.name in known or kind.name in OWN:
        return f"the name {kind.name!r} is taken"
    if not (isinstance(kind.table, type) and issubclass(kind.table, Platform)):
        return "its table is not a subclass of channels.tables.Platform"
    return ""


def enabled(channels: object) -> list[tuple[Kind, Platform]]:
    """List the platforms that are switched on in ``[channels]``, with their tables."""
    tables = [(kind, getattr(channels, name, None)) for name, kind in installed().kinds.items()]
    return [(kind, table) for kind, table in tables if isinstance(table, Platform) and table.enabled]


def served(channels: object) -> set[str]:
    """Name the channels that processes of a workspace serve, by its ``[channels]`` alone."""
    return {kind.name for kind, _ in enabled(channels)} | set(OWN)


def build(kind: Kind, table: Platform, site: Site) -> Channel:
    """Import an adapter (slow: call it in a thread) and build it.

    Raises:
        ChannelError: its module cannot be imported, or holds no such function.
    """
    module, _, function = kind.build.partition(":")
    try:
        make: Any = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        hint = "install the package that the adapter needs"
        raise ChannelError(f"channel {kind.name} cannot be loaded: {error}", hint=hint) from error
    return cast("Channel", make(table, site))
