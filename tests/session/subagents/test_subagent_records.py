"""What is on record of subagents: limits, one for each call, and what stays of them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from session.errors import NewerFormat, ToolError
from session.subagents.records import AN_HOUR, AT_ONCE, Call, Subagent, SubagentFiles

ADA, BOB = "telegram:1", "telegram:2"
ULID = "01KG9NB3H0Q5W4XZ2WM29XRYBN"
HOUR = timedelta(hours=1)


class Place:
    """The files of a workspace, and a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.now = datetime(2027, 1, 1, tzinfo=UTC)
        self.state = folder
        self.files = self.another()

    def another(self) -> SubagentFiles:
        """What another daemon has of the same files."""
        return SubagentFiles(self.state, clock=lambda: self.now)

    def begin(self, call_id: str, *, key: str = ADA, message_id: str = "m1", task: str = "look") -> Subagent:
        call = Call(key, ULID, message_id, call_id)
        return self.files.begin(call, task=task, label="a look", origin={"group": False})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_same_call_is_the_same_subagent(place: Place) -> None:
    first = place.begin("c1")
    other = place.begin("c2")

    assert place.begin("c1") == first
    assert (first.key, other.key) == (f"sub:{ULID}:1", f"sub:{ULID}:2")
    assert len({first.id, other.id, place.begin("c1", message_id="m2").id}) == 3


def test_more_than_so_many_an_hour_are_refused(place: Place) -> None:
    for number in range(AN_HOUR):
        place.files.told(place.begin(f"c{number}"))

    with pytest.raises(ToolError, match="within an hour"):
        place.begin("one more")

    place.now += HOUR
    assert place.begin("one more").live


def test_daemons_that_start_some_at_once_keep_the_limit(place: Place) -> None:
    def begin(number: int) -> bool:
        call = Call(ADA, ULID, "m1", f"c{number}")
        try:
            place.another().begin(call, task="look", label="a look", origin={})
        except ToolError:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        begun = list(threads.map(begin, range(12)))

    assert sum(begun) == AT_ONCE
    assert len({each.key for each in place.files.of(ADA)}) == AT_ONCE


def test_how_it_ended_is_settled_once(place: Place) -> None:
    begun = place.begin("c1")

    failed = place.files.answered(begun, "it was stopped")
    again = place.files.answered(begun, "")

    assert failed is not None
    assert again == failed
    assert again.failure == "it was stopped"


def test_a_stop_leaves_results_that_wait_and_an_end_drops_them(place: Place) -> None:
    begun = place.begin("c1")
    place.files.answered(begun, "")

    assert place.files.end(ADA, "m2") == []
    assert [each.key for each in place.files.end(ADA, "m3", results=True)] == [begun.key]


def test_no_word_stays_of_what_is_over_and_after_two_days_nothing(place: Place) -> None:
    told, ended = place.begin("c1", task="sesame"), place.begin("c2", task="sesame")
    place.files.answered(told, "sesame")
    place.files.told(told)
    place.files.end(ADA)

    text = "".join(path.read_text() for path in place.state.rglob("*.json"))
    assert "sesame" not in text
    assert "a look" not in text
    assert [each.state for each in place.files.of(ADA)] == ["told", "ended"]

    place.now += timedelta(hours=49)
    assert place.begin("c3").key == f"sub:{ULID}:3"
    assert [each.key for each in place.files.of(ADA)] == [f"sub:{ULID}:3"]
    assert place.files.find(ADA, ended.key) is None

    place.files.told(place.begin("c3"))
    place.now += timedelta(hours=49)
    place.files.prune()
    assert list(place.state.rglob("*.json")) == []


def test_a_conversation_never_sees_those_of_another(place: Place) -> None:
    """Not even under keys whose files would have one name."""
    begun = place.begin("c1", key="web:a:b")

    assert place.files.of("web:a_b") == []
    assert place.files.find("web:a_b", begun.key) is None
    assert [each.parent for each in place.files.everywhere()] == ["web:a:b"]


def test_a_damaged_file_says_nothing_and_a_newer_one_is_refused(place: Place) -> None:
    place.begin("c1")
    (path,) = place.state.rglob("*.json")
    whole = json.loads(path.read_text())

    path.write_text(json.dumps(whole | {"subagents": [7, {"key": 1}, whole["subagents"][0]]}))
    assert len(place.files.of(ADA)) == 1
    path.write_text("{")
    assert place.files.of(ADA) == []
    path.write_text(json.dumps(whole | {"v": 2}))
    with pytest.raises(NewerFormat):
        place.files.of(ADA)
