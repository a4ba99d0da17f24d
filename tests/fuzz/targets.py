"""What a target is: something that reads any bytes, and raises nothing but what it promises; and all by name.

A module is imported when one of its targets is wanted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Literal

CORPUS = Path(__file__).parent / "corpus"
# Memory instead of a disk: thousands of inputs a second are written.
_MEMORY = Path("/dev/shm")
Once = Callable[[bytes], None]


@dataclass(frozen=True, slots=True)
class Target:
    """Reads one input after the other: ``opened`` gives the function, which raises where something is wrong.

    ``form`` is what inputs are made of, for whoever changes them; ``limit_s`` how long one may take.
    """

    name: str
    opened: Callable[[], AbstractContextManager[Once]]
    form: Literal["json", "bytes"] = "bytes"
    limit_s: int = 10
    max_bytes: int = 8192

    @property
    def corpus(self) -> Path:
        return CORPUS / self.name

    def kept(self) -> list[Path]:
        return sorted(path for path in self.corpus.glob("*") if path.is_file())


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for the files of a target."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as name:
        yield Path(name)


def pure(once: Once) -> Callable[[], AbstractContextManager[Once]]:
    """Make a target of a function that needs nothing around it."""

    @contextmanager
    def opened() -> Iterator[Once]:
        yield once

    return opened


MODULES: Final[Mapping[str, str]] = {
    "transcript": "texts",
    "inbound": "texts",
    "outbound": "texts",
    "configuration": "texts",
    "markdown": "texts",
    "telegram": "platforms",
    "discord": "platforms",
    "mcp": "mcp_answers",
    "http": "served",
    "websocket": "served",
}


def target_of(name: str) -> Target:
    found: Mapping[str, Target] = import_module(f"tests.fuzz.{MODULES[name]}").TARGETS
    return found[name]
