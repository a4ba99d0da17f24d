"""The configuration in force as plain values, with what the preset sets and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from pydantic import BaseModel, SecretStr

from channels.tables import HIDDEN
from gateway.config.agents import settings_of
from gateway.config.load import effective_compaction, effective_history
from gateway.config.redact import Redactor
from gateway.config.settings import Broker, Settings, State


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
    return redactor.value(value)
