"""Which file name a key has, where two keys may share one."""

from __future__ import annotations

from session.disk.layout import Layout
from session.transcript.key import SessionKey, looks_marked, marked_stem, needs_mark, plain_stem
from session.transcript.loading import load


def resolve(layout: Layout, key: SessionKey) -> str:
    """Return the stem of a key's files: nanobot's, or the marked one where that belongs to another key.

    The transcript's line 1 decides whose a stem is. A key that is written like the marked stem of another is
    marked itself, so that none can take another's last name; a file that it had before stays its own.
    """
    marked = marked_stem(key)
    if needs_mark(key):
        return marked
    plain = plain_stem(key)
    owner = owner_of(layout, plain)
    if owner == key:
        return plain
    if owner is not None or looks_marked(plain) or owner_of(layout, marked) == key:
        return marked
    return plain


def owner_of(layout: Layout, stem: str) -> str | None:
    """Return the key to which a stem belongs; None while it is free."""
    return key_in_file(layout, stem)


def key_in_file(layout: Layout, stem: str) -> str | None:
    """Return the key that an active transcript names; None where there is no such file."""
    found = load(layout.transcript(stem), stem, layout.index(stem))
    return None if found is None else found[0].key
