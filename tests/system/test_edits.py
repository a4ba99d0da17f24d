"""What a person corrects after the answer is what the model reads, recall finds and an export holds."""

from __future__ import annotations

from pathlib import Path

from tests.support.discord_server import DiscordServer
from tests.support.harness import Daemon
from tests.support.model_server import ModelServer
from tests.support.place import lines_of, with_model
from tests.support.telegram_server import TelegramServer
from tests.system.platform_place import ADA, told, with_discord, with_telegram
from tests.system.test_recall import hits


async def test_an_edit_of_an_answered_message_stands_where_the_old_text_stood(tmp_path: Path) -> None:
    """A text, a caption, and a second edit, on both platforms; the edit itself asks nothing.

    A message that is deleted is not sent again.
    """
    photo = [("photo", "bill.jpg", b"\xff\xd8\xff\xe0jpeg", "image/jpeg")]
    async with TelegramServer() as telegram, DiscordServer() as discord, ModelServer() as model:
        config = with_telegram(telegram, stream=False) | with_discord(discord) | with_model(model)
        direct = discord.dm("ada")
        async with Daemon(tmp_path, config=config) as daemon:
            await discord.connected(within_s=120)
            first = telegram.message_of[telegram.write(ADA, "the rent is ninehundred")]
            await telegram.said(ADA, lambda sent: "ninehundred" in sent.text)
            bill = telegram.message_of[telegram.write(ADA, "a bill of forty", files=photo)]
            await telegram.said(ADA, lambda sent: "forty" in sent.text)
            telegram.write(ADA, "the rent is ninefifty", edited=first)
            telegram.write(ADA, "the rent is ninesixty", edited=first)
            telegram.write(ADA, "a bill of fifty", edited=bill, files=photo)
            telegram.write(ADA, "what do I pay?")
            await telegram.said(ADA, lambda sent: "pay" in sent.text)
            asked = [message["content"] for message in model.seen[-1].messages]
            people = [message for message in model.seen[-1].messages if message["role"] == "user"]

            written = discord.write(direct, "my cat is Tom", user="ada")
            await discord.sent_count(1, within_s=120)
            discord.edit(written, "my cat is Tim")
            discord.write(direct, "who is my cat?", user="ada")
            await discord.sent_count(2, within_s=120)
            asked_there = [message["content"] for message in model.seen[-1].messages]
            discord.delete(written)
            discord.write(direct, "and now?", user="ada")
            await discord.sent_count(3, within_s=120)
            without = str(model.seen[-1].messages)

            found = await hits(daemon, f"telegram:{ADA}", "ninesixty")
            old = await hits(daemon, f"telegram:{ADA}", "ninefifty forty")
            nanobot = await told(tmp_path, "sessions", "export", "--to", "nanobot", f"telegram:{ADA}")
            annabelle = await told(tmp_path, "sessions", "export", "--to", "annabelle", f"telegram:{ADA}")
            assert len(model.turns) == 6

    questions = [text if isinstance(text, str) else text[0]["text"] for text in asked[1:]]
    assert questions[0].endswith("the rent is ninesixty")
    assert "a bill of fifty" in questions[2]
    assert not any(old in str(people) for old in ("the rent is ninehundred\n", "ninefifty", "bill of forty'"))
    assert any(str(text).endswith("my cat is Tim") for text in asked_there)
    assert "my cat is" not in without.replace("stub: my cat is", "")
    notes = [line for line in lines_of(tmp_path, f"discord_{direct.id}") if line.get("kind") == "note"]
    assert notes[-1]["message_id"] == f"discord:{written}:d"
    assert [(hit["text"], hit["speaker"]) for hit in found] == [("the rent is ninesixty", f"Person {ADA}")]
    assert [hit["text"] for hit in old if hit["speaker"] != "assistant"] == []
    assert nanobot.index('"the rent is ninesixty"') < nanobot.index("a bill of fifty")
    assert '"the rent is ninehundred"' not in nanobot
    assert "ninesixty" in annabelle
    lines = lines_of(tmp_path, f"telegram_{ADA}")
    assert lines[0]["content"] == "the rent is ninehundred"
