"""The file of facts: what is new is stored once, what is damaged stays, what is forgotten is gone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from session.errors import StoreError
from session.memory.facts import Drawn, Fact, FactsFile, active
from session.memory.likeness import WordIndex, repeats


def fact(id_: str, text: str, **more: Any) -> Fact:
    return Fact(id_, text, "background", 0.9, "web:a", "m1", "2026-01-31T09:15:00+00:00", **more)


def drawn(id_: str, text: str, replaces: str | None = None) -> Drawn:
    return Drawn(fact(id_, text), replaces)


def file_in(folder: Path) -> FactsFile:
    return FactsFile(folder / "memory", lock=folder / "facts.lock")


def texts(file: FactsFile) -> list[str]:
    return [one.text for one in active(file.facts())]


def test_a_fact_that_contradicts_one_replaces_it(tmp_path: Path) -> None:
    """The former fact stays in the file with the id of the one that holds now."""
    file = file_in(tmp_path)
    file.add([drawn("A", "Ada lives in Rome."), drawn("B", "Ada has a dog.")])

    file.add([drawn("C", "Ada lives in Milan.", replaces="A")])

    assert texts(file) == ["Ada has a dog.", "Ada lives in Milan."]
    assert [(one.id, one.replaced_by) for one in file.facts()] == [("A", "C"), ("B", None), ("C", None)]


def test_what_contradicts_a_fact_by_a_known_one_is_not_stored_twice(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.add([drawn("A", "Ada lives in Rome."), drawn("B", "Ada lives in Milan.")])

    file.add([drawn("C", "Ada lives in Milan", replaces="A")])

    assert [(one.id, one.replaced_by) for one in file.facts()] == [("A", "B"), ("B", None)]


@pytest.mark.parametrize(
    ("known", "new"),
    [
        ("Ada likes tea.", "Ada likes tea."),
        ("Ada likes tea.", "ada  LIKES tea"),
        ("Ada likes green tea.", "Ada likes tea."),
        ("Ada likes green tea.", "The user Ada likes the green tea"),
        ("Ada doesn't like coffee.", "Ada does not like coffee."),
        ("艾达喜欢喝绿茶。", "艾达喜欢喝绿茶"),
    ],
)
def test_a_repeat_is_not_stored(tmp_path: Path, known: str, new: str) -> None:
    file = file_in(tmp_path)
    file.add([drawn("A", known)])

    assert file.add([drawn("B", new)]) == []

    assert [one.id for one in file.facts()] == ["A"]


@pytest.mark.parametrize(
    ("known", "new"),
    [
        ("Ada lives in Rome.", "Ada lives in Milan."),
        ("The daily meeting is at 10:00 in room Berlin.", "The daily meeting is at 11:00 in room Berlin."),
        ("Ada does not like tea.", "Ada likes tea."),
        ("Ada likes tea.", "Ada likes green tea from Japan."),
        ("Ada likes tea.", "Ada never likes tea."),
        ("艾达喜欢喝绿茶。", "艾达喜欢喝咖啡。"),
    ],
)
def test_what_says_something_new_is_stored(known: str, new: str) -> None:
    assert not repeats(new, known)


def test_the_same_extraction_twice_stores_once(tmp_path: Path) -> None:
    """After a crash it comes again, perhaps in other words: the ids tell."""
    file = file_in(tmp_path)
    file.add([drawn("A", "Ada likes tea."), drawn("B", "Ada has a dog.")])

    assert file.add([drawn("A", "Tea is what Ada drinks."), drawn("B", "There is a dog.")]) == []

    assert texts(file) == ["Ada likes tea.", "Ada has a dog."]


def test_repeats_within_one_answer_are_stored_once(tmp_path: Path) -> None:
    file = file_in(tmp_path)

    assert [one.id for one in file.add([drawn("A", "Ada likes tea."), drawn("B", "Ada likes tea!")])] == ["A"]


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


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    file.path.mkdir(parents=True)

    with pytest.raises(StoreError, match="regular file"):
        file.facts()


def test_the_file_is_private(tmp_path: Path) -> None:
    file = file_in(tmp_path)

    file.add([drawn("A", "Ada likes tea.")])

    assert file.path.stat().st_mode & 0o777 == 0o600
    assert file.path.parent.stat().st_mode & 0o777 == 0o700


def test_the_nearest_share_the_rarest_words() -> None:
    """Of equals the later comes first, and those that share nothing fill up."""
    index = WordIndex(["Ada likes tea.", "Ada has a dog.", "Ada lives in Rome.", "Ada plays chess."])

    assert index.nearest("does ada's dog eat?", 2) == [1, 3]
    assert index.nearest("hello", 3) == [3, 2, 1]
    assert index.nearest("", 9) == [3, 2, 1, 0]
