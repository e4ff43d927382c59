"""What `python -m streams` reads from the environment beyond the shared settings."""

from pydantic import Field

from state.settings import EngineSettings


class StreamsSettings(EngineSettings):
    watchdog_seconds: float = 20.0
    """A log that grows while nothing arrives for this long has its consumer rebuilt."""
    fetch_min_bytes: int = 1
    fetch_wait_ms: int = 500
    """A real broker wakes a waiting fetch; the embedded one does not, and needs some 10 ms here."""
    trigger_backlog_max: int = Field(default=10_000, ge=0)
    """Runs under way from which on records of users' topics wait in Kafka; those that wait for people do not count.
    Enough to be saturated, and few enough that a run which is started over HTTP meanwhile waits for seconds, and that
    all are in memory (`streams/run_cache.py`). 0: no limit."""
    hand_over_seconds: float = Field(default=1.0, ge=0)
    """A command that waits so long in a worker whose slots are all taken, while another worker of its queues is idle,
    is handed over to another partition. 0: never."""
    log_lines_max: int = Field(default=1_000_000, ge=1_000)
    """Lines that bodies logged, kept of all runs together; the oldest leave first. Some 300 bytes each."""
    retention_days: float = Field(default=0.0, ge=0, le=36_500)
    """How long runs are kept after their end, with all that belongs to them; 0: for ever."""
