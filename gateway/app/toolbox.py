"""Builds the tools that a turn may use from Settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.app.optional_tools import OPTIONAL
from gateway.app.schedules import ChatSchedules
from gateway.config.settings import Settings
from session.context.scopes import Scopes
from session.disk.layout import Layout
from session.library.library import Library
from session.memory.consolidation import MemoryNotes
from session.memory.profile import Profile
from session.recall.recall import Recall
from session.recall.tool import MemorySearch
from session.tools import Tool, Toolbox, ToolRun, ToolSource
from session.tools.archives import SessionArchiveRead
from session.tools.files import Edit, Ls, Read, Write
from session.tools.grep import Grep
from session.tools.schedule import Schedule
from session.tools.send_file import SendFile
from session.tools.skills import SkillRead


def build_toolbox(
    settings: Settings,
    scopes: Scopes,
    *,
    library: Library,
    layout: Layout,
    memory: MemoryNotes,
    recall: Recall,
    more: Sequence[Tool],
    source: ToolSource,
    heard: Callable[[ToolRun], None] | None = None,
) -> Toolbox:
    """Put together the tools that come with the daemon, ``more``, and those of a source that changes.

    Requests name them in this order: a tool that is new stands at the end, so that prompt caches hold.
    ``heard`` is told of each call when it is over.
    """
    here: list[Tool] = [
        Read(),
        Write(),
        Edit(),
        Ls(),
        Grep(),
        Profile(memory, max_bytes=settings.memory.profile_max_kb * 1024),
        SkillRead(library),
        SessionArchiveRead(layout, zone=settings.zone),
        MemorySearch(recall, scopes, zone=settings.zone),
        Schedule(ChatSchedules(settings, scopes)),
        SendFile(max_bytes=settings.media.max_mb * 2**20),
        *more,
    ]
    return Toolbox(here, source, heard=heard, optional=OPTIONAL)
