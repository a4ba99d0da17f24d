"""Whole gateways whose assistant sends files: with its answer, once, and none but those of the chat."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.discord_server import DiscordServer
from tests.support.guarantee import guarantee
from tests.support.harness import ROOT, Daemon, answer_to
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model, write
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, told, with_discord, with_telegram

pytestmark = guarantee("once", "A file is sent once with its answer, and only if it belongs to the chat.")

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 100


def send(path: str, **more: str) -> str:
    return f"[[tool:send_file {json.dumps({'path': path, **more})}]]"


def folder(workspace: Path, stem: str = f"telegram_{ADA}") -> Path:
    return workspace / "files" / "chats" / stem


def shown(server: TelegramServer) -> list[tuple[str, str, str]]:
    """Method, text or caption, and name of the file, of each message that the chat has."""
    return [(sent.method, sent.text, sent.file[0] if sent.file else "") for sent in server.sent_to(ADA)]


def results(workspace: Path, stem: str = f"telegram_{ADA}") -> list[str]:
    return [line["content"] for line in lines_of(workspace, stem) if line["role"] == "tool"]


@pytest.mark.parametrize(
    ("queue", "point"),
    [
        ("embedded", ""),
        ("embedded", "tool.after:1"),
        ("embedded", "append.after:3"),
        ("embedded", "settle.before:1"),
        ("embedded", "settle.after:1"),
        ("rabbitmq", "publish.after:1"),
    ],
    indirect=["queue"],
)
async def test_a_file_goes_out_once_with_its_answer(
    tmp_path: Path, queue: dict[str, Any], point: str
) -> None:
    """With its caption, and whatever dies on the way: the file is sent once, behind the answer."""
    write(folder(tmp_path) / "a" / "may.txt", "figures")
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        config = with_model(model, **with_telegram(server, stream=False), **queue)
        async with Daemon(tmp_path, config=config, kill_at=point) as daemon:
            server.write(ADA, f"the figures {send('./a/may.txt', caption='of *May*')}")
            if point:
                await daemon.reborn()
            await server.until(lambda: len(server.sent_to(ADA)) == 2, timeout_s=120)
            server.write(ADA, "thanks")
            await server.until(lambda: len(server.sent_to(ADA)) == 3, timeout_s=120)

    assert shown(server) == [
        ("sendMessage", "stub: the figures", ""),
        ("sendDocument", "of *May*", "may.txt"),
        ("sendMessage", "stub: thanks", ""),
    ]
    assert results(tmp_path) == ["a/may.txt (7 bytes) will be sent with your answer"]


async def test_what_is_not_the_chats_own_is_not_sent(tmp_path: Path) -> None:
    """Other scopes, links, ways out, what is empty or too large: an error for the model, no file goes out."""
    write(folder(tmp_path, "telegram_2") / "secret.txt", "of another chat")
    write(folder(tmp_path) / "empty.txt", "")
    (folder(tmp_path) / "big.bin").write_bytes(b"0" * (2**20 + 1))
    (folder(tmp_path) / "link.txt").symlink_to(folder(tmp_path, "telegram_2") / "secret.txt")
    bad = ["../telegram_2/secret.txt", "/etc/passwd", "link.txt", "empty.txt", "big.bin", "none.txt"]
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        config = with_model(model, **{"media.max_mb": 1}, **with_telegram(server, stream=False))
        async with Daemon(tmp_path, config=config) as daemon:
            server.write(ADA, "go " + " ".join(send(path) for path in bad))
            await server.until(lambda: len(server.sent_to(ADA)) == 1, timeout_s=120)
            await daemon.said("letter.delivered")

    assert shown(server) == [("sendMessage", "stub: go", "")]
    found = results(tmp_path)
    assert len(found) == len(bad)
    assert all(text.startswith("error: ") for text in found)


async def test_a_job_that_says_nothing_may_still_show_something(tmp_path: Path) -> None:
    """``NO_REPLY`` is not sent, the file of its turn is."""
    write(folder(tmp_path) / "chart.png", "")
    (folder(tmp_path) / "chart.png").write_bytes(PNG)
    async with TelegramServer() as server, ModelServer() as model:
        server.add_chat(ADA)
        async with Daemon(tmp_path, config=with_model(model, **with_telegram(server, stream=False))):
            server.write(ADA, "hi")
            await server.until(lambda: len(server.sent_to(ADA)) == 1, timeout_s=120)
            words = ["--message", f"{send('chart.png')} [[say:NO_REPLY]]", "--to", f"telegram:{ADA}"]
            job_id = await told(tmp_path, "cron", "add", "--every", "1d", *words, "--session", "chat")
            await told(tmp_path, "cron", "run", job_id.strip())
            await server.until(lambda: len(server.sent_to(ADA)) == 2, timeout_s=120)

    assert shown(server)[1:] == [("sendPhoto", "", "chart.png")]


async def test_discord_shows_the_file_with_its_caption(tmp_path: Path) -> None:
    async with DiscordServer() as server, ModelServer() as model:
        direct = server.dm("ada")
        write(folder(tmp_path, f"discord_{direct.id}") / "may.txt", "figures")
        async with Daemon(tmp_path, config=with_model(model, **with_discord(server))):
            await server.connected(within_s=120)
            server.write(direct, f"go {send('may.txt', caption='of May')}", user="ada")
            answer, file = await server.sent_count(2, within_s=120)

    assert (answer.text, answer.files) == ("stub: go", [])
    assert file.text == "of May"
    assert [(name, data) for name, _, data in file.files] == [("may.txt", b"figures")]


async def test_page_and_terminal_are_told_where_a_file_lies(tmp_path: Path) -> None:
    """People sit at the machine there: the path stands beside the answer, which itself stays as it is."""
    file = folder(tmp_path, "cli_direct") / "may.txt"
    write(file, "figures")
    async with ModelServer() as model, Daemon(tmp_path, config=with_model(model)) as daemon:
        reply = await answer_to(daemon, "cli:direct", "1", f"go {send('may.txt', caption='of May')}")
        words = ("-m", "gateway", "--workspace", str(tmp_path), "chat", "-m", f"so {send('may.txt')}")
        spoken = await asyncio.create_subprocess_exec(
            *(sys.executable, *words),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        printed, words = await spoken.communicate()

    assert (reply["reply"], reply["files"]) == ("stub: go", [f"{file}: of May"])
    assert printed == b"stub: so\n"
    assert str(file) in words.decode().split("\n")
