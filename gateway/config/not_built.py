"""Which settings are accepted and change nothing yet; whoever builds one takes its name out of the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pydantic import BaseModel

from gateway.config.settings import Settings

# A table stands for all of its keys, and "*" for every table at that place.
KEYS: Final = ("state.local_dir",)
WORDS: Final = "not built yet, it changes nothing"
CURE: Final = "leave it out until a version that has it"


def not_built(settings: Settings) -> list[str]:
    """List the keys that somebody set to something other than the default."""
    return [found for key in KEYS for found in _changed(settings, key.split("."), ())]


def _changed(table: BaseModel, path: list[str], above: tuple[str, ...]) -> Iterator[str]:
    head, *rest = path
    fields = type(table).model_fields
    if head == "*":
        for name in fields:
            yield from _changed(table, [name, *rest], above)
        return
    by_key = {info.alias or name: (name, info) for name, info in fields.items()}
    if head not in by_key:
        return
    name, info = by_key[head]
    value, here = getattr(table, name), (*above, head)
    if value == info.get_default(call_default_factory=True):
        return
    if not isinstance(value, BaseModel):
        yield ".".join(here)
        return
    for inner in [rest] if rest else [[name] for name in type(value).model_fields]:
        yield from _changed(value, inner, here)
    if not rest:
        yield from (".".join((*here, name)) for name in value.model_extra or {})
