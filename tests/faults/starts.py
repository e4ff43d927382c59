"""Clients that start runs through a fault: what each was answered, and whether every promise was kept."""

import contextlib
import json
import subprocess
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, Self

import httpx
import psycopg

from headrace.engine import engine_command, engine_environment
from headrace.stack import Stack

CALL_SECONDS: Final = 10.0
END_SECONDS: Final = 120.0


def eventually(fact: Callable[[], bool], what: str, seconds: float = END_SECONDS) -> float:
    """Wait for a fact; answers how long it took."""
    started = time.monotonic()
    while not fact():
        assert time.monotonic() - started < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return time.monotonic() - started


def query(dsn: str, sql: str, *parameters: Any) -> list[Any]:
    """Raises psycopg.OperationalError while Postgres is away."""
    with psycopg.connect(dsn, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(sql.encode(), parameters or None)
        return cursor.fetchall() if cursor.description else []


class Starts:
    """Starts of one workflow, each under a key of its own."""

    def __init__(self, stack: Stack, workflow: str) -> None:
        self._stack, self._workflow = stack, workflow
        self._prefix = f"{workflow}-{uuid.uuid4().hex[:8]}"
        self._client = httpx.Client(base_url=stack.api_url, headers=stack.headers, timeout=CALL_SECONDS)
        self._tried = 0
        self.accepted: dict[str, str] = {}
        """Run ids by key, of all that were answered with a run."""
        self.refused: dict[str, dict[str, Any]] = {}
        """Bodies by key, of those that were not yet."""
        self._bodies: dict[str, dict[str, Any]] = {}
        self.unclean: list[str] = []
        """Answers that no client should get."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def start(self, **given: Any) -> bool:
        """Try one more start, once; answers whether there is a run now."""
        self._tried += 1
        key = f"{self._prefix}-{self._tried}"
        return self._try(key, {"input": {"n": self._tried, **given}, "key": key})

    def start_all(self, count: int, **given: Any) -> None:
        """So many more starts that are accepted, however often it takes."""
        for _ in range(count):
            if not self.start(**given):
                self.insist()

    def insist(self, seconds: float = END_SECONDS) -> None:
        """Repeat what was refused, each with its key, until it is accepted: what a client does."""
        for key, body in list(self.refused.items()):
            eventually(lambda key=key, body=body: self._try(key, body), f"the start {key} is accepted", seconds)

    def repeat(self) -> None:
        """Start all again, each with its key: what a client does that cannot find its run."""
        self.refused = dict(self._bodies)
        self.insist()

    def _try(self, key: str, body: dict[str, Any]) -> bool:
        self.refused[key] = self._bodies[key] = body
        try:
            answer = self._client.post(f"/workflows/{self._workflow}/runs", json=body)
        except httpx.TransportError as error:
            self.unclean.append(f"{key}: {error!r}")
            return False
        if answer.status_code not in (200, 201):
            if not says_come_again(answer):
                self.unclean.append(f"{key}: {answer.status_code} {answer.text[:500]}")
            return False
        self.accepted[key] = answer.json()["run_id"]
        del self.refused[key]
        return True

    # == what must hold in the end =====================================================================================
    def have_completed(self) -> bool:
        """Whether every run that was accepted has completed; False while Postgres is away."""
        with contextlib.suppress(psycopg.OperationalError):
            return all(status == "completed" for _, _, status in self._rows())
        return False

    def check(self) -> None:
        """Every try had a clean answer; the database has the runs that were accepted, all completed, and no other."""
        assert self.unclean == []
        assert self.refused == {}
        expected = {(f"api:{key}", run_id, "completed") for key, run_id in self.accepted.items()}
        assert set(self._rows()) == expected
        counted = "SELECT (SELECT count(*) FROM run) - (SELECT count(*) FROM trigger_key)"
        assert query(self._stack.postgres, counted) == [(0,)]

    def _rows(self) -> list[tuple[str, str, str]]:
        """(key, run id, status) of all that stands under keys of ours."""
        return query(
            self._stack.postgres,
            "SELECT k.key, k.run_id::text, r.status::text FROM trigger_key k LEFT JOIN run r USING (run_id) "
            "WHERE k.key LIKE %s",
            f"api:{self._prefix}-%",
        )


def says_come_again(answer: httpx.Response) -> bool:
    """Whether an answer is a 503 in our own words."""
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    return (
        answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        and is_problem
        and int(answer.headers["retry-after"]) >= 1
        and "Traceback" not in answer.text
    )


def faults_found(stack: Stack) -> dict[str, str]:
    """What `python -m state.doctor --full` calls wrong, by check; it looks at every run."""
    done = subprocess.run(
        engine_command("state.doctor", "--full", "--json"),
        env=engine_environment(stack.settings),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return {check["name"]: check["detail"] for check in json.loads(done.stdout)["checks"] if not check["ok"]}


def wait_until_healthy(stack: Stack, seconds: float = END_SECONDS, besides: frozenset[str] = frozenset()) -> None:
    """Until the doctor finds nothing wrong, besides these checks."""
    give_up_at = time.monotonic() + seconds
    while (found := faults_found(stack)).keys() - besides:
        assert time.monotonic() < give_up_at, found
