"""``USER.md``, what is known of a person: its sections, and the time zone that it names; pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import tzinfo
from zoneinfo import ZoneInfo

PROFILE_FILE = "USER.md"
MAX_HEADING_CHARS = 80
_HEADING = re.compile(r"^## +(\S.*)$", re.MULTILINE)
_ANY_HEADING = re.compile(r"^ {0,3}(#{1,6})(?=[ \t]|$)", re.MULTILINE)
_ZONE = re.compile(
    r"^[ \t]*(?:[-*+][ \t]+)?\**time[ _-]?zone\**[ \t]*:\**[ \t]*`?([A-Za-z0-9_+/-]{1,64})`?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)


def zone_named(name: str) -> tzinfo | None:
    """Return the zone of an IANA name; None where there is none, or the name is no name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def zone_in(text: str) -> tuple[tzinfo, str] | None:
    """Return the zone that a line ``timezone: Europe/Berlin`` names, and its name; None without one."""
    for match in _ZONE.finditer(text):
        zone = zone_named(match[1])
        if zone is not None:
            return zone, match[1]
    return None


def with_zone(text: str, name: str) -> str:
    """Put the zone into the first line that names one, else at the beginning."""
    line = f"timezone: {name}"
    if _ZONE.search(text):
        return _ZONE.sub(line, text, count=1)
    return f"{line}\n\n{text}" if text.strip() else f"{line}\n"


def headings(text: str) -> list[str]:
    """List the headings of the sections, in order."""
    return [_words(match) for match in _HEADING.finditer(text)]


def changed(profile: str, section: str, text: str, *, append: bool = False) -> str:
    """Return the profile with a section replaced or added to; a new one comes last, an emptied one goes.

    Headings within ``text`` become those of parts of the section, so that it stays one section. A line that
    stands there already is not appended again.

    Args:
        profile: as it is.
        section: its heading in one line, capitals do not matter; empty: what stands before the first.
        text: what the section is to say.
        append: behind what it says, line by line.
    """
    before, sections = _taken_apart(profile)
    heading = " ".join(section.replace("#", " ").split())[:MAX_HEADING_CHARS].rstrip()
    new = demoted(text.strip(), below=2)
    names = [name.casefold() for name, _ in sections]
    at = names.index(heading.casefold()) if heading.casefold() in names else None
    old = before if not heading else sections[at][1] if at is not None else ""
    if append:
        known = {line.strip() for line in old.split("\n")}
        more = [line for line in new.split("\n") if line.strip() not in known]
        new = "\n".join(part for part in (old.strip("\n"), "\n".join(more)) if part)
    if not heading:
        before = new
    elif at is None:
        sections.append((heading, new))
    else:
        sections[at] = (sections[at][0], new)
    return _joined(before, sections)


def demoted(text: str, *, below: int) -> str:
    """Put every heading of a text under one of level ``below``; their order among each other stays."""
    levels = [len(match[1]) for match in _ANY_HEADING.finditer(text)]
    by = max(below + 1 - min(levels), 0) if levels else 0
    return _ANY_HEADING.sub(lambda match: "#" * min(len(match[1]) + by, 6), text) if by else text


def _taken_apart(profile: str) -> tuple[str, list[tuple[str, str]]]:
    found = list(_HEADING.finditer(profile))
    ends = [*(match.start() for match in found[1:]), len(profile)][: len(found)]
    before = profile[: found[0].start()] if found else profile
    return before, [
        (_words(match), profile[match.end() : end].strip("\n"))
        for match, end in zip(found, ends, strict=True)
    ]


def _words(heading: re.Match[str]) -> str:
    """Return the words of a heading without the number signs that may close it."""
    return heading[1][0] + heading[1][1:].rstrip(" \t#")


def _joined(before: str, sections: Sequence[tuple[str, str]]) -> str:
    parts = [before.strip("\n")] if before.strip() else []
    parts += [f"## {heading}\n{text}" for heading, text in sections if text.strip()]
    return "\n\n".join(parts) + "\n" if parts else ""
