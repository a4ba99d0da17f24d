"""Former facts: those that were replaced or edited are kept, those that were forgotten are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from session.memory.facts import Drawn, FactsFile, active
from session.memory.versions import Versions
from tests.session.memory.test_facts import drawn, fact, file_in, texts


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


def test_the_former_line_of_a_fact_that_was_replaced_is_kept(tmp_path: Path) -> None:
    """That line alone: a fact that is new replaces nothing."""
    moved(tmp_path)

    assert kept(tmp_path) == [("facts", ["Ada lives in Rome."])]


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


def test_what_is_forgotten_is_in_no_version(tmp_path: Path) -> None:
    """Nor is what it replaced, nor the copy of what was written; other facts stay in theirs."""
    file = moved(tmp_path)
    file.add([drawn("D", "Ada has a cat.", replaces="B")])

    assert file.remove("C") is not None

    assert kept(tmp_path) == [("facts", ["Ada has a dog."])]
    there = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"Rome" not in there
    assert b"Milan" not in there
    file.add([drawn("E", "Ada has a bird.")])
    assert kept(tmp_path) == [("facts", ["Ada has a dog."])]


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
