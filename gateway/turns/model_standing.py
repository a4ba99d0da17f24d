"""Whether the model answers, as far as that is known; what status shows and clients of ours act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from gateway.turns.policy import Outage
from session.models.model import Foresees, Model

# Causes that no waiting mends: somebody has to do something.
LASTING = frozenset({"credentials", "quota"})


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """Up, or why not in a word (``cause``), in words (``error``) and with the cure (``hint``).

    ``foreseen``: no request can succeed while this process lives, so that none need be made.
    ``changed_at``: when it went away or came back; None: it has stood like this from the start.
    """

    up: bool = True
    cause: str = ""
    error: str = ""
    hint: str = ""
    foreseen: bool = False
    changed_at: datetime | None = None

    def as_part(self, started_at: datetime) -> dict[str, Any]:
        """Return it as a part of ``/readyz`` and ``/v1/status``."""
        fields = asdict(self)
        since = (fields.pop("changed_at") or started_at).isoformat()
        return {"up": self.up, "since": since, "error": self.error} | ({} if self.up else fields)


def standing_of(model: Model | None, outage: Outage | None = None) -> ModelStanding:
    """Say how a model stands: by the outage that was met, else by what can be known without asking."""
    changed_at = outage.changed_at if outage is not None else None
    if outage is not None and outage.since is not None:
        return ModelStanding(False, outage.cause, outage.error, outage.hint, changed_at=changed_at)
    trouble = model.trouble() if isinstance(model, Foresees) else None
    if trouble is None:
        return ModelStanding(changed_at=changed_at)
    return ModelStanding(False, trouble.cause, str(trouble), trouble.hint, foreseen=True)


def of_part(part: Mapping[str, Any]) -> ModelStanding:
    """Read what a daemon shows; a part of an older one has no cause."""
    cause, error, hint = (str(part.get(name, "")) for name in ("cause", "error", "hint"))
    return ModelStanding(part.get("up") is not False, cause, error, hint, part.get("foreseen") is True)
