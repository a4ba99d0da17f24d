"""cron/jobs.json damaged, newer than we are, or written by many at once."""

from __future__ import annotations

import json
import multiprocessing
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from channels.cron.job import BadJob, Ran, letter, new_row
from channels.cron.jobs_file import CronFile, Damaged
from channels.cron.schedule import Every
from channels.errors import ChannelError
from tests.channels.cron.cron_file_place import NOON, job, on_disk, put
from tests.channels.cron.cron_place import MINUTE, Place, every, ms
from tests.channels.patience import until_unlocked
from tests.support import peers

pytestmark = pytest.mark.timeout(peers.FIRST_USE_S)


@pytest.fixture
def file(tmp_path: Path) -> CronFile:
    return CronFile(tmp_path, clock=lambda: NOON)


# -- damage --------------------------------------------------------------------------------------------


BAD_JOBS: list[tuple[Any, str]] = [
    (job(""), "id"),
    (job("x" * 161), "id is too long"),
    (job("a", enabled="yes"), "enabled"),
    (job("a", schedule=None), "schedule"),
    (job("a", schedule={"kind": "sometimes"}), "sometimes"),
    (job("a", schedule={"kind": "cron", "expr": "* * * * * *"}), "6 fields"),
    (job("a", schedule={"kind": "every", "everyMs": 5, "missed": "once"}), "5 ms"),
    (job("a", schedule={"kind": "every", "everyMs": 5000, "missed": "never"}), "never"),
    (job("a", payload="hello"), "payload"),
    (job("a", payload={"message": " "}), "empty"),
    (job("a", payload={"message": "x" * 2**20 + "x"}), "1 MiB"),
    (job("a", payload={"message": "m", "deliver": True, "channel": "Tele gram", "to": "1"}), "Tele gram"),
    (job("a", payload={"message": "m", "deliver": True, "channel": "web", "to": ["1"]}), "must be strings"),
    (None, "not a JSON object"),
]


