"""Lets one module be imported with a fault; stands by itself: Pythons that a test starts run it, too."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path

# What a Python that is started first does: a copy of this module, and this.
_SITE = """
install({module!r}, {path!r}, (Path(__file__).parent / "fault.py").read_text())
"""


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, module: str, path: str, code: str) -> None:
        self._module, self._path, self._code = module, path, code

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._module:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(compile(self._code, self._path, "exec", dont_inherit=True), vars(module))


def install(module: str, path: str, code: str) -> None:
    """From now on ``module`` is imported from this code; the path is what it says it is."""
    sys.meta_path.insert(0, _Finder(module, path, code))


def for_processes(folder: Path, file: str, code: str) -> dict[str, str]:
    """Return the environment in which Pythons import the module of a file from this code."""
    module, path = file.removesuffix(".py").replace("/", "."), str(Path(file).resolve())
    (folder / "fault.py").write_text(code)
    site = Path(__file__).read_text() + _SITE.format(module=module, path=path)
    (folder / "sitecustomize.py").write_text(site)
    above = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{above}" if above else str(folder)}
