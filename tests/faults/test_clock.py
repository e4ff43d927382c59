"""F37: the clock of the database is stepped by half a minute, forwards and backwards, under leases of two seconds.

Nobody who is alive is called lost for it; a timer is early or late by no more than the step; everything ends.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.stack import Stack
from tests.faults.starts import Starts, eventually, faults_found, query, wait_until_healthy
from tests.faults.stepping_clock import SteppingClock

pytestmark = pytest.mark.slow

LEASE_SECONDS = 2.0
STEP_SECONDS = 30.0
LARGE_STEP_SECONDS = 600.0
RUNS = 8
LONG_SECONDS = 2.5 * LEASE_SECONDS
"""A body that ran before a step still runs when the sweeps judge again, a lease behind it."""
BACKOFF_SECONDS = 2.0
FOLLOWED_SECONDS = 1.5
"""When a body this long fails, every process has looked at the clock since it began."""
DISAGREES = frozenset({"clock"})
"""What the doctor calls wrong while the database's clock is not this machine's."""

WORK: dict[str, Any] = {
    "name": "work",
    "tasks": {
        "first": {"run": "clock.work", "with": "${{ input }}"},
        "second": {"run": "clock.work", "needs": ["first"], "with": {"n": "${{ input.n }}"}},
    },
}
RETRY: dict[str, Any] = {
    "name": "retry",
    "tasks": {
        "flaky": {
            "run": "clock.work",
            "with": "${{ input }}",
            "retry": {"attempts": 2, "backoff": "fixed", "delay": f"{BACKOFF_SECONDS:g}s", "jitter": 0},
        }
    },
}
ASK: dict[str, Any] = {
    "name": "ask",
    "tasks": {
        "soon": {"approval": {"title": "Soon?", "expires": "20s", "on_expiry": "approve"}},
        "later": {"approval": {"title": "Later?", "expires": "5m"}},
    },
}

ODD_LEASES = """
SELECT session_id FROM worker_session WHERE ended_at IS NULL
AND (expires_at - renewed_at <> lease OR renewed_at NOT BETWEEN now() - lease AND now())
"""
RUNNING_ON_1 = """
SELECT run_id, task FROM task JOIN worker_session USING (session_id) WHERE status = 'running' AND worker = 'worker-1'
"""


class Site(NamedTuple):
    stack: Stack
    clock: SteppingClock

    def query(self, sql: str, *parameters: Any) -> list[Any]:
        return query(self.stack.postgres, sql, *parameters)

    def set_ahead(self, seconds: float) -> None:
        """Step, and wait until every worker has been heard under the new clock."""
        self.clock.set_ahead(seconds)
        eventually(lambda: not self.query(ODD_LEASES), "all sessions are renewed by the stepped clock")

    def sessions(self) -> set[Any]:
        """Worker sessions that have not ended."""
        return {id_ for (id_,) in self.query("SELECT session_id FROM worker_session WHERE ended_at IS NULL")}

    def relay_epoch(self) -> int:
        return int(self.query("SELECT epoch FROM relay_owner")[0][0])

    def questions(self) -> dict[str, str]:
        return dict(self.query("SELECT title, status FROM approval"))

    def timers(self) -> dict[str, datetime]:
        """When each run's timer is due, of those that are set."""
        return dict(self.query("SELECT run_id::text, due_at FROM timer"))


