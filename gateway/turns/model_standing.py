"""Whether the model answers, as far as that is known; what status shows and clients of ours act on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gateway.turns.policy import Outage
from session.models.model import Foresees, Model

# Causes that no waiting mends: somebody has to do something.
LASTING = frozenset({"credentials", "quota"})


@dataclass(frozen=True, slots=True)
class ModelStanding:
    """Up, or why not in a word (``cause``), in words (``error``) and with the cure (``hint``).

    ``foreseen``: no request can succeed while this process lives, so that none need be made.
    """

    up: bool = True
    cause: str = ""
    error: str = ""
    hint: str = ""
    foreseen: bool = False

    def as_part(self, since: str) -> dict[str, Any]:
        """Return it as a part of ``/readyz`` and ``/v1/status``."""
        fields = asdict(self)
        return {"up": self.up, "since": since, "error": self.error} | ({} if self.up else fields)


def standing_of(model: Model | None, outage: Outage | None = None) -> ModelStanding:
    """Say how a model stands: by the outage that was met, else by what can be known without asking."""
    if outage is not None and outage.since is not None:
        return ModelStanding(False, outage.cause, outage.error, outage.hint)
    trouble = model.trouble() if isinstance(model, Foresees) else None
    if trouble is None:
        return ModelStanding()
    return ModelStanding(False, trouble.cause, str(trouble), trouble.hint, foreseen=True)


def of_part(part: Mapping[str, Any]) -> ModelStanding:
    """Read what a daemon shows; a part of an older one has no cause."""
    words = {name: str(part.get(name, "")) for name in ("cause", "error", "hint")}
    return ModelStanding(up=part.get("up") is not False, foreseen=part.get("foreseen") is True, **words)
