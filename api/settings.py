"""What the API reads from the environment, beside what all engine processes share."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from headrace.errors import ConfigurationError
from state.filter_sql import STUCK_SECONDS
from state.settings import EngineSettings

LOCAL_TOKEN_CHARS_MIN: Final = 32


class ApiSettings(EngineSettings):
    """`HEADRACE_API_HOST` and so on in the environment."""

    api_host: str = "127.0.0.1"
    """Where to listen. Beyond the loopback only once there is an API token in the database."""
    api_names: Annotated[tuple[str, ...], NoDecode] = ()
    """Host names, separated by commas, that callers may use beside addresses and `localhost`. Any other one may be an
    outsider's that was made to point here (DNS rebinding), and is refused."""
    api_local_token: SecretStr | None = None
    """A token of this process alone, which may everything: `headrace dev` makes one. Only on the loopback."""
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
    api_stuck_seconds: float = Field(default=STUCK_SECONDS, gt=0, le=86_400)
    """For so long no worker serves its queue, or what is due does not move it, before a run is called stuck, and before
    the console warns of such a queue. Longer than a restart of the workers takes."""
    api_link_key: SecretStr = SecretStr("")
    """Signs the addresses by which people decide; the same for all API processes. Empty: a key that Postgres keeps."""
    api_url: str = ""
    """Where people reach the API, in front of those addresses; empty: where the request that made one reached it."""
    api_crash_folder: Path | None = None
    """Where `headrace dev` finds the names of workers of its own that somebody wants to see crash. None: nobody can."""
    api_drain_seconds: float = Field(default=10.0, ge=0, le=600)
    """How long a stop waits for requests that have begun."""

    @field_validator("api_link_key")
    @classmethod
    def _key_is_long(cls, key: SecretStr) -> SecretStr:
        if key.get_secret_value() and len(key.get_secret_value()) < 16:
            raise ValueError("needs at least 16 characters: who knows it can make links to decide by")
        return key

    @field_validator("api_names", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return tuple(name.strip().lower() for name in value.split(",") if name.strip())

    @field_validator("api_local_token")
    @classmethod
    def _token_is_long(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and len(token.get_secret_value()) < LOCAL_TOKEN_CHARS_MIN:
            raise ValueError(f"needs at least {LOCAL_TOKEN_CHARS_MIN} characters, chosen at random")
        return token

    @property
    def is_exposed(self) -> bool:
        """Whether others than this machine can reach the API."""
        return not is_loopback(self.api_host)

    def check_exposure(self) -> None:
        """Raises ConfigurationError for a token that would be good for everybody on the network."""
        if self.is_exposed and self.api_local_token is not None:
            raise ConfigurationError(
                f"HEADRACE_API_LOCAL_TOKEN is for the loopback, and HEADRACE_API_HOST={self.api_host} is none; "
                "use a token from `python -m state.tokens create`",
                setting="HEADRACE_API_LOCAL_TOKEN",
            )


def hostname(url: str) -> str:
    """The host of an address, without its port; empty when it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_address(host: str) -> bool:
    """Whether a host is an address, not a name."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


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
