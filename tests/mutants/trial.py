"""The trial of one module: its tests measured once, then a child for each mutant that runs them."""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import threading
import time
import types
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import finder
from tests.mutants.faults import Mutant, with_fault
from tests.mutants.pool import Limit, Pool

_OPTIONS = ("-qq", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--no-summary")
_BASELINE = Limit(900.0, 900.0)


@dataclass(frozen=True, slots=True)
class Target:
    """A module that decides, by its file, and the tests that decide over it."""

    file: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: ``killed``, ``timed out`` or ``survived``; and the test that killed it."""

    key: str
    verdict: str
    by: str = ""


class NotGreen(Exception):
    """The tests fail without any fault; nothing can be said."""


@dataclass(slots=True)
class _Measures:
    """What the tests did without a fault: their seconds, the lines each ran, what they imported."""

    collecting: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[str, list[int]] = field(default_factory=dict)
    # Of all that is shared by the tests of a file.
    shared: dict[str, list[int]] = field(default_factory=dict)
    imported: list[str] = field(default_factory=list)


def verdicts(target: Target, mutants: Sequence[Mutant], *, jobs: int, least: Limit) -> Iterator[Verdict]:
    """Try each mutant; yield the verdicts as they come. None is timed out before ``least``.

    Raises:
        NotGreen: the tests fail as it is, or there are none.
    """
    pool, source, found = Pool(jobs), Path(target.file).read_text(), list[Verdict]()
    baseline: list[_Measures] = []
    folder = pool.fork(_BASELINE, partial(_take_measures, target, baseline))
    if folder is not None:
        os._exit(int(pytest.main([*_OPTIONS, *target.tests], plugins=[_Measuring(target, folder)])))
    pool.finish()
    if not baseline:
        raise NotGreen(f"{target.file}: its tests fail on the original")
    measures = baseline[0]
    _import_others(measures.imported)
    killers: dict[str, list[str]] = defaultdict(list)
    for mutant in mutants:
        chosen = _chosen(mutant, measures, killers[mutant.function])
        seconds = measures.collecting + sum(measures.seconds[nodeid] for nodeid in chosen)
        folder = pool.fork(least.with_tests(seconds), partial(_note, found, killers, mutant))
        if folder is not None:
            code = ast.unparse(with_fault(source, mutant))
            os.environ |= finder.for_processes(folder, target.file, code)
            finder.install(target.module, str(Path(target.file).resolve()), code)
            child = _Child(folder, chosen, measures.seconds, least)
            os._exit(int(pytest.main([*_OPTIONS, "-x", *target.tests], plugins=[child])))
        while found:
            yield found.pop()
    pool.finish()
    yield from found


class _Measuring:
    """The plugin of the child that runs the tests without a fault."""

    def __init__(self, target: Target, folder: Path) -> None:
        self._path, self._folder = str(Path(target.file).resolve()), folder
        self._measured = _Measures()
        self._now: set[int] = set()
        self._began = time.monotonic()

    def pytest_collection_finish(self) -> None:
        self._measured.collecting = time.monotonic() - self._began
        path = self._path

        def look(frame: types.FrameType, event: str, _arg: object) -> Any:
            if frame.f_code.co_filename != path:
                return None
            self._now.add(frame.f_lineno)
            return look

        threading.settrace(look)
        sys.settrace(look)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._now = set()
        began = time.monotonic()
        result = yield
        self._measured.seconds[item.nodeid] = time.monotonic() - began
        self._measured.lines[item.nodeid] = sorted(self._now)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        """What fixtures run may serve the other tests of the file."""
        result = yield
        shared = self._measured.shared.setdefault(_file(item.nodeid), [])
        shared.extend(self._now - set(shared))
        return result

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        self._measured.imported = sorted(sys.modules)
        (self._folder / "measures").write_text(json.dumps(asdict(self._measured)))


def _take_measures(target: Target, found: list[_Measures], code: int | None, folder: Path) -> None:
    if code == 0:
        found.append(_Measures(**json.loads((folder / "measures").read_text())))
    else:
        told = (folder / "output").read_text(errors="replace")
        print(f"{told[-4000:]}\n{target.file}: not green without a fault: {code}", file=sys.stderr)


def _import_others(names: Sequence[str]) -> None:
    ours = {path.stem for path in Path.cwd().iterdir()}
    for name in names:
        if name.partition(".")[0] not in ours and not name.startswith(("_", "tests")):
            try:
                importlib.import_module(name)
            except ImportError:
                continue


def _chosen(mutant: Mutant, measured: _Measures, killers: Sequence[str]) -> list[str]:
    """List the tests that run the mutant's lines, those first that killed its neighbours, then the quick.

    All where none runs them in this process: a process that a test forks may do so; and where it acts at
    the import.
    """
    lines = set(range(mutant.line, mutant.end_line + 1))
    files = {name for name, ran in measured.shared.items() if not lines.isdisjoint(ran)}
    found = [
        nodeid
        for nodeid, ran in measured.lines.items()
        if mutant.function and (_file(nodeid) in files or not lines.isdisjoint(ran))
    ] or list(measured.lines)
    return sorted(found, key=lambda nodeid: (nodeid not in killers, measured.seconds[nodeid]))


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _note(
    found: list[Verdict], killers: dict[str, list[str]], mutant: Mutant, code: int | None, folder: Path
) -> None:
    killer = folder / "killer"
    by = killer.read_text() if killer.exists() else ""
    if by:
        killers[mutant.function].append(by)
    verdict = "timed out" if code is None else "killed" if code else "survived"
    found.append(Verdict(mutant.key, verdict, by))


class _Child:
    """The plugin of a child with a fault: the chosen tests in their order, and the word who failed."""

    def __init__(self, folder: Path, chosen: Sequence[str], seconds: dict[str, float], least: Limit) -> None:
        self._folder, self._seconds, self._least = folder, seconds, least
        self._place = {nodeid: at for at, nodeid in enumerate(chosen)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place),
            key=lambda item: self._place[item.nodeid],
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with self._least.over_test(self._seconds[item.nodeid]):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            (self._folder / "killer").write_text(report.nodeid)
