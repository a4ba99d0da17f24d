"""What people see of answers on Telegram and Discord, through one running gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.discord_server import DiscordServer
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer, Reply
from tests.support.place import with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, with_discord, with_telegram

# What a model writes, what Telegram shows, and what of it is bold.
ON_TELEGRAM = (
    (
        "Hi.\n\n1. Install:\n   ```sh\n   pip install x\n   ```\n   Then restart.\n2. Done",
        "Hi.\n\n1. Install:\npip install x\nThen restart.\n2. Done",
        [],
    ),
    ("1. Install:\n   ```sh\n   pip install x\n   ```\n2. Done", "1. Install:\npip install x\n2. Done", []),
    ("- a\n  > quoted\n- b", "• a\nquoted\n• b", []),
    ("> - a\n>   ~~~\n>   b\n>   ~~~\n>   c", "• a\nb\nc", []),
    *(
        (same, same, [])
        for same in (
            "https://github.com/a/b/blob/main/pkg/__init__.py",
            "https://x.org/_next/data_/a",
            "https://x.org/q?a*b*c",
            "write to _a_b_@x.org",
            r"E:\work\.cfg\_tmp",
            "2*3*4 is 24",
            "大约3~5天，另加8~9天。",
            "Copy ~/.a to ~/b and ~/c.",
        )
    ),
    ("**步骤一：**打开。**步骤二：**保存。", "步骤一：打开。步骤二：保存。", ["步骤一：", "步骤二："]),
    ("注意：**重要：**请先备份，再**重启**。", "注意：重要：请先备份，再重启。", ["重要：", "重启"]),
    ("请看**「说明」**一节", "请看「说明」一节", ["「说明」"]),
    ('**"안녕"**라고', '"안녕"라고', ['"안녕"']),
)
ON_DISCORD = (
    ("| a | b |\n|---|---|\n| c | 12 |", "```\na | b\n--+---\nc | 12\n```"),
    ("- [x] a\n\n---\n\n#### b\n\n![c](https://d.example/e.png)", "- ☑ a\n\n────────────\n\n**b**\n\n[c](https://d.example/e.png)"),
    ("~~~py\n| a |\n|---|\n~~~", "```py\n| a |\n|---|\n```"),
)  # fmt: skip
# Nothing of it is seen: zero-width space, word joiner, byte order mark, Hangul filler, blank Braille pattern.
INVISIBLE = ("\u200b\u2060", "\ufeff \u00ad", "\u3164\u2800\ufe0f\u2065\U000e0001\U000e0fff\U0001d159")


def bold(sent: Any) -> list[str]:
    units = sent.text.encode("utf-16-le")
    return [
        units[2 * each["offset"] : 2 * (each["offset"] + each["length"])].decode("utf-16-le")
        for each in sent.entities
        if each["type"] == "bold"
    ]


async def test_people_see_what_the_model_meant(tmp_path: Path) -> None:
    async with TelegramServer() as telegram, DiscordServer() as discord, ModelServer() as model:
        channel = discord.channel(discord.guild("home"), "general")
        entry = {"id": "77", "type": 4, "name": "launch", "description": "", "handler": 2}
        discord.commands.append(entry)
        config = with_telegram(telegram) | with_discord(discord, stream=True) | with_model(model)
        async with Daemon(tmp_path, config=config):
            await discord.connected(within_s=120)
            for markdown, shown, marked in ON_TELEGRAM:
                await _answered_on_telegram(telegram, model, markdown)
                assert telegram.sent_to(ADA)[-1].text == shown
                assert bold(telegram.sent_to(ADA)[-1]) == marked, markdown
            for invisible in INVISIBLE:
                model.chooses = lambda _, text=invisible: Reply(text=text)
                sent = await _next(telegram)
                assert "gave no usable answer" in sent.text
            model.chooses = None

            for number, (markdown, shown) in enumerate(ON_DISCORD, 1):
                model.script.append(Reply(text=markdown))
                discord.write(channel, "question", user="ada")
                assert (await discord.sent_count(number, within_s=60))[-1].text == shown

            await discord.until(lambda: any(each["name"] == "new" for each in discord.commands))
            kept = [each for each in discord.commands if each["type"] == 4]
            assert [(each["id"], each["handler"]) for each in kept] == [("77", 2)]

            await _streamed_as_replies(telegram, discord, model)
            await _refused_for_good(telegram, model)


async def _next(telegram: TelegramServer) -> Any:
    count = len(telegram.sent_to(ADA))
    telegram.write(ADA, "question")
    await telegram.until(lambda: len(telegram.sent_to(ADA)) > count)
    return telegram.sent_to(ADA)[-1]


async def _answered_on_telegram(telegram: TelegramServer, model: ModelServer, markdown: str) -> None:
    model.script.append(Reply(text=markdown))
    await _next(telegram)


async def _streamed_as_replies(telegram: TelegramServer, discord: DiscordServer, model: ModelServer) -> None:
    """An answer shown while it is written is a reply from its first version on."""
    channel = next(iter(discord.channels.values()))
    words = " ".join(f"word{number}" for number in range(40))

    half = asyncio.Event()
    model.script.append(Reply(text=words, half=half))
    asked = telegram.message_of[telegram.write(ADA, "question")]
    await telegram.said(ADA, lambda sent: sent.text.startswith("word0 ") and sent.text != words)
    half.set()
    sent = await telegram.said(ADA, lambda sent: sent.text == words)
    assert (len(sent.versions) > 1, sent.reply_to) == (True, asked)

    half = asyncio.Event()
    model.script.append(Reply(text=words, half=half))
    asked = discord.write(channel, "question", user="ada")
    await discord.until(lambda: discord.sent[-1].text.startswith("word0 "))
    half.set()
    await discord.until(lambda: discord.messages[discord.sent[-1].id].content == words)
    assert discord.sent[-1].reference == asked


async def _refused_for_good(telegram: TelegramServer, model: ModelServer) -> None:
    """The chat hears of an answer that Telegram refuses."""
    telegram.fail("sendMessage", how="400", times=None, containing="refuse me")
    model.script.append(Reply(text="refuse me"))
    sent = await _next(telegram)
    assert sent.text == "Telegram rejected the answer to this message. The operator can see why."
