"""The trial of one module: its tests collected once, then a child for each mutant that runs them."""

from __future__ import annotations

import ast
import gc
import importlib
import json
import os
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import finder
from tests.mutants.faults import Mutant, with_fault
from tests.mutants.pool import CANNOT, Limit, Pool, end_with_parent

_OPTIONS = ("-qq", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--no-summary")
_BASELINE = Limit(900.0, 900.0)
# What a Python that a test starts does first.
_SITE = """{finder}
install({module!r}, Path({path!r}), (Path(__file__).parent / "fault.py").read_text())
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A module that decides, by its file, and the tests that decide over it."""

    file: str
    tests: tuple[str, ...]

    @property
    def module(self) -> str:
        """Its dotted name."""
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
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        end_with_parent()
        server = _Server(target, mutants, Pool(jobs), os.fdopen(writer, "w"), least)
        server.serve()
    os.close(writer)
    measures, left = None, list(mutants)
    with os.fdopen(reader) as lines:
        for line in lines:
            told = json.loads(line)
            if "verdict" in told:
                yield Verdict(**told)
                left = [mutant for mutant in left if mutant.key != told["key"]]
            else:
                measures = _Measures(**told)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if measures is None or code:
        raise NotGreen(f"{target.file}: its tests fail on the original (exit code {code})")
    yield from _anew(target, left, measures, jobs, least)


class _Server:
    """The plugin that tries mutants where pytest would run the tests."""

    def __init__(self, target: Target, mutants: Sequence[Mutant], pool: Pool, out: Any, least: Limit) -> None:
        self._target = target
        self._source = Path(target.file).read_text()
        self._path = str(Path(target.file).resolve())
        self._mutants = [mutant for mutant in mutants if mutant.function is not None]
        self._pool = pool
        self._least = least
        self._out = out
        self._killers: dict[tuple[str, int] | None, list[str]] = {}
        self._measured = _Measures()
        self._now: set[int] = set()
        self._is_measuring = False
        self._folder: Path | None = None
        self._is_child = False
        self._is_green = False

    def serve(self) -> None:
        """Collect the tests once and try what can be put into the running module; ends the process."""
        code = pytest.main([*_OPTIONS, *self._target.tests], plugins=[self])
        self._out.flush()
        os._exit(int(code) if self._is_child or not self._is_green else 0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Try each mutant in a child, which then goes on from here as pytest would."""
        if session.testsfailed:
            return None
        self._folder = self._pool.fork(_BASELINE, self._take_measures)
        if self._folder is not None:
            self._measure()
            return None
        self._pool.finish()
        if not self._is_green:
            return True
        functions = _functions_of(self._path)
        if self._mutants and not functions:
            # Every mutant would survive.
            print(f"{self._target.file}: none of its functions is to be found", file=sys.stderr)
            self._is_green = False
            return True
        self._tell(asdict(self._measured))
        items = {item.nodeid: item for item in session.items}
        for mutant in self._mutants:
            chosen = self._chosen(mutant)
            seconds = sum(self._measured.seconds.get(nodeid, 0.0) for nodeid in chosen)
            self._folder = self._pool.fork(
                self._least.with_tests(seconds),
                partial(self._take, mutant),
            )
            if self._folder is not None:
                self._is_child = True
                session.items[:] = [items[nodeid] for nodeid in chosen]
                session.config.option.maxfail = 1
                tree = with_fault(self._source, mutant)
                _tell_processes(tree, self._target, self._folder)
                _put_in(tree, self._path, functions)
                return None
        self._pool.finish()
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Measure what a test costs and which lines it runs, or see that it ends."""
        if not self._is_measuring:
            with self._least.over_test(self._measured.seconds.get(item.nodeid, 0.0)):
                return (yield)
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

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave the word who failed."""
        if self._folder is not None and report.failed:
            (self._folder / "killer").write_text(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Leave the measures for the parent."""
        if self._is_measuring and self._folder is not None:
            sys.settrace(None)
            self._measured.imported = sorted(sys.modules)
            (self._folder / "measures").write_text(json.dumps(asdict(self._measured)))

    def _measure(self) -> None:
        self._is_child = self._is_measuring = True
        path = self._path

        def look(frame: types.FrameType, event: str, _arg: object) -> Any:
            if frame.f_code.co_filename != path:
                return None
            self._now.add(frame.f_lineno)
            return look

        threading.settrace(look)
        sys.settrace(look)

    def _take_measures(self, code: int | None, folder: Path) -> None:
        measures = folder / "measures"
        if code == 0 and measures.exists():
            self._measured = _Measures(**json.loads(measures.read_text()))
            self._is_green = True
        else:
            told = (folder / "output").read_text(errors="replace")
            print(f"{told[-4000:]}\n{self._target.file}: not green without a fault: {code}", file=sys.stderr)

    def _chosen(self, mutant: Mutant) -> list[str]:
        """List the tests that run the mutant's lines, those first that killed its neighbours, then the quick.

        Where none runs them in this process, all: a process that a test forks may do so.
        """
        lines = set(range(mutant.line, mutant.end_line + 1))
        measured = self._measured
        files = {name for name, ran in measured.shared.items() if not lines.isdisjoint(ran)}
        found = [
            nodeid
            for nodeid, ran in measured.lines.items()
            if _file(nodeid) in files or not lines.isdisjoint(ran)
        ] or list(measured.lines)
        killers = self._killers.get(mutant.function, [])
        return sorted(found, key=lambda nodeid: (nodeid not in killers, measured.seconds[nodeid]))

    def _take(self, mutant: Mutant, code: int | None, folder: Path) -> None:
        if code == CANNOT:
            return
        verdict = _verdict(mutant, code, folder)
        if verdict.by:
            self._killers.setdefault(mutant.function, []).append(verdict.by)
        self._tell(asdict(verdict))

    def _tell(self, told: dict[str, Any]) -> None:
        print(json.dumps(told), file=self._out, flush=True)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _verdict(mutant: Mutant, code: int | None, folder: Path) -> Verdict:
    killer = folder / "killer"
    by = killer.read_text() if killer.exists() else ""
    if code is None:
        return Verdict(mutant.key, "timed out", by)
    return Verdict(mutant.key, "killed" if code else "survived", by)


def _note(found: list[Verdict], mutant: Mutant, code: int | None, folder: Path) -> None:
    found.append(_verdict(mutant, code, folder))


def _functions_of(path: str) -> dict[tuple[str, int], list[types.FunctionType]]:
    found: dict[tuple[str, int], list[types.FunctionType]] = {}
    # What is frozen, as what was collected is, is not among the objects.
    gc.unfreeze()
    for each in gc.get_objects():
        if isinstance(each, types.FunctionType) and each.__code__.co_filename == path:
            found.setdefault(_name(each.__code__), []).append(each)
    return found


def _name(code: types.CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _put_in(tree: ast.Module, path: str, functions: dict[tuple[str, int], list[types.FunctionType]]) -> None:
    """Give each function that the module made the code that it has with the fault."""
    waiting = [compile(tree, path, "exec", dont_inherit=True)]
    try:
        while waiting:
            code = waiting.pop()
            for function in functions.get(_name(code), ()):
                function.__code__ = code
            waiting += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    except ValueError:
        # It names other variables of the functions around it.
        os._exit(CANNOT)


def _anew(
    target: Target, mutants: Sequence[Mutant], measures: _Measures, jobs: int, least: Limit
) -> Iterator[Verdict]:
    """Try what acts at the import: each child imports everything of ours itself."""
    ours = {path.stem for path in Path.cwd().iterdir()}
    for name in measures.imported:
        if name.partition(".")[0] not in ours and not name.startswith(("_", "tests")):
            try:
                importlib.import_module(name)
            except ImportError:
                continue
    pool, source = Pool(jobs), Path(target.file).read_text()
    found: list[Verdict] = []
    limit = least.with_tests(1.0 + sum(measures.seconds.values()))
    for mutant in mutants:
        folder = pool.fork(limit, partial(_note, found, mutant))
        if folder is not None:
            tree = with_fault(source, mutant)
            _tell_processes(tree, target, folder)
            finder.install(target.module, Path(target.file).resolve(), tree)
            code = pytest.main([*_OPTIONS, "-x", *target.tests], plugins=[_Child(folder, measures, least)])
            os._exit(int(code))
        while found:
            yield found.pop()
    pool.finish()
    yield from found


def _tell_processes(tree: ast.Module, target: Target, folder: Path) -> None:
    """Let the Pythons that a test starts import the module with its fault, too."""
    (folder / "fault.py").write_text(ast.unparse(tree))
    (folder / "sitecustomize.py").write_text(
        _SITE.format(
            finder=Path(finder.__file__).read_text(),
            module=target.module,
            path=str(Path(target.file).resolve()),
        )
    )
    above = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{folder}{os.pathsep}{above}" if above else str(folder)


class _Child:
    """The plugin of a child that collects for itself: quick tests first, and the word who failed."""

    def __init__(self, folder: Path, measures: _Measures, least: Limit) -> None:
        self._folder = folder
        self._seconds = measures.seconds
        self._least = least

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Begin with the quick ones."""
        items.sort(key=lambda item: self._seconds.get(item.nodeid, 0.0))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """See that a test ends."""
        with self._least.over_test(self._seconds.get(item.nodeid, 0.0)):
            return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave the word who failed."""
        if report.failed:
            (self._folder / "killer").write_text(report.nodeid)