@pytest.fixture(scope="module")
def empty(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database of this module's, with nothing in it."""
    create_database(postgres.dsn, "stepped")
    yield postgres.url_of("stepped")
    drop_database(postgres.dsn, "stepped")


@pytest.fixture(scope="module")
def site(empty: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    clock = SteppingClock(empty)
    with Stack(
        Path(__file__).with_name("clock_app.py"),
        postgres=empty,
        data=tmp_path_factory.mktemp("site"),
        workers=2,
        relays=2,
        slots=2 * RUNS,
        lease_seconds=LEASE_SECONDS,
        settings={"HEADRACE_SLOT": "stepped", "HEADRACE_RELAY_LEASE": "2"},
    ) as stack:
        for workflow in (WORK, RETRY, ASK):
            httpx.post(f"{stack.api_url}/workflows", headers=stack.headers, json=workflow).raise_for_status()
        stack.wait_workers(2)
        yield Site(stack, clock)


@pytest.fixture
def work(site: Site) -> Iterator[Starts]:
    with Starts(site.stack, "work") as starts:
        yield starts


@pytest.fixture
def retry(site: Site) -> Iterator[Starts]:
    with Starts(site.stack, "retry") as starts:
        yield starts


@pytest.mark.parametrize(
    ("before", "after"), [(0, STEP_SECONDS), (STEP_SECONDS, 0), (0, -STEP_SECONDS), (-STEP_SECONDS, 0)]
)
def test_f37_a_step_of_the_databases_clock_ends_no_session_and_loses_no_task(
    site: Site, work: Starts, before: float, after: float
):
    site.set_ahead(before)
    sessions, epoch = site.sessions(), site.relay_epoch()
    work.start_all(RUNS, seconds=LONG_SECONDS)
    eventually(lambda: len(site.query("SELECT 1 FROM task WHERE status = 'running'")) == RUNS, "every body runs")
    site.clock.set_ahead(after)
    work.start_all(RUNS)
    eventually(work.have_completed, "every run has completed")
    work.check()
    assert site.sessions() == sessions, "nobody who is alive is given up"
    assert site.query("SELECT run_id, task, token FROM task WHERE token <> 1") == [], "nothing is handed out twice"
    assert site.query("SELECT run_id FROM run WHERE finished_at < updated_at OR updated_at < created_at") == []
    assert site.relay_epoch() - epoch <= 1, "the other relay may take this for silence, once"
    eventually(lambda: not site.query(ODD_LEASES), "no lease is longer or shorter than a lease")
    wait_until_healthy(site.stack, besides=DISAGREES if after else frozenset())
    assert after == 0 or faults_found(site.stack).keys() == DISAGREES


def arm(site: Site, retry: Starts) -> dict[str, datetime]:
    """Start a run and let it fail once; answers when its timer is due."""
    armed = set(site.timers())
    retry.start_all(1, fails_once=True)
    eventually(lambda: len(site.timers().keys() - armed) == 1, "its timer is set")
    return {run_id: due_at for run_id, due_at in site.timers().items() if run_id not in armed}


def check_timers(site: Site, due: dict[str, datetime]) -> None:
    """Each of these timers has fired once, and not before it was due."""
    fired = site.query(
        "SELECT run_id::text, at FROM history WHERE kind = 'due' AND run_id = ANY(%s::uuid[])", list(due)
    )
    assert sorted(run_id for run_id, _ in fired) == sorted(due)
    assert all(at >= due[run_id] for run_id, at in fired)


def test_f37_a_timer_is_early_by_no_more_than_a_step_forward(site: Site, retry: Starts):
    site.set_ahead(0)
    due = arm(site, retry)
    site.clock.set_ahead(STEP_SECONDS)
    eventually(retry.have_completed, "it is due by the stepped clock")
    retry.check()
    check_timers(site, due)


def test_f37_a_timer_of_before_a_step_back_fires_when_the_clock_is_there_again(site: Site, retry: Starts):
    site.set_ahead(STEP_SECONDS)
    due = arm(site, retry)
    site.set_ahead(0)
    retry.start_all(1, seconds=FOLLOWED_SECONDS, fails_once=True)
    eventually(lambda: len(completed(site, retry)) == 1, "one that was set behind the step is due")
    assert site.timers() == due
    site.clock.set_ahead(STEP_SECONDS)
    eventually(retry.have_completed, "now so is the other")
    retry.check()
    check_timers(site, due)


def completed(site: Site, starts: Starts) -> list[Any]:
    ids = list(starts.accepted.values())
    return site.query("SELECT run_id FROM run WHERE status = 'completed' AND run_id = ANY(%s::uuid[])", ids)


@pytest.mark.parametrize(("before", "after"), [(0, STEP_SECONDS), (0, -STEP_SECONDS)])
def test_f37_a_delay_that_begins_behind_a_step_is_kept(site: Site, retry: Starts, before: float, after: float):
    site.set_ahead(before)
    site.clock.set_ahead(after)
    retry.start_all(RUNS, seconds=FOLLOWED_SECONDS, fails_once=True)
    eventually(retry.have_completed, "every run has completed")
    retry.check()
    delays = site.query(
        "SELECT extract(epoch FROM b.started_at - a.finished_at)::float8 FROM attempt a JOIN attempt b USING (run_id) "
        "WHERE a.attempt = 1 AND b.attempt = 2 AND run_id = ANY(%s::uuid[])",
        list(retry.accepted.values()),
    )
    assert len(delays) == RUNS
    assert min(delays)[0] >= BACKOFF_SECONDS, "by the workers' clock, which nobody stepped"


def test_f37_a_question_expires_by_the_stepped_clock(site: Site):
    site.set_ahead(0)
    with Starts(site.stack, "ask") as ask:
        ask.start_all(1)
        eventually(lambda: site.questions() == {"Soon?": "waiting", "Later?": "waiting"}, "both are asked")
        site.clock.set_ahead(STEP_SECONDS)
        eventually(lambda: site.questions() == {"Soon?": "approved", "Later?": "waiting"}, "the first has expired")
        assert site.query("SELECT title FROM approval WHERE decided_at < expires_at") == []
        site.set_ahead(0)
        ((id_,),) = site.query("SELECT approval_id FROM approval WHERE status = 'waiting'")
        httpx.post(
            f"{site.stack.api_url}/approvals/{id_}/approve", headers=site.stack.headers, json={}
        ).raise_for_status()
        eventually(ask.have_completed, "the second was still open")
        ask.check()


def test_f37_a_worker_that_dies_as_the_clock_steps_back_is_missed_long_before_the_clock_is_there_again(
    site: Site, work: Starts
):
    site.set_ahead(LARGE_STEP_SECONDS)
    work.start_all(RUNS, seconds=LONG_SECONDS)
    eventually(lambda: len(site.query(RUNNING_ON_1)) > 0, "the worker runs bodies")
    running = site.query(RUNNING_ON_1)
    site.stack.kill9("worker-1")
    site.clock.set_ahead(0)
    eventually(work.have_completed, "every run has completed")
    work.check()
    lost = site.query("SELECT run_id, task FROM attempt WHERE outcome = 'lost'")
    assert set(running) <= set(lost)
    wait_until_healthy(site.stack)
