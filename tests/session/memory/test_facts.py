"""The file of facts: what is new is stored once, what is damaged stays, what is forgotten is gone."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from session.memory.fact_store import Drawn, Fact, FactsFile, active
from session.memory.notes import Versions
from session.memory.text_similarity import nearest


def fact(id_: str, text: str, **more: Any) -> Fact:
    return Fact(id_, text, "background", 0.9, "web:a", "m1", "2026-01-31T09:15:00+00:00", **more)


def drawn(id_: str, text: str, replaces: str | None = None) -> Drawn:
    return Drawn(fact(id_, text), replaces)


def file_in(folder: Path) -> FactsFile:
    return FactsFile(folder / "memory", lock=folder / "facts.lock")


def texts(file: FactsFile) -> list[str]:
    return [one.text for one in active(file.facts())]


def test_what_contradicts_a_fact_by_a_known_one_is_not_stored_twice(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.add([drawn("A", "Ada lives in Rome."), drawn("B", "Ada lives in Milan.")])

    file.add([drawn("C", "Ada lives in Milan", replaces="A")])

    assert [(one.id, one.replaced_by) for one in file.facts()] == [("A", "B"), ("B", None)]


@pytest.mark.parametrize(
    ("known", "new", "stored"),
    [
        ("Ada likes tea.", "Ada likes tea.", False),
        ("Ada likes tea.", "ada  LIKES tea", False),
        ("Ada likes green tea.", "Ada likes tea.", False),
        ("Ada likes green tea.", "The user Ada likes the green tea", False),
        ("Ada doesn't like coffee.", "Ada does not like coffee.", False),
        ("艾达喜欢喝绿茶。", "艾达喜欢喝绿茶", False),
        ("Ada lives in Rome.", "Ada lives in Milan.", True),
        ("The daily meeting is at 10:00 in room 7.", "The daily meeting is at 11:00 in room 7.", True),
        ("Ada does not like tea.", "Ada likes tea.", True),
        ("Ada likes tea.", "Ada likes green tea from Japan.", True),
        ("Ada likes tea.", "Ada never likes tea.", True),
        ("艾达喜欢喝绿茶。", "艾达喜欢喝咖啡。", True),
    ],
)
def test_what_says_something_new_is_stored_and_a_repeat_is_not(
    tmp_path: Path, known: str, new: str, stored: bool
) -> None:
    file = file_in(tmp_path)
    file.add([drawn("A", known)])

    file.add([drawn("B", new)])

    assert [one.id for one in file.facts()] == ["A", "B"][: 1 + stored]


def test_the_same_extraction_twice_stores_once(tmp_path: Path) -> None:
    """After a crash it comes again, perhaps in other words: the ids tell."""
    file = file_in(tmp_path)
    file.add([drawn("A", "Ada likes tea."), drawn("B", "Ada has a dog.")])

    assert file.add([drawn("A", "Tea is what Ada drinks."), drawn("B", "There is a dog.")]) == []

    assert texts(file) == ["Ada likes tea.", "Ada has a dog."]


def test_damaged_lines_are_read_over_and_kept(tmp_path: Path) -> None:
    """Whatever lies between the facts is there after a write, byte for byte; a fact keeps unknown fields."""
    file = file_in(tmp_path)
    wild = [
        b'{"id": "X", "text": ',
        b"\xff\xfe not text",
        b'{"id": 7, "text": "no id"}',
        b'["a list"]',
        b'{"id": "Y", "text": "  "}',
        b"[" * 5000,
    ]
    known = {"id": "A", "text": "Ada lives in Rome.", "mood": "kept", "confidence": "high", "message_id": 3}
    file.path.parent.mkdir()
    # The last line was torn by another program.
    file.path.write_bytes(b"\n".join([*wild, json.dumps(known).encode(), b"", b'{"id": "T", "te']))

    file.add([drawn("C", "Ada lives in Milan.", replaces="A")])

    lines = file.path.read_bytes().split(b"\n")
    assert lines[: len(wild)] == wild
    assert json.loads(lines[len(wild)]) == known | {"replaced_by": "C"}
    assert lines[len(wild) + 1] == b'{"id": "T", "te'
    assert texts(file) == ["Ada lives in Milan."]
    assert file.facts()[0].confidence == 0.0


def test_what_no_number_and_no_text_can_be_is_read_all_the_same(tmp_path: Path) -> None:
    """Half a surrogate pair is no text that anything could be told, and these are no confidences."""
    file = file_in(tmp_path)
    file.path.parent.mkdir()
    wild = ["1" + "0" * 400, "1e999", "NaN", "true", "null", '"0.9"', "[]"]
    rows = [
        f'{{"id": "{at}", "text": "half \\ud800 of {at}", "confidence": {one}}}'
        for at, one in enumerate(wild)
    ]
    file.path.write_text("\n".join(rows))

    facts = file.facts()

    assert [one.text for one in facts] == [f"half ? of {at}" for at in range(len(wild))]
    assert [one.confidence for one in facts] == [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_forgetting_takes_the_former_ones_along(tmp_path: Path) -> None:
    """What is forgotten is nowhere in the file, nor what it replaced; others stay."""
    file = file_in(tmp_path)
    file.add([drawn("A", "Ada lives in Rome."), drawn("B", "Ada has a dog.")])
    file.add([drawn("C", "Ada lives in Milan.", replaces="A")])
    file.add([drawn("D", "Ada lives in Turin.", replaces="C")])

    gone = file.remove("D")

    assert gone is not None
    assert gone.text == "Ada lives in Turin."
    assert [one.id for one in file.facts()] == ["B"]
    assert b"lives" not in file.path.read_bytes()
    assert file.remove("D") is None


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    """Each has read the file before another wrote it, were there no lock."""
    names = [f"{number:03}" for number in range(24)]
    threads = [
        threading.Thread(
            target=lambda name=name: file_in(tmp_path).add([drawn(name, f"Number {name} has a house.")])
        )
        for name in names
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(one.id for one in file_in(tmp_path).facts()) == names


def test_the_file_is_private(tmp_path: Path) -> None:
    file = file_in(tmp_path)

    file.add([drawn("A", "Ada likes tea.")])

    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


def test_the_nearest_share_the_rarest_words() -> None:
    """Of equals the later comes first, and those that share nothing fill up."""
    texts = ["Ada likes tea.", "Ada has a dog.", "Ada lives in Rome.", "Ada plays chess."]

    assert nearest(texts, "does ada's dog eat?", 2) == [1, 3]
    assert nearest(texts, "hello", 3) == [3, 2, 1]
    assert nearest(texts, "", 9) == [3, 2, 1, 0]


# -- former facts ----------------------------------------------------------------------------------------


def versions_in(folder: Path) -> Versions:
    return Versions(folder / "memory")


def kept(folder: Path) -> list[tuple[str, list[str]]]:
    """Cause and texts of the versions, the oldest first."""
    return [
        (one.cause, [json.loads(line)["text"] for line in one.read().splitlines()])
        for one in versions_in(folder).all("facts.jsonl")
    ]


def moved(folder: Path) -> FactsFile:
    """Ada, who lived in Rome, lives in Milan."""
    file = file_in(folder)
    file.add([drawn("A", "Ada lives in Rome."), drawn("B", "Ada has a dog.")])
    file.add([drawn("C", "Ada lives in Milan.", replaces="A")])
    return file


def test_a_former_fact_holds_again_in_place_of_the_one_that_replaced_it(tmp_path: Path) -> None:
    file = moved(tmp_path)
    (version,) = versions_in(tmp_path).all()

    (back,) = file.restore(version)

    assert back.text == "Ada lives in Rome."
    assert texts(file) == ["Ada lives in Rome.", "Ada has a dog."]
    assert [(one.id, one.replaced_by) for one in file.facts()] == [("A", None), ("B", None), ("C", "A")]
    assert file.restore(version) == []
    # And the other way round.
    file.restore(versions_in(tmp_path).all()[-1])
    assert texts(file) == ["Ada has a dog.", "Ada lives in Milan."]


def test_what_a_person_says_as_well_is_theirs_from_then_on(tmp_path: Path) -> None:
    """And a file that repeats what a person said changes nothing."""
    file = file_in(tmp_path)
    quoted = Drawn(replace(fact("A", "The admin is Ada."), source="from a file"))
    file.add([quoted])

    file.add([drawn("B", "The admin is Ada."), Drawn(replace(quoted.fact, id="C"))])
    file.add([Drawn(replace(quoted.fact, id="D"))])

    assert [(one.id, one.source, one.replaced_by) for one in file.facts()] == [
        ("A", "from a file", "B"),
        ("B", None, None),
    ]


def test_one_that_a_version_alone_still_holds_can_be_forgotten(tmp_path: Path) -> None:
    """A person took its line out with an editor."""
    file = moved(tmp_path)
    lines = file.path.read_text().splitlines(keepends=True)
    file.path.write_text("".join(line for line in lines if "dog" not in line))
    file.add([drawn("D", "Ada has a bird.")])
    assert ("edited by hand", ["Ada has a dog."]) in kept(tmp_path)

    gone = file.remove("B")

    assert gone is not None
    assert gone.text == "Ada has a dog."
    assert kept(tmp_path) == [("facts", ["Ada lives in Rome."])]
    assert file.remove("B") is None


def test_a_line_that_was_edited_by_hand_is_kept_as_it_was(tmp_path: Path) -> None:
    file = moved(tmp_path)
    file.path.write_text(file.path.read_text().replace("has a dog", "has two dogs"))

    file.add([drawn("D", "Ada has a bird.")])

    assert kept(tmp_path)[-1] == ("edited by hand", ["Ada has a dog."])
    version = versions_in(tmp_path).all()[-1]
    file.restore(version)
    assert "Ada has a dog." in texts(file)
    assert len(active(file.facts())) == 3


def test_a_fact_whose_line_is_gone_comes_back_at_the_end(tmp_path: Path) -> None:
    file = moved(tmp_path)
    (version,) = versions_in(tmp_path).all()
    file.path.write_text("")

    file.restore(version)

    assert texts(file) == ["Ada lives in Rome."]
