"""Finds what is left of an append that a power cut tore: of some sectors zeros alone."""

from __future__ import annotations

from session.transcript.line import ROLES
from session.transcript.rescue import rescue


def torn_append(data: bytes) -> int | None:
    """Return where the lines of a torn append begin that are not as they were written; None without one.

    Nothing is made of an append before it is synced, and it holds lines of one turn. So what stands behind a
    hole, up to the end of the file, is dropped where it is of one turn: nobody was told of it. Kept it would
    be an answer without its question, which stands within the turn before it, or calls without results.
    What is of several turns was not torn by a cut: then each line is kept that can be.
    """
    hole = data.find(b"\0")
    begin = data.rfind(b"\n", 0, max(hole, 0)) + 1
    if begin == 0:
        return None
    turns = set()
    for raw in data[begin:].split(b"\n"):
        for record, _ in rescue(raw).records:
            id_ = record.get("message_id")
            if record.get("role") not in ROLES or not isinstance(id_, str):
                return None
            part_of = record.get("part_of")
            turns.add(part_of if isinstance(part_of, str) else id_)
    return begin if len(turns) == 1 else None
