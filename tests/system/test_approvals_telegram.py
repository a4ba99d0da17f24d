"""Approvals through a running gateway with Telegram, on both kinds of queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.guarantee import guarantee
from tests.support.harness import Daemon, status
from tests.support.model_server import ModelServer, Reply
from tests.support.place import lines_of
from tests.support.telegram_chats import Sent
from tests.support.telegram_server import TelegramServer
from tests.support.until import until
from tests.system.approvals_place import asks, results, writing, written
from tests.system.platform_place import ADA, told, with_telegram

EVE = 666
GROUP = -5


def approved(text: str) -> Callable[[Sent], bool]:
    return lambda sent: text in sent.text


async def asked(server: TelegramServer, chat: int, *, user: int = ADA) -> tuple[Sent, dict[str, str]]:
    """Let somebody ask for a note; return the question that comes of it, and its buttons."""
    server.write(chat, f"note: milk @{server.world.me['username']}" if chat < 0 else "note: milk", user=user)
    prompt = await server.said(chat, approved("Approval needed:"))
    return prompt, server.buttons(chat, prompt.message_id)


async def test_a_pressed_button_lets_the_call_run_once(tmp_path: Path, queue: dict[str, Any]) -> None:
    """The chat sees the whole call; what was decided then stands in its place, without buttons."""
    async with TelegramServer() as server, ModelServer() as model:
        alerted = asyncio.Event()
        # Behind the end of the turn there is no such request any more.
        model.script.extend([writing("milk"), Reply("noted", held=alerted)])
        async with Daemon(tmp_path, config=asks(model) | with_telegram(server) | queue):
            prompt, buttons = await asked(server, ADA)
            shown = (
                '"content": "milk"',
                '"path": "notes.txt"',
                f"Person {ADA} ({ADA})",
                str(tmp_path / "files"),
            )
            assert [part for part in shown if part not in prompt.text] == []
            assert written(tmp_path) == []
            assert list(buttons) == ["Allow", "Deny"]

            server.press(ADA, prompt.message_id, buttons["Allow"])
            await model.arrived(2)

            assert written(tmp_path) == ["milk"]
            # A second press comes too late, and whoever pressed is told so.
            press = server.press(ADA, prompt.message_id, buttons["Deny"])
            await server.alerted(press, "Already decided")
            alerted.set()
            await server.said(ADA, approved("noted"))
            assert server.sent[0].text == f"Allowed by Person {ADA} ({ADA}): write"
            assert server.buttons(ADA, prompt.message_id) == {}

    assert [each.text for each in server.sent[1:]] == ["noted"]
    assert len(model.turns) == 2
    assert lines_of(tmp_path, f"telegram_{ADA}")[1]["asks"]


@guarantee(
    "security", "Only approved people decide about a tool call, and forged button presses are refused."
)
async def test_strangers_and_forged_presses_are_refused_and_told(tmp_path: Path) -> None:
    """In a group whoever was let in decides, no other member; no value of a press stands for another call."""
    who = {"allow_from": [str(ADA)], "direct": "allowlist"}
    async with TelegramServer() as server, ModelServer() as model:
        model.script.append(writing("milk"))
        tools = {"tools.groups": ["write"]}
        async with Daemon(tmp_path, config=asks(model, **tools) | with_telegram(server, **who)):
            server.write(ADA, "hello")
            await server.said(ADA, approved("Approval needed:"))
            server.write(ADA, "/stop")
            await server.said(ADA, approved("Stopped."))
            model.script.extend([writing("milk"), Reply("noted")])
            prompt, buttons = await asked(server, GROUP, user=EVE)
            number = prompt.message_id

            said = len(server.sent_to(GROUP))
            stranger = server.press(GROUP, number, buttons["Allow"], user=EVE)
            await server.alerted(stranger, "only people approved by the operator")
            for forged in ("/approve aaaaaaaaaaaaaaaa", "/approve ../../x"):
                press = server.press(GROUP, number, forged, user=ADA)
                await server.alerted(press, "There is no such approval request")
            # The right value, sent from another chat.
            press = server.press(ADA, server.sent_to(ADA)[0].message_id, buttons["Allow"], user=ADA)
            await server.alerted(press, "There is no such approval request")
            assert written(tmp_path) == []
            # Nobody else hears of what somebody tried.
            assert len(server.sent_to(GROUP)) == said

            server.press(GROUP, number, buttons["Allow"], user=ADA)
            await server.said(GROUP, approved("noted"))
    assert written(tmp_path) == ["milk"]


async def test_a_word_after_its_time_is_refused(tmp_path: Path) -> None:
    """The turn goes on without the call, and its chat is told in the place of the question."""
    async with TelegramServer() as server, ModelServer() as model:
        model.script.extend([writing("milk"), Reply("nobody there")])
        late = {"tools.policy.approval_timeout_s": 1.0}
        async with Daemon(tmp_path, config=asks(model, **late) | with_telegram(server)):
            prompt, buttons = await asked(server, ADA)
            await server.said(ADA, approved("nobody there"))
            assert server.sent[0].text == "Nobody decided in time: write is not run."
            press = server.press(ADA, prompt.message_id, buttons["Allow"])
            await server.alerted(press, "Too late")
    assert written(tmp_path) == []
    assert results(lines_of(tmp_path, f"telegram_{ADA}")) == ["error: not run: nobody approved it within 1 s"]


@guarantee("failures", "A turn that waits for approval takes no capacity from other chats.")
async def test_a_turn_that_waits_holds_no_place(tmp_path: Path) -> None:
    """With one turn at once another chat is answered; what its own chat sends meanwhile waits, in order."""
    async with TelegramServer() as server, ModelServer() as model:
        model.script.extend([writing("milk"), Reply("to bob"), Reply("noted"), Reply("and more")])
        one = {"limits.concurrent_turns": 1}
        async with Daemon(tmp_path, config=asks(model, **one) | with_telegram(server)):
            prompt, buttons = await asked(server, ADA)
            server.write(ADA, "and then?")
            server.write(777, "hello")
            await server.said(777, approved("to bob"))
            server.write(ADA, "/status")
            await server.said(ADA, approved("waiting for an approval: write\nwaiting: 1 message"))
            server.press(ADA, prompt.message_id, buttons["Allow"])
            await server.said(ADA, approved("and more"))
    asked_of = [line["content"] for line in lines_of(tmp_path, f"telegram_{ADA}") if line["role"] == "user"]
    assert asked_of == ["note: milk", "and then?"]
    assert written(tmp_path) == ["milk"]


async def test_a_turn_that_waits_is_ended(tmp_path: Path) -> None:
    """By ``/stop``, ``/new``, a message in mode ``interrupt``, and with its conversation: nothing is run.

    A later press is told so, and the chat goes on.
    """
    ways = {"/stop": "Stopped.", "leave it": "well then", "/new": "A new conversation begins."}
    async with TelegramServer() as server, ModelServer() as model:
        config = asks(model, **{"limits.queue_mode": "interrupt"}) | with_telegram(server)
        async with Daemon(tmp_path, config=config) as daemon:
            model.script.append(writing("milk"))
            prompt, buttons = await asked(server, ADA)
            await told(tmp_path, "sessions", "clear", f"telegram:{ADA}", "--everything")
            await until(lambda: _waits(daemon, None))
            press = server.press(ADA, prompt.message_id, buttons["Allow"])
            await server.alerted(press, "There is no such approval request")
            assert list((tmp_path / "state" / "approvals").iterdir()) == []
            for chat, (word, answer) in enumerate(ways.items(), 101):
                model.script.append(writing("milk"))
                prompt, buttons = await asked(server, chat, user=chat)
                if word == "leave it":
                    model.script.append(Reply(answer))
                server.write(chat, word)
                await server.said(chat, approved(answer))
                await server.until(lambda prompt=prompt: "Stopped before anybody decided" in prompt.text)
                press = server.press(chat, prompt.message_id, buttons["Allow"])
                await server.alerted(press, "Too late: the answer was stopped")
                server.write(chat, "/help")
                await server.said(chat, approved("/resume"))

    assert written(tmp_path) == []
    for chat in (101, 102, 103):
        assert results(lines_of(tmp_path, f"telegram_{chat}")) == ["not run: the turn was stopped"], chat


async def test_a_message_that_comes_meanwhile_enters_the_turn_that_goes_on(tmp_path: Path) -> None:
    """Mode ``steer``: it enters at the next request, and both are answered by the one answer."""
    async with TelegramServer() as server, ModelServer() as model:
        model.script.extend([writing("milk"), Reply("both")])
        steer = {"limits.queue_mode": "steer"}
        async with Daemon(tmp_path, config=asks(model, **steer) | with_telegram(server)) as daemon:
            prompt, buttons = await asked(server, ADA)
            server.write(ADA, "and bread")
            await until(lambda: _waits(daemon, 1))
            server.press(ADA, prompt.message_id, buttons["Allow"])
            await server.said(ADA, approved("both"))
    lines = lines_of(tmp_path, f"telegram_{ADA}")
    assert [line["role"] for line in lines] == ["user", "assistant", "tool", "user", "assistant"]
    assert len(lines[-1]["answers"]) == 2
    assert written(tmp_path) == ["milk"]


async def _waits(daemon: Daemon, count: int | None) -> bool:
    """Say whether so many messages wait behind the turn of the one lane; None: there is none."""
    lanes = (await status(daemon))["lanes"]
    return not lanes if count is None else [lane["waiting"] for lane in lanes] == [count]
