"""Runs two pieces of work as two threads may: each line of one against each line of the other."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Generic, TypeVar

T = TypeVar("T")


# The lines of each file before which one of both may be in the middle.
Places = dict[str, set[int]]


class _Writer:
    """Does its work in a thread up to its n-th place, and the rest once it is told to."""

    def __init__(self, work: Callable[[], object], places: Places, stop: int) -> None:
        self._work, self._steps = work, _Steps[object](places, stop, self._hold)
        self._held, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._held.wait()

    @property
    def is_done(self) -> bool:
        return not self._steps.was_there

    def end(self) -> None:
        self._go.set()
        self._thread.join()

    def _hold(self) -> None:
        self._held.set()
        self._go.wait()

    def _run(self) -> None:
        try:
            self._steps.run(self._work)
        finally:
            self._held.set()


class _Steps(Generic[T]):
    """Counts the places that some work comes to, and does something before one of them."""

    def __init__(self, places: Places, at: int, then: Callable[[], object]) -> None:
        self._places, self._at, self._then = places, at, then
        self._count = 0
        self.was_there = False

    def run(self, work: Callable[[], T]) -> T:
        before = sys.gettrace()
        sys.settrace(self._entered)
        try:
            return work()
        finally:
            sys.settrace(before)

    def _entered(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._stepped if frame.f_code.co_filename in self._places else None

    def _stepped(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and frame.f_lineno in self._places[frame.f_code.co_filename]:
            if self._count == self._at:
                self.was_there = True
                self._then()
            self._count += 1
        return self._stepped


def interleaved(
    begin: Callable[[], tuple[Callable[[], object], Callable[[], T]]], shared: str, *modules: ModuleType
) -> Iterator[tuple[T | LookupError, tuple[int, int]]]:
    """Let a reader run while a writer does, and yield what it says each time, with where they met.

    Args:
        begin: makes both, with nothing that an earlier pair has touched.
        shared: finds the lines that touch what both of them do; what is between those makes no difference.
        modules: in which these lines are looked for.
    """
    places = {str(module.__file__): _lines_with(shared, str(module.__file__)) for module in modules}
    held = 0
    while True:
        met = 0
        while True:
            write, read = begin()
            writer = _Writer(write, places, held)
            reader = _Steps[T](places, met, writer.end)
            said: T | LookupError
            try:
                said = reader.run(read)
            except LookupError as error:
                said = error
            finally:
                writer.end()
            yield said, (held, met)
            if not reader.was_there:
                break
            met += 1
        if writer.is_done:
            return
        held += 1


def _lines_with(shared: str, file: str) -> set[int]:
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if re.search(shared, line)}
