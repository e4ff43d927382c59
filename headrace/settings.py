"""Settings of the user's own processes: workers and clients. Read once from `HEADRACE_*`, then passed by hand."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

_SECRET_WORDS: Final = ("password", "secret", "token", "key", "jaas")


class ClientSettings(BaseSettings):
    """How to reach the API."""

    model_config = SettingsConfigDict(env_prefix="HEADRACE_", frozen=True, extra="ignore")

    api: str = "http://127.0.0.1:8400"
    """Base URL of the API."""
    api_token: SecretStr | None = None
    namespace: str = "default"
    log_level: str = "info"

    def describe(self) -> dict[str, Any]:
        """Every setting and its value, with secrets hidden: what a process prints when it starts."""
        return {name: _shown(name, getattr(self, name)) for name in type(self).model_fields}


class WorkerSettings(ClientSettings):
    """What a worker process needs; `Worker.from_settings` takes it whole."""

    kafka: str = "127.0.0.1:9092"
    """Bootstrap servers, `host:port` separated by commas."""
    kafka_options: dict[str, str] = Field(default_factory=dict)
    """More librdkafka settings for every client, as a JSON object; `connection_options` has the ways to connect."""
    prefix: str = "headrace"
    """First part of every topic's and group's name."""
    queues: Annotated[tuple[str, ...] | None, NoDecode] = None
    """Queues to serve, separated by commas; left out, those that the registered bodies name."""
    slots: int = Field(default=16, ge=1, le=10_000)
    """Bodies that may run at once."""
    prefetch: int = Field(default=1000, ge=1, le=100_000)
    """Most commands held at once, waiting or running; fewer while bodies are slow."""
    lease_seconds: float = Field(default=30.0, gt=0.1, le=3600)
    traces: Literal["none", "otlp", "console"] = "none"
    """Where the span of every attempt goes; `otlp` reads its endpoint and headers from OpenTelemetry's own `OTEL_*`."""
    drain_seconds: float = Field(default=20.0, ge=0)
    """How long running bodies may take to finish after SIGTERM."""
    worker_name: str | None = None
    """A name for people; host and pid when left out. Never an identity."""
    objects: str = ""
    """Object store for large results: `file:///folder` that all hosts share, `s3://bucket/prefix`; empty: none."""
    topic_ids: bool = True
    """Whether the broker can tell topic ids; the embedded one cannot."""

    @field_validator("queues", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return tuple(q.strip() for q in value.split(",") if q.strip()) or None if isinstance(value, str) else value


def _shown(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(key, item) for key, item in value.items()}
    is_secret = isinstance(value, SecretStr) or any(word in name for word in _SECRET_WORDS)
    return "***" if is_secret and value else value
