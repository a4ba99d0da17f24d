"""What doctor finds, and a look at something of this machine that cannot hold doctor up for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from channels.errors import ChannelError
from gateway.config import folder
from gateway.errors import GatewayError
from session.disk.threads import start_thread
from session.errors import SessionError

Level = Literal["ok", "warn", "fail"]
# How it stands, in words, and what to do about it; of several things at once also which of them.
Finding = tuple[Level, str, str]
NamedFinding = tuple[str, Level, str, str]
# A local disk answers within a moment, a network's folder whose server is away never.
LOCAL_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, how it stands, in words, and what to do about it."""

    name: str
    level: Level
    text: str
    cure: str = ""
    # Whether what was looked at never answered: whoever touches it next would wait as long.
    hangs: bool = False

    def as_dict(self) -> dict[str, str]:
        """Return it as clients see it."""
        return {"name": self.name, "level": self.level, "text": self.text, "cure": self.cure}


Look = Callable[[], Iterable[Check]]


async def looked(name: str, look: Look, workspace: Path, *, within_s: float = LOCAL_S) -> list[Check]:
    """Look at one thing in a thread; what cannot be read there is its finding, and ends no other.

    Where it takes longer than ``within_s`` seconds, that is the finding. The thread is left to itself, since
    nothing can end one that waits for a file.
    """
    looking = start_thread(lambda: list(look()), name=f"doctor-{name}")
    await asyncio.wait((looking,), timeout=within_s)
    if not looking.done():
        # What it ends in some day, nobody asks any more.
        looking.cancel()
        text = f"no answer from {workspace} within {within_s:g} s"
        cure = "look at the disk, or at the network that the folder lies on"
        return [Check(name, "fail", text, cure, hangs=True)]
    try:
        return looking.result()
    except (GatewayError, SessionError, ChannelError) as error:
        return [Check(name, "fail", str(error), error.hint)]
    except OSError as error:
        said = folder.explain(workspace, error)
        text, cure = (str(said), "look at what lies there, and whose it is") if said else (str(error), "")
        return [Check(name, "fail", text, cure)]
