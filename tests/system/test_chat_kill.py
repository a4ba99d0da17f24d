"""A daemon that is killed in mid-answer: the terminal that looks on shows the answer once."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from tests.support.model_server import ModelServer
from tests.support.ports import KeptPort
from tests.system.terminal import PROMPTS, WITHIN_S, Terminal, command, daemon, environment

WORDS = "one two three four five six seven eight nine ten"


async def test_a_kill_in_mid_answer_shows_it_once(tmp_path: Path) -> None:
    """The next daemon asks again and writes anew; what stands on the screen is not written again."""
    async with ModelServer() as server:
        with KeptPort() as port:
            env = environment(
                CHAT_GATEWAY_MODEL__NAME="openai/stub",
                CHAT_GATEWAY_MODEL__API_BASE=server.url,
                CHAT_GATEWAY_HTTP__PORT=str(port),
            )
            shown = await asyncio.to_thread(_talk, tmp_path, env)

    lines = shown.replace("\r", "").partition(f"{WORDS}\n")[2].splitlines()
    answer = "".join(line for line in lines if not line.endswith("trying again"))
    assert answer == f"stub: {WORDS}> ", shown


def _talk(workspace: Path, env: dict[str, str]) -> str:
    chat: Terminal | None = None
    try:
        with daemon(workspace, env) as first:
            chat = Terminal(command(workspace, "chat"), workspace, env | {"TERM": "dumb"})
            chat.until(PROMPTS["dumb"])
            chat.write(f"[[slow:0.3]] {WORDS}\n")
            chat.until("stub: one")
            first.send_signal(signal.SIGKILL)
            first.wait(WITHIN_S)
        with daemon(workspace, env):
            chat.until("ten\n" if "\r" not in chat.seen else "ten\r\n")
            chat.until(PROMPTS["dumb"])
        return chat.seen
    finally:
        if chat is not None:
            chat.close()
