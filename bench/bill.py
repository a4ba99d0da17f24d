"""What a provider that bills as Anthropic does asks for a turn of 20 rounds, with cache marks and without."""

from __future__ import annotations

import os
from functools import partial

from bench.application import application, letter, settings
from bench.application import run as run_loop
from bench.place import folder
from bench.row import Row
from gateway.queue.mailbox import outbound
from tests.support.billing import LEAST_TOKENS, READ, WRITE, ToolTurn
from tests.support.model_server import ModelServer

ROUNDS = 20
RESULT = "a line of a file\n" * 60


def run() -> list[Row]:
    """Bill one turn that reads the same file in each round but the last."""
    marked, plain = (run_loop(partial(_billed, cache=cache)) / 1000 for cache in (True, False))
    what = (
        f"input alone, in thousands of fresh tokens; written to the cache {WRITE:g} ×, read {READ:g} ×, "
        f"a prefix below {LEAST_TOKENS:,} tokens not at all; results of {len(RESULT):,} characters"
    )
    return [
        Row(
            f"a turn of {ROUNDS} rounds",
            marked,
            plain,
            "k tokens",
            "the same without marks",
            marked / plain,
            at_most=0.35,
            notes={"what": what},
        )
    ]


async def _billed(*, cache: bool) -> float:
    """Return what the input of a turn costs, in fresh tokens."""
    os.environ.setdefault("OPENROUTER_API_KEY", "none")
    with folder() as workspace:
        (workspace / "files").mkdir()
        (workspace / "files" / "a.txt").write_text(RESULT)
        async with ModelServer() as model:
            model.chooses = turn = ToolTurn(ROUNDS)
            name = "openrouter/anthropic/claude-sonnet-4.5"
            config = settings(workspace, model__name=name, model__api_base=model.url, model__cache=cache)
            async with application(config) as here, here.mailbox.take(outbound("bench")) as replies:
                await here.mailbox.put(letter("bench:bill", 0, "read it all"))
                reply = await anext(replies)
                await here.mailbox.settle(reply)
        if len(turn.bill.marks) != ROUNDS:
            raise RuntimeError(f"the turn had {len(turn.bill.marks)} rounds")
        return turn.bill.cost
