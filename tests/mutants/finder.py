"""Lets one module be imported with a fault; stands by itself: Pythons that a test starts run it, too."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from pathlib import Path


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, module: str, path: Path, code: str | ast.Module) -> None:
        self._module = module
        self._path = str(path)
        self._code = code

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


def install(module: str, path: Path, code: str | ast.Module) -> None:
    """From now on ``module`` is imported from this code; the path is what it says it is."""
    sys.meta_path.insert(0, _Finder(module, path, code))
