"""What the API reads from the environment, beside what all engine processes share."""

from ipaddress import ip_address

from pydantic import Field

from headrace.errors import ConfigurationError
from state.settings import EngineSettings


class ApiSettings(EngineSettings):
    """`HEADRACE_API_HOST` and so on in the environment."""

    api_host: str = "127.0.0.1"
    """Where to listen. Only the loopback is allowed until callers have to say who they are."""
    api_port: int = Field(default=8400, ge=0, le=65535)
    """0: any free port, printed at start."""
    api_pool_size: int = Field(default=10, ge=1, le=200)
    """Connections to Postgres for reads, which are also the reads that can run at once."""
    api_write_pool_size: int = Field(default=8, ge=1, le=200)
    """Those for starts and other writes: slow reads must not keep anybody from starting a run."""
    api_streams_max: int = Field(default=100, ge=1, le=10_000)
    """Server-sent event streams at once; each costs four small queries a second while its run is open."""
    api_backlog_max: int = Field(default=100_000, ge=0)
    """Runs under way from which on another start is refused with 429; those that wait for people do not count. 0: no
    limit."""
    api_drain_seconds: float = Field(default=10.0, ge=0, le=600)
    """How long a stop waits for requests that have begun."""

    def check_is_local(self) -> None:
        """Refuse an address that others can reach. Raises ConfigurationError."""
        if not is_loopback(self.api_host):
            raise ConfigurationError(
                f"HEADRACE_API_HOST={self.api_host} is not a loopback address; the API has no authentication yet",
                setting="HEADRACE_API_HOST",
            )


def is_loopback(host: str) -> bool:
    """Whether a host name or address stays on this machine."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
