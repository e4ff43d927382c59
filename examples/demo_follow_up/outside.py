"""A mail service, a CRM and a messenger, played by a folder: one file for each thing that was done.

Each does what a good service does with an idempotency key: the file is named after the key, so a repeated call finds
what the first one left and changes nothing.
"""

import json
import os
import threading
from pathlib import Path
from typing import Any


class Outside:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def do(self, service: str, effect_key: str, **what: str) -> str:
        """Do it, or find that it was done; answers its id."""
        path = self._path(service, effect_key)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        scratch.write_text(json.dumps(what))
        try:
            path.hardlink_to(scratch)  # appears whole, and only once
        except FileExistsError:
            pass
        finally:
            scratch.unlink()
        return path.stem

    def find(self, service: str, effect_key: str) -> str | None:
        """The id of what was done under that key; None: nothing was."""
        path = self._path(service, effect_key)
        return path.stem if path.exists() else None

    def done(self, service: str) -> list[dict[str, Any]]:
        """All that this service ever did."""
        return [json.loads(path.read_text()) for path in sorted((self._folder / service).glob("*.json"))]

    def _path(self, service: str, effect_key: str) -> Path:
        return self._folder / service / f"{effect_key.replace('/', '.')}.json"
