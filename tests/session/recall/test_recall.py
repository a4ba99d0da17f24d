"""What was said is found by its words, in its own scope alone, and no longer once it is gone."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import unicodedata
from datetime import UTC
from pathlib import Path

import pytest

from session.errors import StoreError
from session.recall import recall
from session.recall.index import VERSION
from session.recall.update import WHOSE
from session.recall.words import Sieve
from session.store import archived
from session.store.listing import key_at
from session.transcript import line as line_module
from session.transcript.agent import AGENT
from session.transcript.line import make_line, stamp
from session.transcript.loading import read_beginning
from tests.session.recall.place import ADA, BOB, GROUP, START, Place, fact, place
from tests.support.guarantee import guarantee
from tests.support.until import until


def inside(folder: Path, word: str) -> list[str]:
    """Name the files below a folder that hold a word."""
    return [
        path.name
        for path in folder.rglob("*")
        if path.is_file() and word.encode() in path.read_bytes().lower()
    ]


async def test_what_was_said_a_moment_ago_is_found_with_all_that_is_known_of_it(here: Place) -> None:
    """Who said it, when, and where it stands; another form of the word finds it."""
    await here.say(ADA, "My sister adopted two ferrets", "How lovely!", sender={"id": "1", "name": "Ada"})

    (hit,) = await here.find(ADA, "Who adopts a ferret?")
    session = (await here.store.look(ADA)).session_id

    assert (hit.kind, hit.key, hit.session_id, hit.message_id) == ("message", ADA, session, "m0")
    assert (hit.seq, hit.at, hit.speaker) == (1, stamp(START, UTC), "Ada")
    assert hit.text == "My sister adopted two ferrets"


@pytest.mark.parametrize("date", ["2026-03-09", "2026-03", "March 9th", "in March", "2026年3月9日"])
async def test_what_was_said_on_the_day_of_the_question_comes_first(date: str, tmp_path: Path) -> None:
    """Messages, notes and facts alike; later ones with the same words come behind."""
    days = {"early": "2026-02-09", "then": "2026-03-09", "late": "2026-05-10"}
    async with place(tmp_path) as here:
        for name, day in days.items():
            async with here.store.open(ADA) as session:
                said = (f"beans {name}", f"nice {name}")
                await session.append([make_line("user", text, f"{day}T10:00:00+00:00") for text in said])
                await session.end()
        here.note("HISTORY.md", "\n\n".join(f"[{day} 10:00] peas {name}" for name, day in days.items()))
        facts = (fact(f"corn {name}", created_at=f"{day}T10:00:00+00:00") for name, day in days.items())
        here.note("facts.jsonl", "".join(facts))

        hits = [hit for word in ("beans", "peas", "corn") for hit in await here.find(ADA, f"{word} {date}")]
        alone = await here.texts(ADA, date)

    first = {
        hit.kind: hit.text for hit in reversed(hits) if hit.text.split()[-2] in ("beans", "peas", "corn")
    }
    then = {"message": "beans then", "history": "[2026-03-09 10:00] peas then", "fact": "corn then"}
    assert first == then
    assert {*alone[:4]} == {*then.values(), "nice then"}


@guarantee("leaks", "A search finds only text of its own scope.")
async def test_a_chat_finds_nothing_of_another(here: Place) -> None:
    """Neither messages nor notes nor facts, and no word of it is in its index."""
    await here.say(ADA, "the code is swordfish", "noted")
    here.note("MEMORY.md", "- swordfish is the code\n")
    here.note("facts.jsonl", fact("likes swordfish"))
    await here.say(BOB, "hello", "hi")
    assert len(await here.find(ADA, "swordfish")) == 3

    assert await here.find(BOB, "swordfish code") == []
    assert await here.find(BOB, "hello") != []


async def test_direct_chats_of_a_workspace_share_and_a_group_does_not(tmp_path: Path) -> None:
    """A group finds its own alone and nobody finds what was said in it, also of what turns out to be one."""
    async with place(tmp_path, kind="workspace") as here:
        await here.say(ADA, "swordfish of ada", "ok")
        await here.say(BOB, "swordfish of bob", "ok")
        await here.say(GROUP, "swordfish of all", "ok", group=True)

        assert sorted(await here.texts(ADA, "swordfish")) == ["swordfish of ada", "swordfish of bob"]
        assert {hit.key for hit in await here.find(BOB, "swordfish")} == {ADA, BOB}
        assert await here.texts(GROUP, "swordfish") == ["swordfish of all"]

        await here.say(BOB, "now a group", "ok", group=True)
        assert await here.texts(ADA, "swordfish") == ["swordfish of ada"]
        assert await here.texts(BOB, "swordfish") == ["swordfish of bob"]


async def test_what_was_withdrawn_is_found_no_more(here: Place) -> None:
    await here.say(ADA, "apples", "yes", "swordfish", "no")
    assert await here.texts(ADA, "swordfish") == ["swordfish"]
    await here.record("undo", **{"from": 2})

    assert await here.texts(ADA, "swordfish") == []
    assert await here.texts(ADA, "apples") == ["apples"]
    here.index().unlink()
    assert await here.texts(ADA, "swordfish") == []


async def test_a_deleted_message_is_found_no_more(here: Place) -> None:
    """With its answer and its edits, wherever the deletion stands; what was said beside it is found."""
    await here.say(ADA, "swordfish", "what a swordfish", "apples", "no swordfish here")
    assert len(await here.texts(ADA, "swordfish")) == 3
    await here.record("note", "swordfish again", edits="m0")
    assert len(await here.texts(ADA, "swordfish")) == 3
    await here.record("note", edits="m0", deleted=True)

    assert await here.texts(ADA, "swordfish") == ["no swordfish here"]
    await here.end()
    here.index().unlink()
    assert await here.texts(ADA, "swordfish apples") != []
    assert await here.texts(ADA, "swordfish") == ["no swordfish here"]


@guarantee("privacy", "Cleared or deleted text leaves no word in a search index.")
async def test_what_was_cleared_leaves_no_word(here: Place, tmp_path: Path) -> None:
    """Neither in a hit nor in a byte of the index; ended sessions are found as before."""
    await here.say(ADA, "apples", "yes")
    await here.end()
    await here.say(ADA, "swordfish", "no")
    assert await here.texts(ADA, "swordfish") == ["swordfish"]
    assert inside(tmp_path / "state" / "recall", "swordfish")

    await here.store.clear(ADA)

    assert not inside(tmp_path / "state", "swordfish")
    assert await here.texts(ADA, "swordfish apples") == ["apples"]
    assert not inside(tmp_path / "state", "swordfish")


@guarantee("privacy", "Cleared or deleted text leaves no word in a search index.")
async def test_a_deleted_session_leaves_no_word(here: Place, tmp_path: Path) -> None:
    """As retention deletes it, and as somebody does with ``rm``."""
    for word in ("swordfish", "tunafish", "catfish"):
        await here.say(ADA, word, "no")
        await here.end()
    assert len(await here.find(ADA, "swordfish tunafish")) == 2
    first, second, _ = sorted((tmp_path / "sessions/archive/telegram_1").iterdir())

    await asyncio.to_thread(
        archived.delete, here.store.state, here.store.layout, "telegram:1", "telegram_1", first.name[17:43]
    )
    await here.store.state.compact()
    assert not inside(tmp_path / "state", "swordfish")
    assert await here.texts(ADA, "tunafish") == ["tunafish"]
    second.unlink()

    assert await here.texts(ADA, "tunafish catfish") == ["catfish"]
    assert not inside(tmp_path / "state", "tunafish")


async def test_clearing_a_chat_takes_its_words_out_of_a_shared_index(tmp_path: Path) -> None:
    async with place(tmp_path, kind="workspace") as here:
        await here.say(ADA, "apples", "ok")
        await here.say(BOB, "swordfish", "ok")
        assert await here.texts(ADA, "swordfish") == ["swordfish"]

        await here.store.clear(BOB, everything=True)

        assert not inside(tmp_path / "state", "swordfish")
        assert await here.texts(ADA, "swordfish apples") == ["apples"]


async def test_notes_history_and_facts_are_found(here: Place) -> None:
    """Each by its kind; a fact that was replaced is not, nor what was taken out of a note."""
    await here.say(ADA, "hello", "yes")
    session = "01KG9N3D3R6V4T1X8Y2Z5B7C9E"
    mark = f"<!-- session {session} messages 0-49 3f9a11c2 -->"
    here.note("MEMORY.md", "# Notes\n\n- Ada sails\n- Ada knits\n")
    here.note("HISTORY.md", f"[2026-01-31 09:15] They sailed to Lisbon.\n{mark}\n\n")
    old, new = fact("sailed alone", replaced_by="02"), fact("sails with Bo", key="web:x", message_id="m7")
    here.note("facts.jsonl", old + "{no json\n" + new)

    hits = {hit.kind: hit for hit in await here.find(ADA, "sail")}
    here.note("MEMORY.md", "# Notes\n\n- Ada knits\n")

    assert {kind: hit.text for kind, hit in hits.items()} == {
        "memory": "- Ada sails",
        "history": "[2026-01-31 09:15] They sailed to Lisbon.",
        "fact": "sails with Bo",
    }
    assert (hits["history"].at, hits["history"].session_id) == ("2026-01-31T09:15", session)
    assert (hits["fact"].key, hits["fact"].message_id) == ("web:x", "m7")
    assert "- Ada sails" not in await here.texts(ADA, "sail")
    assert await here.texts(ADA, "knits") == ["- Ada knits"]


async def test_what_a_compaction_kept_is_found_once(here: Place) -> None:
    """It stands in the archive and in the session that goes on."""
    await here.say(ADA, "apples", "yes")
    async with here.store.open(ADA) as session:
        lines = [dict(line) for line in session.lines()]
        await session.end()
    async with here.store.open(ADA) as session:
        await session.append(lines)

    assert await here.texts(ADA, "apples") == ["apples"]


async def test_neighbours_come_along_where_they_are_asked_for(here: Place) -> None:
    await here.say(ADA, "one", "two", "apples", "four", "five", "six")
    await here.end()
    await here.say(ADA, "pears", "yes")

    (hit,) = await here.find(ADA, "apples", neighbours=1)
    (plain,) = await here.find(ADA, "apples")
    # A message of another session is none.
    (alone,) = await here.find(ADA, "pears", neighbours=5)

    assert [each["text"] for each in hit.before] == ["two"]
    assert [(each["seq"], each["speaker"], each["text"]) for each in hit.after] == [(4, "assistant", "four")]
    assert ("before" in plain.as_dict(), alone.before) == (False, [])


@pytest.mark.parametrize(
    "text", ['"', "AND OR NOT", "a* NEAR(b)", "text:x", "\0", "'; DROP TABLE texts", "…", "-"]
)
async def test_no_question_is_an_operator(here: Place, text: str) -> None:
    """Whatever is asked is looked for as words, and fails nothing."""
    await here.say(ADA, "apples and near things", "yes")

    await here.find(ADA, text)
    assert await here.texts(ADA, "apples") == ["apples and near things"]


async def test_scripts_without_spaces_are_found(here: Place) -> None:
    await here.say(ADA, "我的狗叫小黑", "好的", "明日は東京へ行きます", "はい", "Мы купили лодку", "да")

    assert (await here.texts(ADA, "狗叫什么"))[0] == "我的狗叫小黑"
    assert await here.texts(ADA, "東京") == ["明日は東京へ行きます"]
    assert await here.texts(ADA, "лодку") == ["Мы купили лодку"]


@pytest.mark.parametrize(
    ("said", "asked"),
    [
        ("My boss is O'Brien", ("O'Brien", "o’brien", "Brien", "O'Brien’s")),
        ("L’école est fermée jusqu'à l'été", ("l'école", "école", "ecole", "d'été", "jusqu'à")),
        ("We live in Gießen, Schloßstraße 1", ("Gießen", "gie\u00dfen", "GIE\u1e9eEN", "schloßstraße")),
        ("A flat in İstanbul", ("İstanbul", "istanbul", "Istanbul")),
        ("The hôtel of Nguyễn", ("hôtel", "ho\u0302tel", "Hotel", unicodedata.normalize("NFD", "Nguyễn"))),
        (unicodedata.normalize("NFD", "a new hôtel"), ("hôtel", "hotel")),
        ("The build didn’t pass", ("didn't it pass", "didn't")),
        ("Μένω στην οδός Σίνα", ("ΟΔΌΣ", "οδός", "ΣΊΝΑ")),
    ],
)
async def test_a_word_is_found_as_it_was_said(here: Place, said: str, asked: tuple[str, ...]) -> None:
    """Whatever is above its letters, between them, or how it is composed; the sieve lets it pass as well."""
    await here.say(ADA, said, "noted")

    assert [await here.texts(ADA, each) for each in asked] == [[said]] * len(asked)
    assert all(Sieve(each).may_hold(said.encode()) for each in asked)


async def test_a_long_message_shows_the_text_around_the_word(here: Place) -> None:
    await here.say(ADA, "la " * 2000 + "swordfish" + " li" * 2000, "yes")

    (hit,) = await here.find(ADA, "swordfish")

    assert "swordfish" in hit.text
    assert len(hit.text) < 700


@pytest.mark.parametrize("taken_in_before", [True, False])
async def test_an_edit_is_found_by_its_newest_text_alone(here: Place, taken_in_before: bool) -> None:
    await here.say(ADA, "apples", "yes")
    for text in ("plums", "pears"):
        if taken_in_before:
            await here.find(ADA, "apples")
        await here.record("note", text, edits="m0")

    (hit,) = await here.find(ADA, "pears")
    assert await here.texts(ADA, "apples plums") == []

    assert (hit.message_id, hit.speaker) == ("m0", "user")


async def test_a_big_scope_is_read_a_bit_at_a_time(tmp_path: Path) -> None:
    """What there was no time for is said, and there the next time; deleted files show at once."""
    async with place(tmp_path) as here:
        for number in range(3):
            await here.say(ADA, *(f"apples {number}.{each}" for each in range(600)))
            await here.end()

        first = await here.search(ADA, "apples", within_s=0.0)
        last = first
        for _ in range(100):
            last = await here.search(ADA, "apples", limit=5000, within_s=0.0)
            if last.all:
                break

    assert not first.all
    assert last.all
    with sqlite3.connect(here.index()) as file:
        assert file.execute("SELECT count(*) FROM places").fetchone() == (1800,)
    file.close()


async def test_an_imported_workspace_without_ids_is_found(tmp_path: Path) -> None:
    """Lines of another program, without ids, offsets or our fields."""
    path = tmp_path / "sessions/telegram_1.jsonl"
    path.parent.mkdir(parents=True)
    lines = [
        {"role": "user", "content": [{"type": "text", "text": "apples"}]},
        {"role": "tool", "content": "pears"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    async with place(tmp_path) as here:
        (hit,) = await here.find(ADA, "apples pears")

    assert (hit.text, hit.message_id, hit.at, hit.seq) == ("apples", None, None, 1)


DAMAGES = {
    "deleted": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "torn": lambda path: path.write_bytes(path.read_bytes()[:3000]),
    "overwritten": lambda path: path.write_bytes(
        path.read_bytes()[:2048] + b"\x5a" * (path.stat().st_size - 2048)
    ),
    "no database": lambda path: path.write_bytes(b"what is this " * 1000),
}


@guarantee("storage", "A search that meets a damaged index builds it again.")
@pytest.mark.parametrize("damage", [*DAMAGES, "future", "past", "foreign"])
@pytest.mark.parametrize("is_open", [False, True])
async def test_a_damaged_index_is_made_anew(tmp_path: Path, damage: str, is_open: bool) -> None:
    """By the search that meets it, in this process or the next one."""
    async with place(tmp_path) as here:
        await here.say(ADA, *(f"{word} {number}" for number in range(40) for word in ("apples", "pears")))
        assert len(await here.find(ADA, "apples", limit=100)) == 40
        path = here.index()
        if is_open:
            spoil(path, damage)
            assert len(await here.find(ADA, "apples", limit=100)) == 40
    if not is_open:
        spoil(path, damage)

    async with place(tmp_path) as here:
        found = await here.search(ADA, "apples", limit=100)

        assert (len(found.hits), found.all) == (40, True)
    file = sqlite3.connect(path)
    assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert file.execute("PRAGMA user_version").fetchone() == (VERSION,)
    file.close()


def spoil(path: Path, damage: str) -> None:
    if damage in DAMAGES:
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        DAMAGES[damage](path)
        return
    if damage == "foreign":
        path.unlink()
    with sqlite3.connect(path) as file:
        if damage == "foreign":
            file.execute("CREATE TABLE sources (what TEXT)")
        else:
            file.execute(f"PRAGMA user_version={99 if damage == 'future' else -1}")
    file.close()


async def test_an_index_that_cannot_be_made_is_said_and_not_raised_by_turns(here: Place) -> None:
    """A folder in its place: a search says so; nothing else notices."""
    await here.say(ADA, "apples", "yes")
    here.index().mkdir(parents=True)

    with pytest.raises(StoreError, match="is not available"):
        await here.find(ADA, "apples")
    await here.say(ADA, "pears", "yes")


async def test_two_processes_keep_one_index(tmp_path: Path) -> None:
    async with place(tmp_path) as one, place(tmp_path) as two:
        await one.say(ADA, "apples", "yes")
        assert await one.texts(ADA, "apples") == await two.texts(ADA, "apples") == ["apples"]
        await two.say(ADA, "more apples", "yes")

        for here in (one, two):
            assert sorted(await here.texts(ADA, "apples")) == ["apples", "more apples"]


async def test_what_was_edited_by_hand_is_found_as_it_stands(here: Place, tmp_path: Path) -> None:
    await here.say(ADA, "swordfish", "yes", "apples", "no")
    assert await here.texts(ADA, "swordfish") == ["swordfish"]
    path = tmp_path / "sessions/telegram_1.jsonl"
    path.write_bytes(path.read_bytes().replace(b"swordfish", b"pineapple"))

    assert await here.texts(ADA, "swordfish") == []
    assert await here.texts(ADA, "pineapple") == ["pineapple"]


@pytest.mark.parametrize("damage", ["bom", "garbage", "torn", "no head"])
async def test_a_damaged_transcript_is_searched_as_far_as_it_can_be_read(tmp_path: Path, damage: str) -> None:
    async with place(tmp_path) as here:
        await here.say(ADA, "apples", "yes", "pears", "no")
        path = tmp_path / "sessions/telegram_1.jsonl"
        data = path.read_bytes()
        head, rest = data.split(b"\n", 1)
        path.write_bytes(
            {
                "bom": b"\xef\xbb\xbf" + data,
                "garbage": head + b"\n{{{\n" + rest,
                "torn": data + b'{"role": "us',
                "no head": rest,
            }[damage]
        )

    async with place(tmp_path) as here:
        assert await here.texts(ADA, "apples") == ["apples"]
        assert await here.texts(ADA, "pears") == ["pears"]


async def test_a_renewed_line_1_costs_no_new_reading_and_loses_nothing(here: Place) -> None:
    """A checkpoint moves every line: they are found where they stand now."""
    await here.say(ADA, "apples", "yes")
    assert await here.texts(ADA, "apples") == ["apples"]
    async with here.store.open(ADA) as session:
        await session.checkpoint(metadata={"instructions": "be brief " * 50})
    await here.say(ADA, "pears", "yes")

    assert await here.texts(ADA, "apples") == ["apples"]
    assert await here.texts(ADA, "pears") == ["pears"]
    with sqlite3.connect(here.index()) as file:
        assert file.execute("SELECT count(*), max(id) FROM sources").fetchone() == (1, 1)
    file.close()


LONG = {AGENT: "work", "instructions": "漢" * 90_000}


async def found_by(here: Place, agent: str) -> list[str]:
    scope = await here.scope_resolver.of_key(ADA, agent=agent)
    return [hit.text for hit in (await here.recall.search(scope, ADA, "swordfish", limit=5)).hits]


async def test_long_instructions_leave_an_ended_session_with_its_agent(here: Place) -> None:
    await here.say(ADA, "the password is swordfish", "noted")
    async with here.store.open(ADA) as session:
        await session.checkpoint(metadata=LONG)
        id_, layout, stem = session.session_id, here.store.layout, session.stem
        assert await asyncio.to_thread(session.is_still, id_)
        assert archived.is_there(layout, stem, id_)
        assert key_at(session.path, stem) == ADA
        await session.end()

    assert await found_by(here, "") == []
    assert await found_by(here, "work") == ["the password is swordfish"]


@pytest.mark.parametrize(
    ("first", "agent"),
    [
        ('{"_type":"metadata","metadata":{"agent":"work\n', None),
        ("\n", None),
        ('{"a":' + "1" * 90_000 + "\n", None),
        # It never had one.
        ("", ""),
    ],
)
def test_a_session_with_a_lost_line_1_is_nobodys(tmp_path: Path, first: str, agent: str | None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(first + '{"role":"user","content":"a"}\n')

    whose = WHOSE.get(path)
    assert (None if whose is None else whose.agent) == agent


def test_a_line_1_longer_than_any_may_be_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "MAX_LINE_BYTES", 1000)
    path = tmp_path / "a.jsonl"
    path.write_text('{"_type":"metadata","key":"a","metadata":{"a":"' + "x" * 1000 + '"}}\n')

    assert WHOSE.get(path) is None
    assert read_beginning(path, "a") is None
    assert key_at(path, "a") == ""


# A machine that stands still for longer than this is taken for chats that rest.
QUIET_S = 1.5
TALKED = ["word " * 2_000] * 8


@pytest.mark.slow
async def test_what_chats_said_is_taken_in_when_none_has_talked_for_a_while(tmp_path: Path) -> None:
    """Not so long after the first of many turns, in the midst of the others."""
    async with place(tmp_path, quiet_s=QUIET_S) as here:
        await here.say(ADA, *TALKED)
        keeping = asyncio.create_task(here.recall.run())
        await talk(here, 2 * QUIET_S)
        assert not here.index().exists()
        await until(here.index().exists)
        keeping.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
async def test_what_a_search_left_unread_or_waited_for_long_waits_for_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    """Somebody was told that not all was searched, or the first search would find it unread."""
    if not asked:
        monkeypatch.setattr(recall, "LATEST_S", 0.5)
    async with place(tmp_path, quiet_s=QUIET_S if asked else 100 * QUIET_S) as here:
        await here.say(ADA, *TALKED)
        keeping = asyncio.create_task(here.recall.run())
        if asked:
            here.recall.want(ADA)
        talking = asyncio.create_task(talk(here, 60))
        await until(here.index().exists)
        assert not talking.done()
        talking.cancel()
        keeping.cancel()


async def talk(here: Place, seconds: float) -> None:
    """Tell of turns, one right after the other."""
    for _ in range(round(seconds / 0.02)):
        here.recall.note(ADA)
        await asyncio.sleep(0.02)
