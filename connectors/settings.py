"""What the relay reads from the environment, besides what all engine processes share."""

from typing import Literal

from pydantic import Field

from state.settings import EngineSettings


class RelaySettings(EngineSettings):
    """`HEADRACE_<NAME>` in the environment."""

    slot: str = Field(default="headrace", pattern=r"^[a-z0-9_]{1,63}$")
    """The replication slot; created when missing. One relay at a time publishes from it, others stand by."""
    compression: Literal["none", "lz4"] = "none"
    """lz4 costs little and pays over a network; on one machine it only costs."""
    relay_batch: int = Field(default=2000, ge=1, le=100_000)
    """Records decoded before they are sent and waited for; a transaction is never divided."""
    relay_lease: float = Field(default=5.0, ge=1, le=300)
    """Seconds without a renewal after which a standby takes over, and after which the owner itself gives up."""
    relay_takeover: float = Field(default=5.0, ge=0, le=300)
    """Seconds a new owner waits for the slot before it ends the connection that still reads it."""
    metrics_host: str = "127.0.0.1"
