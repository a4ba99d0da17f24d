"""The tool ``profile``: the assistant keeps up ``USER.md`` of its conversation's scope.

One that outgrows its limit is merged once by the small model; what that returns is kept only where it fits
and no heading was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import structlog

from session.context.profile import changed, with_zone, zone_in, zone_named
from session.errors import ModelError, NotNow, StoreError, ToolError, loggable
from session.memory import note_taking
from session.memory.consolidation import MemoryNotes
from session.memory.text_similarity import Sources
from session.models.model import ToolSpec, text_of
from session.tools import ToolPlace, parameters

log = structlog.get_logger("profile")

# A consolidation of the same scope may be asking its model meanwhile.
BUSY_S = 60.0


class Profile:
    """Replaces or adds to a section of the profile, under the lock of the scope."""

    # Done twice it changes nothing: a section is replaced by the same, and no line is added again.
    repeatable: ClassVar[bool] = True
    spec: ClassVar[ToolSpec] = ToolSpec(
        "profile",
        "Update the profile of the person, which is part of every conversation with them: "
        "name, work, family, preferences of tone and length, time zone. Use it when the person says "
        "something lasting about themselves or asks you to remember how they want to be treated. "
        "Only what they said, never passwords.",
        parameters(
            section={
                "type": "string",
                "description": "Heading of the section; default: the start of the profile",
            },
            text={
                "type": "string",
                "description": "Text of the section in Markdown; empty removes it",
            },
            how={
                "type": "string",
                "enum": ["replace", "append"],
                "description": "append (default) adds lines, replace replaces the section",
            },
            timezone={"type": "string", "description": "Where the person lives, such as Europe/Berlin"},
        ),
    )

    def __init__(self, memory: MemoryNotes, *, max_bytes: int) -> None:
        self._memory = memory
        self._max_bytes = max_bytes

    def serves(self, place: ToolPlace) -> bool:
        """Say whether it is known whose profile it would be."""
        return bool(place.scope)

    async def run(self, arguments: Mapping[str, Any], place: ToolPlace) -> str:
        """Change the profile and say what it says now of the section; on return it survives a power cut."""
        zone, text = arguments.get("timezone"), arguments.get("text")
        if zone is None and text is None:
            raise ToolError("nothing to change: pass text for a section, or timezone")
        if zone is not None and zone_named(zone) is None:
            raise ToolError(f"{zone!r} is not a time zone; use a name such as Europe/Berlin")
        append = arguments.get("how", "append") == "append"

        # A page or a file may have asked for it.
        quoting = Sources() if text is None else await self._sources(place)

        def change(old: str) -> str:
            new = old
            if text is not None:
                marked = quoting.marked(text, former=old)
                new = changed(old, arguments.get("section", ""), marked, append=append)
            return new if zone is None else with_zone(new, zone)

        try:
            return await self._changed(place, change)
        except NotNow as error:
            raise ToolError(f"the profile cannot be changed now: {error}; try again later") from error
        except StoreError as error:
            raise ToolError("the profile could not be written and is unchanged") from error

    async def _sources(self, place: ToolPlace) -> Sources:
        """Take what was said in the conversation and is not in the notes yet, the running turn's among it."""
        said = await self._memory.unconsolidated.load(place.key)
        lines = said.lines if said is not None else ()
        return await asyncio.to_thread(Sources.of, lines, group=place.group)

    async def _changed(self, place: ToolPlace, change: Callable[[str], str]) -> str:
        memory = self._memory
        notes = memory.notes(memory.scopes.named(place.scope))
        async with memory.scope_states.open(place.scope, within_s=BUSY_S):
            old = await asyncio.to_thread(notes.profile)
            before = old.decode("utf-8", "replace")
            new = await asyncio.to_thread(change, before)
            if new == before:
                return "the profile already says so"
            grown = len(new.encode("utf-8", "replace"))
            merged = grown > self._max_bytes and grown > len(old)
            if merged:
                new = await self._merged(place.key, new)
            # What was cleared meanwhile stays cleared.
            kept = await memory.unconsolidated.while_there(
                place.key,
                place.session_id,
                lambda: notes.replace_profile(new, was=old, cause="merge" if merged else "profile"),
            )
        if not kept:
            why = (
                "it was changed at the same time; try again"
                if kept is False
                else "the conversation no longer exists"
            )
            raise ToolError(f"the profile was not changed: {why}")
        log.info("profile.changed", key=place.key, bytes=len(new.encode()), merged=merged)
        return "the profile was changed" + ("; it was too long and has been shortened" if merged else "")

    async def _merged(self, key: str, text: str) -> str:
        """Have the small model shorten the profile, once; a time zone that it leaves out is put back.

        Raises:
            NotNow: there is no budget for it.
            ToolError: its answer cannot stand for the profile; nothing is changed.
        """
        full = f"the profile would be over {self._max_bytes} bytes; replace a section with a shorter text"
        memory = self._memory
        model = memory.rules.small_model
        prompt = note_taking.shortening_prompt(
            text, what=note_taking.PROFILE, max_bytes=self._max_bytes, model=model
        )
        await memory.budget.take()
        try:
            shorter = text_of(await memory.ask(key, prompt)) + "\n"
            if (zone := zone_in(text)) is not None and zone_in(shorter) is None:
                shorter = with_zone(shorter, zone[1])
            note_taking.check_shortened(shorter, text, max_bytes=self._max_bytes)
        except ModelError as error:
            log.warning("profile.unmerged", key=key, error=loggable(error))
            raise ToolError(full) from error
        return shorter
