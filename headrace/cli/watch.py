"""Which files changed since the last look, by modification time and size: no dependency, and the same everywhere."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SKIPPED: Final = frozenset({"__pycache__", "node_modules", "venv", "site-packages", "build", "dist"})
"""Folders that hold no source of the user's; hidden ones are skipped as well."""
FILES_MAX: Final = 5_000
"""A look costs about 10 µs a file; with more files than this the folder is hardly a project."""

State = dict[Path, tuple[int, int]]


class Watch:
    """Looks at the `.py` files below some folders, and at single files."""

    def __init__(self, folders: Iterable[Path], files: Iterable[Path] = ()) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self.files = {file.resolve() for file in files}
        self._last = self._look()

    def changed(self) -> set[Path]:
        """Files added, removed or written since the last call."""
        before, self._last = self._last, self._look()
        return {path for path, _ in before.items() ^ self._last.items()}

    def _look(self) -> State:
        state: State = {}
        for folder in self._folders:
            _add_folder(folder, state)
        for file in self.files:
            _add_file(file, state)
        return state


def _add_folder(folder: Path, state: State) -> None:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.startswith(".")]
        for name in names:
            if name.endswith(".py"):
                _add_file(Path(root, name), state)
        if len(state) > FILES_MAX:
            return


def _add_file(path: Path, state: State) -> None:
    try:
        status = path.stat()
    except OSError:  # gone between two looks, or never there: it counts as not there
        return
    state[path] = (status.st_mtime_ns, status.st_size)
