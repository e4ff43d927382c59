"""What the engine's processes read from the environment: built once in each `__main__`, validated, handed on."""

from typing import Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict


class EngineSettings(BaseSettings):
    """Settings that `streams`, `connectors` and `api` share; `HEADRACE_<NAME>` in the environment."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", frozen=True, extra="ignore")

    postgres: str = "postgresql://127.0.0.1:5432/headrace"
    """libpq connection string or URL of the state store."""
    kafka: str = "127.0.0.1:9092"
    """Bootstrap servers."""
    secret: SecretStr = SecretStr("")
    """Key of the nonces, shared by all engine processes: whoever knows it can complete any task."""
    prefix: str = "headrace"
    """In front of every topic name."""
    partitions: int = Field(default=8, ge=1, le=512)
    """Of command topics and of the events topic; fixed once the topics exist."""
    namespace: str = "default"
    lease_seconds: float = Field(default=30.0, gt=0.2, le=3600)
    outbox: Literal["messages", "table"] = "messages"
    objects: str = ""
    """Object store for large results, the same as the workers'; empty: none."""
    host: Literal["faust", "plain"] = "faust"
    topic_ids: bool = True
    """False for a log that cannot describe its topics (the embedded broker); then `log_id` names the log's identity."""
    log_id: str = "-"
    log_level: str = "info"
    metrics_port: int | None = None

    @field_validator("secret")
    @classmethod
    def _secret_is_long(cls, secret: SecretStr) -> SecretStr:
        if secret.get_secret_value() and len(secret.get_secret_value()) < 16:
            raise ValueError("needs at least 16 characters: it guards every task result")
        return secret

    def nonce_key(self) -> bytes:
        """The key for `make_nonce`: at most 64 bytes, as blake2b takes them. Raises ValueError when the setting is
        missing."""
        secret = self.secret.get_secret_value()
        if not secret:
            raise ValueError("HEADRACE_SECRET is not set; every engine process needs the same one")
        return secret.encode()[:64]

    @property
    def events_topic(self) -> str:
        return f"{self.prefix}.events"

    @property
    def workers_topic(self) -> str:
        return f"{self.prefix}.workers"

    @property
    def logs_topic(self) -> str:
        return f"{self.prefix}.logs"

    @property
    def control_topic(self) -> str:
        return f"{self.prefix}.control"

    @property
    def lifecycle_topic(self) -> str:
        """For other services; nothing in the engine reads it."""
        return f"{self.prefix}.lifecycle"

    def commands_topic(self, queue: str) -> str:
        return f"{self.prefix}.commands.{queue}"
