"""What becomes of runs, said in the log of `headrace dev` as it happens."""

import threading
from collections.abc import Callable
from typing import Final, Self

from headrace.cli.api import Api, Document
from headrace.cli.run_id import short
from headrace.cli.terminal import between
from headrace.errors import HeadraceError

TOLD: Final = frozenset({
    "completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed", "needs_attention",
    "waiting", "paused",
})  # fmt: skip
RETRY_SECONDS: Final = 1.0


class RunFeed:
    """A thread that reads the API's stream of changes and hands on a line for each run that ended or waits."""

    def __init__(self, url: str, token: str, say: Callable[[str], None]) -> None:
        self._url, self._token, self._say = url, token, say
        self._stopping = threading.Event()
        self._told: dict[str, str] = {}
        self._thread = threading.Thread(target=self._read, name="run-feed", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """The thread may wait for the API, which is about to go away: it is not waited for."""
        self._stopping.set()

    def _read(self) -> None:
        while not self._stopping.is_set():
            try:
                with Api(self._url, self._token) as api:
                    for event, document in api.stream("/events"):
                        if self._stopping.is_set():
                            return
                        if event == "run":
                            self._take(api, document)
            except HeadraceError:
                pass  # the API is away or starts anew; its own lines in the log say why
            self._stopping.wait(RETRY_SECONDS)

    def _take(self, api: Api, change: Document) -> None:
        run_id, status = change["run_id"], change["status"]
        if status not in TOLD or self._told.get(run_id) == status:
            return
        if len(self._told) > 10_000:
            self._told.clear()
        self._told[run_id] = status
        self._say(describe_change(api.get(f"/runs/{run_id}")))


def describe_change(run: Document) -> str:
    """`greet v1 …9f3c2a1b completed in 2.1 s`"""
    took = between(run["created_at"], run.get("finished_at"))
    status = str(run["status"]).replace("_", " ")
    hint = f"; headrace show {short(run['run_id'])}" if run["status"] != "completed" else ""
    return f"{run['workflow']} v{run['version']} {short(run['run_id'])} {status}{f' in {took}' if took else ''}{hint}"
