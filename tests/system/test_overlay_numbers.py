"""The numbers of preset ``overlay`` in a running gateway: 16,384 tokens in reserve, about 20,000 kept."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.support.harness import Daemon, answer_to
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model
from tests.support.until import until

KEY = "cli:ada"
WINDOW = 100_000
RESERVE, KEEP = 16_384, 20_000
# About 2,000 tokens of question, and as many of the answer that repeats it.
WORDS = "many a word " * 660


async def test_it_begins_over_the_window_less_the_reserve_and_keeps_so_many_tokens(tmp_path: Path) -> None:
    numbers = {"model.context_window": WINDOW, "memory.window": 1_000}
    async with ModelServer() as model:
        config = with_model(model, **numbers)
        async with Daemon(tmp_path, config=config) as daemon:
            counted: list[int] = []
            while b"compaction.done" not in daemon.log and not model.summing.is_set():
                answer = await answer_to(
                    daemon, KEY, f"cli:{len(counted)}", f"fact-{len(counted):04} {WORDS}"
                )
                assert answer["kind"] == "reply", answer
                counted.append(len(str(model.turns[-1].messages)) // 4)
                assert counted[-1] < WINDOW
                # The summary is asked for behind the turn over whose request that was decided.
                if counted[-1] > (WINDOW - RESERVE) * 0.95:
                    with suppress(TimeoutError):
                        await until(model.summing.is_set, 5)
            await daemon.said("compaction.done")
            assert await daemon.stop() == 0

    lines = lines_of(tmp_path, KEY.replace(":", "_"))
    [at] = [at for at, line in enumerate(lines) if line.get("kind") == "overlay"]
    turn = len(lines[0]["content"]) // 4 + len(lines[1]["content"]) // 4
    # The turn over whose request it was decided is the last one, or the one before where that was quick.
    assert counted[0] + (at // 2 - 1) * turn > WINDOW - RESERVE - turn
    assert counted[0] + (at // 2 - 2) * turn < WINDOW - RESERVE
    kept = sum(len(line["content"]) / 4 for line in lines[lines[at]["first_kept"] : at])
    assert KEEP <= kept < KEEP + turn
