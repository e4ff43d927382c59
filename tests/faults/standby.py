"""A second Postgres that follows a first one over streaming replication, and takes its place when that is gone.

Both are real clusters of the embedded helper. Clients connect to one address, as to the virtual one of a real pair, and
the followers' own link goes through another, so that a test can cut it.
"""

import subprocess
from types import TracebackType
from typing import Final, Self

from headrace.embedded.binaries import find_binaries
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.unprivileged import find_account, reachable_binaries, reachable_data_dir
from tests.chaos.proxy import Proxies, Weather
from tests.faults.starts import eventually, query

NAME: Final = "standby"
"""What the primary calls it, in `synchronous_standby_names` too."""
REPLAY_SECONDS: Final = 10.0
CLIENTS, LINK = "clients", "replication"
_FOLLOWS: Final = "SELECT count(*) FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
_IS_WAITED_FOR: Final = "SELECT sync_state = 'sync' FROM pg_stat_replication WHERE application_name = %s"


class Pair:
    """A primary and its standby.

    with Pair(is_synchronous=True) as pair:
        psycopg.connect(pair.dsn)       # the primary
        pair.kill_primary()             # the standby, which takes no writes
        pair.promote()                  # the standby, which is the primary from now on
    """

    def __init__(self, *, is_synchronous: bool) -> None:
        self._is_synchronous = is_synchronous
        self._proxies = Proxies()
        self.primary, self.standby = EmbeddedPostgres(), EmbeddedPostgres()
        self.dsn = ""
        """Of whichever is the primary."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _start(self) -> None:
        self._proxies.start()
        self.primary.start()
        link = self._proxies.add(LINK, self.primary.port)
        clients = self._proxies.add(CLIENTS, self.primary.port)
        self.dsn = f"host=127.0.0.1 port={clients.port} user=postgres dbname=postgres"
        self._copy(link.port)
        self.standby.start()
        eventually(lambda: query(self.primary.dsn, _FOLLOWS, NAME) == [(1,)], "the standby follows")
        if self._is_synchronous:
            query(self.primary.dsn, f"ALTER SYSTEM SET synchronous_standby_names = '{NAME}'")
            query(self.primary.dsn, "SELECT pg_reload_conf()")
            eventually(lambda: query(self.primary.dsn, _IS_WAITED_FOR, NAME) == [(True,)], "the primary waits for it")

    def _copy(self, link_port: int) -> None:
        """As `pg_basebackup --write-recovery-conf` does it: the same data, and whom to follow."""
        account = find_account()
        subprocess.run(
            [
                reachable_binaries(find_binaries(), account).folder / "pg_basebackup",
                *(
                    "--pgdata",
                    reachable_data_dir(self.standby.data_dir, account),
                    "--checkpoint",
                    "fast",
                    "--write-recovery-conf",
                ),
                *("--dbname", f"host=127.0.0.1 port={link_port} user=postgres application_name={NAME}"),
            ],
            user=account.user_id if account else None,
            group=account.group_id if account else None,
            extra_groups=[] if account else None,
            cwd="/",
            capture_output=True,
            check=True,
        )

    def _close(self) -> None:
        self._proxies.close()
        for server in (self.standby, self.primary):
            server.close()

    # == what tests do to it ===========================================================================================
    def wait_until_replayed(self) -> None:
        """Until the standby shows all that is committed now."""
        ((end,),) = query(self.primary.dsn, "SELECT pg_current_wal_lsn()::text")
        reached = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        eventually(
            lambda: query(self.standby.dsn, reached, end) == [(True,)], "the standby is up to it", REPLAY_SECONDS
        )

    def cut_link(self) -> None:
        """From here on the standby hears nothing: what the primary does now is what will be lost."""
        self._proxies.set(LINK, Weather(refuses=True))
        self._proxies.drop(LINK)
        eventually(lambda: query(self.primary.dsn, _FOLLOWS, NAME) == [(0,)], "the primary has lost its standby")

    def kill_primary(self) -> None:
        """SIGKILL, and whoever connects from now on meets a standby that was not promoted yet."""
        self.primary.kill9()
        self._proxies.by_group[CLIENTS].target_port = self.standby.port
        self._proxies.drop(CLIENTS)

    def promote(self) -> None:
        assert query(self.standby.dsn, "SELECT pg_promote(true, 60)") == [(True,)]
