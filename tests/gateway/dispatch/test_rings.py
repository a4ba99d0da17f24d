"""A message leaves nothing behind that only the garbage collector can find."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from gateway.app.application import Application
from gateway.config.settings import Settings
from gateway.queue.mailbox import INBOUND, Post, outbound
from session.models.model import Answer, OnDelta, Prompt
from tests.support.foreign import inbound
from tests.support.guarantee import guarantee
from tests.support.until import until

KEYS, EACH = 5, 10


class Full:
    """A model for which everything is built that a request may hold."""

    name = "full"
    plain = False

    def takes(self, part: str) -> bool:
        return False

    async def ask(self, prompt: Prompt, on_delta: OnDelta | None = None) -> Answer:
        return Answer(f"got {prompt.messages[-1]['content']}")


@guarantee("operation", "A turn leaves no reference cycles to the garbage collector.")
@pytest.mark.parametrize("plain", [True, False])
async def test_a_turn_leaves_no_rings(tmp_path: Path, plain: bool) -> None:
    """A few objects for each would be a tenth of what a message costs, paid in pauses of a busy daemon."""
    settings = Settings.model_validate({"workspace": tmp_path})
    async with Application(settings).open() as application:
        assert application.services is not None
        if not plain:
            application.services.turns.model = Full()
        await _answered(application, "warm", 1)
        gc.collect()
        gc.disable()
        try:
            await _answered(application, "then", EACH)
            left = gc.collect()
        finally:
            gc.enable()

    # Whatever else a process does leaves a few; the least that a turn could leave is two for each.
    assert left < KEYS * EACH


async def _answered(application: Application, name: str, each: int) -> None:
    """Have messages answered, and wait until their replies wait for a platform that there is not."""
    box = outbound("bench")
    before = (await application.mailbox.depths()).get(box)
    count = KEYS * each + (before.count if before is not None else 0)
    for key in (f"bench:{number}" for number in range(KEYS)):
        for number in range(each):
            id_ = f"{name}:{key}#{number}"
            await application.mailbox.put(Post(INBOUND, key, id_, inbound(key, id_, "hello")))

    async def there() -> bool:
        depth = (await application.mailbox.depths()).get(box)
        return depth is not None and depth.count >= count

    await until(there)
