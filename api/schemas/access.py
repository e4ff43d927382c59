"""Who calls, and what was done."""

from typing import Annotated, Literal

import msgspec

from api.schemas.wire import Instant, Name


class LoginBody(msgspec.Struct, forbid_unknown_fields=True):
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    """An API token."""


class LoginCode(msgspec.Struct):
    path: str
    """To be opened in a browser, at this API."""
    expires_at: Instant


class Session(msgspec.Struct):
    """Who calls."""

    name: str
    scopes: list[str]
    roles: list[str]
    local: bool
    """By the local token of `headrace dev`: then `Headrace-Actor` says who acts."""
    can_crash: bool
    """Whether it may crash a worker: where `headrace dev` is, and starts another one."""
    csrf_token: str | None
    """For `X-CSRF-Token` of writes, where a cookie says who calls."""


class TokenBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    """Whom it is for: it stands beside all that is done with it."""
    scopes: Annotated[list[Literal["read", "operate", "approve", "admin"]], msgspec.Meta(min_length=1, max_length=4)]
    roles: Annotated[list[Name], msgspec.Meta(max_length=100)] = []
    expires: Annotated[str, msgspec.Meta(max_length=50)] | msgspec.UnsetType = msgspec.UNSET
    """A duration such as `90d`, the default."""


class ApiToken(msgspec.Struct):
    """A token, without its secret."""

    token_id: str
    name: str
    scopes: list[str]
    roles: list[str]
    created_at: Instant
    created_by: str
    expires_at: Instant
    revoked_at: Instant | None
    revoked_by: str | None
    last_used_at: Instant | None
    """To a minute."""


class TokenCreated(msgspec.Struct):
    token: ApiToken
    secret: str
    """Shown now and never again."""


class ApiTokenPage(msgspec.Struct):
    items: list[ApiToken]
    next: str | None


class AuditItem(msgspec.Struct):
    """One act through the API."""

    audit_id: str
    at: Instant
    actor: str
    token_id: str | None
    """Null: the local token of `headrace dev`, or a program at the database."""
    act: str
    target: str
    reason: str
    address: str
    """From where: the other end of the connection."""
    request_id: str


class AuditPage(msgspec.Struct):
    items: list[AuditItem]
    next: str | None
