"""Files of messages reach the model as bytes where it takes them, and by name everywhere else."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from session.context.links import MAX_FILES, linked_files, targets
from session.errors import ModelRefused
from session.models.model import Answer, ToolCall
from session.store.store import Session, Store
from session.tools import Toolbox
from session.transcript.attachments import HISTORY_IMAGES, Attachment, reference, sniffed
from session.transcript.key import SessionKey
from session.turn.turn import Request, StopSwitch, TurnContext, TurnLimits, Turns
from tests.contracts.models import Script
from tests.support.guarantee import guarantee

ADA = SessionKey("cli:ada")
JPEG = b"\xff\xd8\xff\xe0 a picture"
PDF = b"%PDF-1.7 a paper"


class Rig:
    def __init__(self, folder: Path, *steps: Any, parts: tuple[str, ...] = ("image", "pdf")) -> None:
        self.folder = folder
        self.store = Store(folder, zone=UTC)
        self.model = Script(steps)
        self.model.parts = set(parts)  # type: ignore[arg-type]
        self.turns = Turns(
            model=self.model,
            toolbox=Toolbox([]),
            limits=TurnLimits(max_tool_rounds=1),
            zone=UTC,
            clock=lambda: datetime.now(UTC),
            turn_context=self._around,
            workspace=folder,
        )
        self._count = 0

    async def _around(self, session: Session, request: Request) -> TurnContext:
        return TurnContext(parts=(), files=self.folder / "files", tools=())

    def media(
        self, name: str, data: bytes = JPEG, *, kind: str = "photo", mime: str = "image/jpeg"
    ) -> Attachment:
        path = self.folder / "media" / "ab" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return Attachment(kind, name, mime, len(data), f"media/ab/{name}")

    async def ask(self, text: str, *files: Attachment, id: str = "") -> Any:
        """Return the content of the newest user message as the model got it."""
        self._count += 1
        request = Request(id=id or f"m{self._count}", key=ADA, text=text, attachments=files)
        async with self.store.open(ADA) as session:
            await self.turns.run(session, request, stop=StopSwitch())
        return self.newest()

    def newest(self) -> Any:
        messages = self.model.prompts[-1].messages
        return [message["content"] for message in messages if message["role"] == "user"][-1]

    def users(self) -> list[Any]:
        return [m["content"] for m in self.model.prompts[-1].messages if m["role"] == "user"]

    async def lines(self) -> list[dict[str, Any]]:
        return (await self.store.look(ADA)).lines()


@pytest.fixture
async def build(tmp_path: Path) -> Any:
    built: list[Rig] = []

    def make(*steps: Any, **more: Any) -> Rig:
        built.append(Rig(tmp_path, *steps, **more))
        return built[-1]

    yield make
    for rig in built:
        await rig.store.aclose()


Build = Callable[..., Rig]


def url(data: bytes, mime: str) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def kinds(content: Any) -> list[str]:
    return ["text"] if isinstance(content, str) else [part["type"] for part in content]


async def test_a_photo_is_shown_beside_its_text_and_stored_by_name(build: Build) -> None:
    rig = build()
    photo = rig.media("cat.jpg")

    content = await rig.ask("what is it?", photo)

    assert content == [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": url(JPEG, "image/jpeg")}},
    ]
    line = (await rig.lines())[0]
    assert line["content"] == "what is it?"
    assert line["attachments"] == [
        {
            "kind": "photo",
            "name": "cat.jpg",
            "mime": "image/jpeg",
            "size": len(JPEG),
            "ref": "media/ab/cat.jpg",
        }
    ]


async def test_a_paper_is_shown_as_a_file_and_later_named(build: Build) -> None:
    rig = build()
    paper = rig.media("a.pdf", PDF, kind="document", mime="application/pdf")

    content = await rig.ask("", paper)
    assert content == [
        {"type": "file", "file": {"filename": "a.pdf", "file_data": url(PDF, "application/pdf")}}
    ]

    await rig.ask("and now?")
    assert rig.users() == ["[document: a.pdf (application/pdf, 16 B), media/ab/a.pdf]", "and now?"]


async def test_a_model_without_eyes_gets_names(build: Build) -> None:
    rig = build(parts=())

    content = await rig.ask("look", rig.media("cat.jpg"), rig.media("b.mp3", mime="audio/mpeg", kind="audio"))

    assert content == (
        "look\n[photo: cat.jpg (image/jpeg, 14 B), media/ab/cat.jpg]\n"
        "[audio: b.mp3 (audio/mpeg, 14 B), media/ab/b.mp3]"
    )


async def test_of_older_messages_the_last_few_images_are_shown(build: Build) -> None:
    rig = build()
    for n in range(HISTORY_IMAGES + 2):
        await rig.ask(f"look {n}", rig.media(f"{n}.jpg"))

    await rig.ask("all of them?", rig.media("x.jpg"), rig.media("y.jpg"))

    shown = [kinds(content) for content in rig.users()]
    assert shown == [["text"]] * 2 + [["text", "image_url"]] * 4 + [["text", "image_url", "image_url"]]
    assert rig.users()[0] == "look 0\n[photo: 0.jpg (image/jpeg, 14 B), media/ab/0.jpg]"


async def test_a_file_that_is_gone_is_said_to_be(build: Build) -> None:
    rig = build()
    photo = rig.media("cat.jpg")
    (rig.folder / photo.ref).unlink()

    assert await rig.ask("look", photo) == (
        "look\n[photo: cat.jpg (image/jpeg, 14 B), media/ab/cat.jpg (no longer there)]"
    )


@guarantee("security", "A file outside `media/` is never shown to a model.")
@pytest.mark.parametrize(
    "ref",
    ["../secret.jpg", "media/../secret.jpg", "media/link.jpg", "media/out/secret.jpg", "/etc/passwd", "media",
     "", "secret.jpg", "media/a\0b", "media//x", "state/gateway.db"],
)  # fmt: skip
async def test_nothing_outside_of_media_is_shown(build: Build, ref: str) -> None:
    rig = build()
    rig.media("cat.jpg")
    (rig.folder / "secret.jpg").write_bytes(JPEG)
    (rig.folder / "media" / "link.jpg").symlink_to(rig.folder / "secret.jpg")
    (rig.folder / "media" / "out").symlink_to(rig.folder)

    content = await rig.ask("look", Attachment("photo", "x.jpg", "image/jpeg", 5, ref))

    assert isinstance(content, str)
    assert content.startswith("look\n[photo: x.jpg (image/jpeg, 5 B)")


async def test_what_only_claims_to_be_an_image_is_named(build: Build) -> None:
    rig = build()

    assert kinds(await rig.ask("look", rig.media("x.jpg", b"<html>no</html>"))) == ["text"]
    assert kinds(await rig.ask("look", rig.media("y.jpg", PDF))) == ["text"]


async def test_a_model_that_refuses_the_bytes_is_asked_again_with_names(build: Build) -> None:
    rig = build(ModelRefused("cannot decode"), "fine")

    content = await rig.ask("look", rig.media("x.jpg"))

    assert isinstance(content, str)
    assert [kinds(prompt.messages[-1]["content"]) for prompt in rig.model.prompts] == [
        ["text", "image_url"],
        ["text"],
    ]
    assert (await rig.lines())[-1]["content"] == "fine"


async def test_the_photo_is_there_in_every_round_of_its_turn(build: Build) -> None:
    call = Answer("", tool_calls=[ToolCall("c1", "none", "{}")], finish="tool_calls")
    rig = build(call, "done")

    await rig.ask("look", rig.media("x.jpg"))

    assert [kinds(prompt.messages[0]["content"]) for prompt in rig.model.prompts] == [
        ["text", "image_url"]
    ] * 2


async def test_more_bytes_than_a_request_may_hold_are_named(build: Build) -> None:
    from session.transcript.attachments import MAX_SHOWN_BYTES

    rig = build()
    big = rig.media("big.jpg", JPEG + bytes(MAX_SHOWN_BYTES))
    small = rig.media("small.jpg")

    assert kinds(await rig.ask("look", big, small)) == ["text", "image_url"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (Attachment("photo", "cat.jpg", "image/jpeg", 120_000, "media/ab/x.jpg"),
         "[photo: cat.jpg (image/jpeg, 120 kB), media/ab/x.jpg]"),
        (Attachment("voice", "", "", 0, ""), "[voice]"),
        (Attachment("video", "a\n b", "", 5_300_000, "m"), "[video: a b (5.3 MB), m]"),
    ],
)  # fmt: skip
def test_a_file_is_named_in_words(file: Attachment, words: str) -> None:
    assert reference(file) == words


def test_kinds_are_told_by_the_first_bytes() -> None:
    assert sniffed(b"\x89PNG\r\n\x1a\n...") == "image/png"
    assert sniffed(b"GIF89a") == "image/gif"
    assert sniffed(b"RIFF....WEBPVP8 ") == "image/webp"
    assert sniffed(b"RIFF....WAVEfmt ") == ""
    assert sniffed(b"") == ""


# -- files of an answer --------------------------------------------------------------------------


def linked(workspace: Path, text: str, max_bytes: int = 1000) -> list[str]:
    folder = workspace / "files" / "chats" / "ada"
    return [file.ref for file in linked_files(text, folder, workspace=workspace, max_bytes=max_bytes)]


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    folder = tmp_path / "files" / "chats" / "ada"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "b c.png", "sub/d (1).pdf", "~x", "empty"):
        (folder / name).write_bytes(b"" if name == "empty" else b"data")
    (folder / "big").write_bytes(bytes(1001))
    (folder / "link").symlink_to(folder / "a.txt")
    (folder.parent / "bob").mkdir()
    (folder.parent / "bob" / "s.txt").write_text("secret")
    (folder / "bob").symlink_to(folder.parent / "bob")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[the file](a.txt)", ["a.txt"]),
        ("![](./a.txt)", ["a.txt"]),
        ("[x](<b c.png>) and ![y](b%20c.png 'title')", ["b c.png"]),
        ("[x](sub/d%20(1).pdf)", ["sub/d (1).pdf"]),
        ("[x](a.txt)[y](a.txt)", ["a.txt"]),
        ("[x](nothing.txt) [y](sub) [z](empty) [w](big)", []),
        ("[x](link) [y](bob/s.txt) [z](../bob/s.txt) [v](sub/../a.txt)", []),
        ("[x](https://a.txt) [y](mailto:a.txt) [z](/a.txt) [w](#a.txt) [v](~x)", []),
        ("`[x](a.txt)`", []),
        ("```\n[x](a.txt)\n```\n[y](b%20c.png)", ["b c.png"]),
        ("~~~\n[x](a.txt)", []),
        ("a.txt and [a.txt] and (a.txt)", []),
        ("[x](a%00.txt) [y](%FF) [z](%2e%2e/bob/s.txt)", []),
    ],
)  # fmt: skip
def test_an_answer_carries_the_files_it_links_to(chat: Path, text: str, names: list[str]) -> None:
    assert linked(chat, text) == [f"files/chats/ada/{name}" for name in names]


def test_a_linked_file_is_described(chat: Path) -> None:
    folder = chat / "files" / "chats" / "ada"

    (file,) = linked_files("[x](<b c.png>)", folder, workspace=chat, max_bytes=1000)

    assert file == Attachment("photo", "b c.png", "image/png", 4, "files/chats/ada/b c.png")


@pytest.mark.parametrize("home", ["", "agents/clerk", "chats"])
def test_an_answer_from_the_shared_folder_links_to_no_other_scope(tmp_path: Path, home: str) -> None:
    """Of the gateway or of an agent, wherever the workspace lies; a disk may take both cases of a letter."""
    folder = tmp_path / home / "files"
    names = ("chats/telegram_-5/theirs.txt", "people/bob/his.txt", "CHATS/odd.txt", "ours/chats/a.txt")
    for name in names:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")
    text = " ".join(f"[it](./{name})" for name in names)

    found = linked_files(text, folder, workspace=tmp_path, max_bytes=1000)

    assert [file.name for file in found] == ["a.txt"]


def test_at_most_ten_go_out(chat: Path) -> None:
    for n in range(MAX_FILES + 3):
        (chat / "files" / "chats" / "ada" / f"{n}.txt").write_text("x")

    assert len(linked(chat, "".join(f"[x]({n}.txt)" for n in range(MAX_FILES + 3)))) == MAX_FILES


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "[x](" * 50_000, "[x](" + "(" * 100_000, "`" * 100_000, "![](a" * 40_000]
)
def test_texts_made_to_be_slow_are_not(text: str) -> None:
    import time

    begun = time.process_time()
    targets(text)

    assert time.process_time() - begun < 2
