"""Tells the operator of each cap that is reached, once a day."""

from __future__ import annotations

from datetime import datetime

import structlog

from session.models.caps import Cap

log = structlog.get_logger("spending")


class CapWarnings:
    """Remembers which caps the log has told of."""

    def __init__(self) -> None:
        self._told: dict[str, datetime] = {}

    def tell(self, cap: Cap, until: datetime) -> None:
        """Write a line on a cap that is reached until then; none where there is one."""
        if self._told.get(cap.about) == until:
            return
        self._told = {about: at for about, at in self._told.items() if at == until} | {cap.about: until}
        log.warning(
            "usage.limit_reached", limit=cap.name, of=cap.limit, who=cap.subject[1], until=until.isoformat()
        )
