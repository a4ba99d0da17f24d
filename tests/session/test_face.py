"""The face of the package: what others use of it, and what it costs to import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import session

LOADED = """
import sys
import session
print(sorted(name for name in sys.modules if name.startswith("session.")))
session.SessionError
print(sorted(name for name in sys.modules if name.startswith("session.")))
session.Turns
print("litellm" in sys.modules)
"""


def test_every_name_of_the_face_is_the_thing_of_that_name() -> None:
    """Whoever imports from the face gets the very class that the package uses itself."""
    for name in session.__all__:
        found = getattr(session, name)

        assert isinstance(found, type), name
        assert found.__name__ == name
        assert getattr(sys.modules[found.__module__], name) is found


def test_a_name_that_is_not_of_the_face_is_refused() -> None:
    """What the package keeps to itself is not had by its face."""
    with pytest.raises(AttributeError, match="no attribute 'TranscriptWriter'"):
        _ = session.TranscriptWriter  # type: ignore[attr-defined]


def test_the_face_loads_a_module_when_its_name_is_asked_for() -> None:
    """Importing the package loads nothing of it, an error no more than the errors, and a turn no client."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[]", "['session.errors']", "False"]
