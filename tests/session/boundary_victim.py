"""Opens an older session again, closes one or ends one for a message, in children that die at each step.

``python -m tests.session.boundary_victim DIR reopen|close|part ULID``: prints how many there are.
"""

from __future__ import annotations

import sys
from datetime import UTC
from pathlib import Path

from session.store import switch_session
from session.store.store import Store
from session.transcript.key import SessionKey
from tests.session.dying import die_everywhere

KEY = SessionKey("telegram:1")


async def done(workspace: Path, what: str, session_id: str) -> None:
    store = Store(workspace, zone=UTC)
    async with store.open(KEY) as session:
        if what == "reopen":
            await session.change(
                lambda *writers: switch_session.reopen(*writers, session_id=session_id, by="cmd")
            )
        elif what == "part":
            await session.change(
                lambda *writers: switch_session.split_after_idle(*writers, by="late", due=lambda _: True)
            )
        else:
            await session.change(lambda *writers: switch_session.close(*writers, of=session_id))
    await store.aclose()


if __name__ == "__main__":
    folder, what, session_id = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    print(die_everywhere(folder, lambda copy: done(copy, what, session_id)))
