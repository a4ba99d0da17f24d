"""What the configuration and the workspace say reaches the model: each part is wired in a running gateway."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.harness import Daemon, ask
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model, write

KEY = "cli:ada"


def config(model: ModelServer, **more: Any) -> dict[str, Any]:
    return with_model(model, **{"memory.window": 1_000}, **more)


async def say(daemon: Daemon, id_: str, text: str) -> str:
    answer = await ask(daemon, KEY, f"cli:{id_}", text)
    assert answer is not None
    assert answer["kind"] == "reply", answer
    return str(answer["reply"])


def order(text: str, *pieces: str) -> list[int]:
    """At which places the pieces stand; all of them must."""
    return [text.index(piece) for piece in pieces]


async def test_persona_summary_and_archive_reach_the_model(tmp_path: Path) -> None:
    """Preset ``archive``: compacted between the tool rounds of a turn, the parts in their order."""
    write(tmp_path / "AGENTS.md", "You are Iris.")
    write(tmp_path / "instructions.md", "You are Otto.")
    write(tmp_path / "playbooks" / "ship.md", "---\nname: Ship\npatterns: ['ship']\n---\nAsk for a version.")
    write(tmp_path / "skills" / "tax" / "SKILL.md", "---\nname: tax\ndescription: Sums\n---\nStep one.")
    write(tmp_path / "files" / "chats" / "cli_ada" / "long.txt", "fact-0002 is here\n" * 1_150)
    async with ModelServer() as model:
        small = config(
            model,
            **{
                "compaction.preset": "archive",
                "model.context_window": 8_000,
                "model.max_output_tokens": 300,
                "history.changing_parts": "system",
                "history.full_tool_results": 0,
            },
        )
        async with Daemon(tmp_path, config=small) as daemon:
            await say(daemon, "0", "fact-0001 " + "and some words " * 300)
            await say(daemon, "1", 'look [[tool:read {"path": "long.txt"}]]')
            rounds = [seen for seen in model.seen if seen.is_summary or seen in model.turns]
            read = await say(daemon, "2", "ship it [[tool:session_archive_read {}]]")
            after = model.turns[-1]
            (tmp_path / "AGENTS.md").unlink()
            await say(daemon, "3", "who are you?")
            alone = str(model.turns[-1].messages[0]["content"])
            assert await daemon.stop() == 0

    assert [seen.is_summary for seen in rounds] == [False, False, True, False], "between the rounds"
    assert rounds[3].messages[-1]["role"] == "tool"
    assert "fact-0001" in str(rounds[3].messages[0]["content"]), "the summary is a part of the system message"

    system = str(after.messages[0]["content"])
    parts = order(system, "You are Iris.", "fact-0001", "Ask for a version.", "<name>tax</name>")
    assert parts == sorted(parts)
    assert "You are Otto." not in system
    assert "session_archive_read" in after.tools
    assert read.startswith("stub: ship it")
    told = [
        line["content"]
        for line in lines_of(tmp_path, "cli_ada")
        if line.get("name") == "session_archive_read"
    ]
    assert len(told) == 1
    assert "and some words" in told[0]

    assert "You are Otto." in alone
    assert "You are Iris." not in alone


async def test_the_summary_of_budget_is_made_once_and_told_by_the_assistant(tmp_path: Path) -> None:
    async with ModelServer() as model:
        numbers = {"compaction.preset": "budget", "history.last": 10}
        async with Daemon(tmp_path, config=config(model, **numbers)) as daemon:
            for number in range(6):
                await say(daemon, str(number), f"fact-{number:04} {'a word and ' * 30}")
            await daemon.said("compaction.done")
            first, second = [await opening(daemon, model, f"then {number}") for number in range(2)]
            assert await daemon.stop() == 0
        asked = sum(seen.is_summary for seen in model.seen)

    [overlay] = [line for line in lines_of(tmp_path, "cli_ada") if line.get("kind") == "overlay"]
    assert first["role"] == "assistant"
    assert first["content"] == f"<summary>\n{overlay['content']}\n</summary>"
    assert second == first
    assert asked == 1


async def opening(daemon: Daemon, model: ModelServer, text: str) -> Mapping[str, Any]:
    """Ask, and return the message with which the history of the request began."""
    await say(daemon, text, text)
    return next(message for message in model.turns[-1].messages if message["role"] != "system")