@pytest.mark.parametrize(("row", "said"), BAD_JOBS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_job_is_named_with_a_cure_and_the_others_run(file: CronFile, row: Any, said: str) -> None:
    put(file, {"version": 1, "jobs": [job("before"), row, job("after")]})

    contents = file.read()

    assert list(contents.jobs) == ["before", "after"]
    (bad,) = contents.bad
    assert said in bad.problem
    assert bad.problem.startswith("job 2: ")
    assert bad.cure
    assert contents.rows(NOON)[-1]["problem"]
    assert json.loads(json.dumps(contents.rows(NOON)))


@pytest.mark.parametrize("name", ["nextRunAtMs", "lastRunAtMs", "lastSlotMs"])
@pytest.mark.parametrize("value", [1_796_000_000_000_000, 253_402_300_800_000])
async def test_an_instant_that_is_no_date_stops_no_other_job(tmp_path: Path, name: str, value: int) -> None:
    """Microseconds, as another program may take them for; the job itself begins now."""
    place = Place(tmp_path)
    place.write(every(60, "odd", state={name: value}), every(60, "sound"))

    assert [row["next_run_at"] for row in place.file.read().rows(NOON)] == ["2026-06-01T12:01:00Z"] * 2
    async with place.running():
        await place.time.to(NOON + MINUTE)
        slots = await place.count(2)
        await place.noted(lambda jobs: jobs["odd"]["state"].get("lastSlotMs") == ms(NOON + MINUTE))

    assert sorted(slots) == ["odd@01T12:01:00Z", "sound@01T12:01:00Z"]


def test_half_of_a_surrogate_pair_is_no_text(file: CronFile) -> None:
    put(file, b'{"jobs": [' + json.dumps(job("a", payload={"message": "\ud800"})).encode() + b"]}")

    assert len(file.read().bad) == 1
    file.add(new_row(Every(60_000, NOON), "m", at=NOON))
    assert on_disk(file)["jobs"][0]["payload"]["message"] == "\ud800"


def test_a_name_that_is_no_text_makes_no_job() -> None:
    """A shell or a model may give one; the letter of such a job could not be put, at any slot."""
    with pytest.raises(BadJob, match="name is not a string"):
        new_row(Every(60_000, NOON), "m", at=NOON, name="half \ud83d")


def test_a_job_in_the_file_whose_name_is_no_text_runs(file: CronFile) -> None:
    put(file, b'{"jobs": [' + json.dumps(job("a", name="half \ud83d")).encode() + b"]}")
    (found,) = file.read().jobs.values()

    assert json.loads(letter(found, NOON, at=NOON).to_bytes())["meta"]["job"]["name"] == "half \ufffd"


TEXT = json.dumps({"version": 1, "jobs": [job("one"), job("two"), job("three")]}, indent=2)


DAMAGED: dict[str, tuple[bytes, list[str], int]] = {
    "torn in the last job": (TEXT[: TEXT.rindex("three")].encode(), ["one", "two"], 1),
    "torn after the last job": (TEXT[: TEXT.rindex("}", 0, -2) + 1].encode(), ["one", "two", "three"], 0),
    "comma after the last": (TEXT.replace("}\n  ]", "},\n  ]").encode(), ["one", "two", "three"], 0),
    "comma missing inside": (TEXT.replace('"two",', '"two"', 1).encode(), ["one", "three"], 1),
    "comment": (b"// mine\n" + TEXT.encode(), ["one", "two", "three"], 0),
    "two documents": ((TEXT + TEXT).encode(), ["one", "two", "three"], 4),
    "bad bytes": (TEXT.encode().replace(b"message of two", b"\xff\xfe"), ["one", "two", "three"], 0),
    "empty": (b"", [], 0),
    "zeros": (b"\0" * 512, [], 0),
    "a list": (json.dumps([job("one")]).encode(), ["one"], 0),
    "a word": (b'"jobs"', [], 0),
    "jobs is an object": (b'{"jobs": {"a": 1}}', [], 0),
    "nested": (b"[" * 200_000, [], 0),
    "braces": (b'{"jobs": [' + b'{"a":' * 20_000, [], 1),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_read_as_far_as_it_goes_and_kept(file: CronFile, name: str) -> None:
    """A scheduler never writes it; a person's change keeps the original beside it first."""
    data, good, lost = DAMAGED[name]
    put(file, data)

    contents = file.read()
    assert (list(contents.jobs), len(contents.bad)) == (good, lost)
    assert contents.fault is not None
    assert contents.fault.cure

    with pytest.raises(Damaged):
        file.note([Ran("one", NOON, "ok", NOON)], {"two": 5})
    assert file.path.read_bytes() == data

    added = file.add(new_row(Every(60_000, NOON), "m", at=NOON))
    assert list(file.read().jobs) == [*good, added.id]
    assert file.read().fault is None
    if data:
        assert file.kept is not None
        assert file.kept.name.startswith("jobs.json.corrupt-")
        assert file.kept.read_bytes() == data


def test_a_byte_order_mark_is_no_damage(file: CronFile) -> None:
    put(file, b"\xef\xbb\xbf" + TEXT.encode())

    file.ran("one", NOON, "ok")

    assert len(on_disk(file)["jobs"]) == 3
    assert file.kept is None


def test_a_newer_format_runs_and_is_not_written(file: CronFile) -> None:
    data = put(file, {"version": 2, "jobs": [job("a")]})

    assert list(file.read().jobs) == ["a"]
    for change in (lambda: file.remove("a"), lambda: file.ran("a", NOON, "ok")):
        with pytest.raises(Damaged):
            change()
    assert file.path.read_bytes() == data


def test_a_file_that_cannot_be_opened_says_so(file: CronFile) -> None:
    file.path.mkdir(parents=True)

    with pytest.raises(ChannelError) as caught:
        file.read()

    assert caught.value.hint


# -- many writers --------------------------------------------------------------------------------------


def _add_some(workspace: Path, count: int) -> None:
    file = CronFile(workspace)
    for _ in range(count):
        until_unlocked(lambda: file.add(new_row(Every(60_000, NOON), "m", at=NOON)))


def test_writers_side_by_side_lose_nothing(file: CronFile) -> None:
    workspace = file.path.parents[1]
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_add_some, args=(workspace, 15)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()

    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert len(file.read().jobs) == 45
    assert [path.name for path in file.path.parent.iterdir()] == ["jobs.json"]


VICTIM = """
import sys
from pathlib import Path
from channels.cron.jobs_file import CronFile
file = CronFile(Path(sys.argv[1]))
print("begun", flush=True)
while True:
    file.enable("a", False)
    file.enable("a", True)
"""


def test_a_kill_at_any_instant_leaves_a_whole_file(file: CronFile) -> None:
    put(file, {"version": 1, "jobs": [job("a"), *(job(f"b{n}") for n in range(200))]})
    root = Path(__file__).parents[3]
    for number in range(8):
        command = [sys.executable, "-c", VICTIM, str(file.path.parents[1])]
        with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE) as victim:
            assert victim.stdout is not None
            victim.stdout.readline()
            began = time.monotonic()
            while time.monotonic() - began < 0.01 + number * 0.007:
                pass
            victim.send_signal(signal.SIGKILL)

        contents = file.read()
        assert (len(contents.jobs), contents.fault, contents.bad) == (201, None, ())
        file.enable("a")


def test_a_full_disk_leaves_the_old_file(file: CronFile) -> None:
    data = put(file, {"version": 1, "jobs": [job("a")]})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(ChannelError) as caught:
            file.ran("a", NOON, "ok")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    assert "cannot be written" in str(caught.value)
    assert file.path.read_bytes() == data
    assert [path.name for path in file.path.parent.iterdir()] == ["jobs.json"]
