"""What is kept of embedding models: found for its own conversation, bounded, and lost without harm."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from session.disk.layout import Layout
from session.errors import NewerFormat
from session.models.model import cosine, from_bytes, to_bytes, unit_vectors
from session.store.derived import FILE, Vectors, forget
from tests.session.store_place import keep

MODEL = "words"
ROOT = Path(__file__).parents[3]


def vector(n: int, size: int = 64) -> list[float]:
    return [1.0 if i == n % size else 0.0 for i in range(size)]


def test_a_vector_is_found_for_its_text_model_and_conversation_alone(tmp_path: Path) -> None:
    """Another chat, another model or another text finds nothing; and no text is in the file."""
    vectors = Vectors(tmp_path)
    keep(vectors, MODEL, "ada", {"a secret plan": vector(1)})

    assert vectors.read(MODEL, "ada", ["a secret plan", "other"]).keys() == {"a secret plan"}
    assert list(vectors.read(MODEL, "ada", ["a secret plan"])["a secret plan"]) == vector(1)
    assert vectors.read(MODEL, "bob", ["a secret plan"]) == {}
    assert vectors.read("another", "ada", ["a secret plan"]) == {}
    vectors.close()
    for file in tmp_path.iterdir():
        assert b"secret" not in file.read_bytes()
        assert b"ada" not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 99, None])
def test_a_damaged_file_is_begun_anew(tmp_path: Path, damage: bytes | None) -> None:
    """Whatever stands there, the next vector is kept and found."""
    vectors = Vectors(tmp_path)
    keep(vectors, MODEL, "ada", {str(n): vector(n, 1024) for n in range(50)})
    vectors.close()
    path = tmp_path / FILE
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\x5a" * (len(data) - 4096) if damage is None else damage)

    vectors.read(MODEL, "ada", [str(n) for n in range(50)])
    keep(vectors, MODEL, "ada", {"new": vector(7)})

    assert vectors.read(MODEL, "ada", ["new"]).keys() == {"new"}
    vectors.close()
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_file_that_is_replaced_under_another_process_is_opened_again(tmp_path: Path) -> None:
    """One begins it anew or somebody deletes it; the other goes on in the new file."""
    one, two = Vectors(tmp_path), Vectors(tmp_path)
    keep(one, MODEL, "ada", {"a": vector(1)})
    two.read(MODEL, "ada", ["a"])
    for path in tmp_path.glob(f"{FILE}*"):
        path.unlink()

    keep(one, MODEL, "ada", {"b": vector(2)})
    keep(two, MODEL, "ada", {"c": vector(3)})

    assert one.read(MODEL, "ada", ["a", "b", "c"]).keys() == {"b", "c"}


def test_what_cannot_be_a_vector_is_not_found(tmp_path: Path) -> None:
    """Bytes that were changed on the disk are asked for again, not compared."""
    vectors = Vectors(tmp_path)
    keep(vectors, MODEL, "ada", {"a": vector(1)})
    vectors.close()
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("UPDATE vectors SET vector = zeroblob(64)")

    assert vectors.read(MODEL, "ada", ["a"]) == {}
    assert from_bytes(b"abc") is None
    assert from_bytes(b"") is None
    assert from_bytes(to_bytes(vector(3))) is not None


def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    """The file stays within its bound, the newest vectors in it."""
    most = 2**20
    vectors = Vectors(tmp_path, max_bytes=most)

    for batch in range(40):
        keep(vectors, MODEL, "ada", {f"{batch}.{n}": vector(n, 1536) for n in range(10)})

    assert "39.0" in vectors.read(MODEL, "ada", ["39.0"])
    assert vectors.read(MODEL, "ada", ["0.0"]) == {}
    vectors.close()
    assert most / 4 < (tmp_path / FILE).stat().st_size < 1.2 * most


def test_forgetting_one_conversation_leaves_the_others(tmp_path: Path) -> None:
    """All its vectors go, of every model; nothing is made where nothing was."""
    layout = Layout(tmp_path)
    forget(layout, "ada")
    assert not (tmp_path / "state").exists()
    vectors = Vectors(tmp_path / "state")
    keep(vectors, MODEL, "ada", {"a": vector(1)})
    keep(vectors, "another", "ada", {"a": vector(1)})
    keep(vectors, MODEL, "bob", {"a": vector(2)})

    forget(layout, "ada")

    assert vectors.read(MODEL, "ada", ["a"]) == vectors.read("another", "ada", ["a"]) == {}
    assert vectors.read(MODEL, "bob", ["a"]).keys() == {"a"}


def test_a_newer_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    """Opening says so; a turn that comes first finds nothing and writes nothing."""
    with sqlite3.connect(tmp_path / FILE) as file:
        file.execute("PRAGMA user_version=9")
    file.close()
    before = (tmp_path / FILE).read_bytes()
    vectors = Vectors(tmp_path)

    keep(vectors, MODEL, "ada", {"a": vector(1)})

    assert vectors.read(MODEL, "ada", ["a"]) == {}
    assert (tmp_path / FILE).read_bytes() == before
    with pytest.raises(NewerFormat):
        vectors.open()


def test_a_lock_of_another_process_costs_a_moment_and_nothing_else(tmp_path: Path) -> None:
    """While another one writes for long, nothing is kept; then it is again."""
    vectors = Vectors(tmp_path, busy_s=0.01)
    vectors.open()
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")

    keep(vectors, MODEL, "ada", {"a": vector(1)})
    other.execute("ROLLBACK")

    assert vectors.read(MODEL, "ada", ["a"]) == {}
    keep(vectors, MODEL, "ada", {"a": vector(1)})
    assert vectors.read(MODEL, "ada", ["a"]).keys() == {"a"}


def test_a_folder_that_cannot_be_used_is_no_failure(tmp_path: Path) -> None:
    """A file stands where the folder should: nothing is found, nothing raised."""
    (tmp_path / "state").write_text("")
    vectors = Vectors(tmp_path / "state")

    vectors.open()
    keep(vectors, MODEL, "ada", {"a": vector(1)})

    assert vectors.read(MODEL, "ada", ["a"]) == {}


LOOKS = """
import sys
from pathlib import Path
from session.store.derived import Vectors
vectors = Vectors(Path(sys.argv[1]), busy_s=10)
print(*vectors.read("words", "ada", ["a", "b"]))
vectors.close()
"""


def test_a_process_that_comes_and_goes_takes_nothing_from_one_that_opened_the_file_twice(
    tmp_path: Path,
) -> None:
    """The second opening leaves the locks of the first, by which the other one sees that it is not alone."""
    one, two = Vectors(tmp_path), Vectors(tmp_path)
    keep(one, MODEL, "ada", {"a": vector(1)})
    two.open()
    two.close()
    look = (sys.executable, "-c", LOOKS, str(tmp_path))
    assert subprocess.run(look, cwd=ROOT, check=True, capture_output=True).stdout == b"a\n"

    keep(one, MODEL, "ada", {"b": vector(2)})

    assert subprocess.run(look, cwd=ROOT, check=True, capture_output=True).stdout == b"a b\n"


@pytest.mark.parametrize(
    "data",
    [
        [{"embedding": [1.0]}],
        [{"embedding": [1.0]}, {"embedding": [1.0, 0.0]}],
        [{"embedding": [1.0]}, {"embedding": [0.0]}],
        [{"embedding": [1.0]}, {"embedding": [float("nan")]}],
        [{"embedding": [1.0]}, {"embedding": [float("inf")]}],
        [{"embedding": [1.0]}, {"embedding": "AACAPw=="}],
        [{"embedding": [1.0]}, {"embedding": None}],
        [{"embedding": [1.0]}, {"embedding": []}],
        [{"embedding": [1.0]}, {"embedding": [None]}],
        [1, 2],
        None,
    ],
)
def test_an_answer_that_is_not_sound_is_refused(data: object) -> None:
    """Fewer vectors, several lengths, none at all, no numbers: none of it is compared."""
    with pytest.raises(ValueError, match="vector"):
        unit_vectors(data, 2)


def test_vectors_get_length_one_and_the_order_of_their_index() -> None:
    """Large and small numbers alike; an answer in another order is put right."""
    rows = [{"embedding": [0, 1e300], "index": 1}, {"embedding": [1e-30, 0], "index": 0}]

    first, second = unit_vectors(rows, 2)

    assert (list(first), list(second)) == ([1.0, 0.0], [0.0, 1.0])
    assert cosine(first, second) == 0
