"""A user's Python file as a module: the only place where code outside the package is loaded by its path."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import CodeType, ModuleType

from growthring.errors import InputError

PREFIX = "growthring_file_"  # of files that are named like a module


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Runs what the file says, and not a __pycache__ beside it, which may say something else."""

    def get_code(self, fullname: str) -> CodeType:
        """Compiles the source."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def load_source(path: str) -> ModuleType:
    """A user's file as a module, which finds its neighbours, and which dataclasses and pickles find.

    Raises:
        InputError: there is no such file, or it cannot be imported.

    >>> load_source("nowhere.py")
    Traceback (most recent call last):
    growthring.errors.InputError: there is no file 'nowhere.py'.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file '{path}'.")
    name = file.stem  # but a file named like a module must not replace it
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(file):
        name = f"{PREFIX}{name}"
    loader = _SourceLoader(name, str(file))
    spec = importlib.util.spec_from_file_location(name, file, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # importing runs the user's own code
        del sys.modules[name]
        raise InputError(f"cannot import '{file}': {type(error).__name__}: {error}") from error
    return module
