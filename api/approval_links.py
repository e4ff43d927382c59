"""Addresses by which one person decides one question, once: GET shows it, POST decides.

A page of plain HTML without a script, for people who have nothing else of Headrace. Mail programs and scanners open
addresses by themselves: so looking decides nothing.
"""

from collections.abc import Mapping
from datetime import timedelta
from html import escape
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer
from api.approvals import FORM_BYTES_MAX
from api.bodies import read, read_body
from api.errors import FaultyRequest, Refusal, faulty
from api.idempotency import perform
from api.identity import address, parse_id, person
from api.openapi import answers, body
from api.reference import csp_hash
from api.schemas.approval import Link, LinkBody
from api.wiring import Wired, Wiring
from headrace import payload
from headrace.errors import ConflictError, DefinitionError, ForbiddenError, HeadraceError, PayloadError
from headrace.instant import format_instant
from headrace.standing import Person
from state.approval_links import LinkRow, find_link, make_key, make_link, read_key, use_link
from state.approvals import Voter, decide_approval
from state.queries.approval import ApprovalRow, get_approval
from state.queries.rows import Connection

router = APIRouter(tags=["approval links"])
_STYLE: Final = (
    "body{font:16px system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}"
    "pre{overflow:auto;background:#f3f3f3;padding:1rem}label{display:block;margin:1rem 0 .25rem}"
    "input,textarea,select{width:100%;box-sizing:border-box;font:inherit}"
    "button{font:inherit;margin:1rem 1rem 0 0;padding:.5rem 1.5rem}"
)
_SECURITY: Final = {
    "Content-Security-Policy": f"default-src 'none'; style-src '{csp_hash(_STYLE)}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Robots-Tag": "noindex",
}
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{style}</style>
</head><body><h1>{title}</h1>{content}</body></html>
"""
_GONE: Final = "This link was used, or its time is over. Ask for another one, or decide in the console."
_FIELD: Final = "form."


@router.post(
    "/approvals/{approval_id}/links",
    responses=answers({201: Link}, 404, 408, 409, 413, 415),
    openapi_extra=body(LinkBody),
)
async def make(approval_id: str, request: Request, wired: Wired) -> Response:
    """Make an address at which one person decides, once. Whoever has it can: send it to nobody else."""
    id_ = parse_id(approval_id, "approval")
    asked, content = await read(request, LinkBody)
    who, by = Person(asked.name, frozenset(() if asked.role is None else (asked.role,))), person(request)
    front = wired.settings.api_url.rstrip("/") or str(request.base_url).rstrip("/")

    async def act(connection: Connection) -> Answer:
        key = _own_key(wired) or await make_key(connection)
        length = timedelta(seconds=asked.expires_in)
        signed = await make_link(connection, wired.store, key, id_, who, length, by)
        return answer(Link(f"{front}/decide/{signed.token}", signed.expires_at), 201)

    return await perform(wired, request, content, act)


@router.get("/decide/{token}", include_in_schema=False)
async def show(token: str, wired: Wired) -> Response:
    """The question, and a form to answer it. Nothing is decided by looking."""
    async with wired.database.reading() as connection:
        _, link, row = await _find(wired, connection, token)
    if link.is_over or link.used_at is not None or row.status != "waiting":
        return _page("Nothing to decide here any more", f"<p>{escape(_GONE)}</p>", 410)
    return _page(row.title or "A question", _question(row, link))


@router.post("/decide/{token}", include_in_schema=False)
async def decide(token: str, request: Request, wired: Wired) -> Response:
    """Decide, once. What is refused, such as a form that is filled in wrongly, does not use the address up."""
    given = _decode(await read_body(request))
    try:
        async with wired.database.writing() as connection:
            link_id, link, row = await _find(wired, connection, token)
            form = _read_form(row.form, given)
            outcome = {"approve": "approved", "reject": "rejected"}.get(given.get("decision", ""))
            if outcome is None:
                raise faulty("decision", "must be approve or reject")
            if not await use_link(connection, wired.store, link_id):
                raise Refusal(410, _GONE)
            row = await decide_approval(
                connection,
                wired.store,
                row.approval_id,
                "approved" if outcome == "approved" else "rejected",
                comment=given.get("comment", "")[:10_000],
                voter=Voter(link.person, "link", address(request)),
                form=form if outcome == "approved" else None,
            )
    except (DefinitionError, FaultyRequest) as error:
        return _refused(422, error)
    except ConflictError as error:
        return _refused(410, error)
    except ForbiddenError as error:  # who was named then is not any more
        return _refused(403, error)
    except Refusal as error:
        return _refused(error.status, error)
    open_still = "" if row.status != "waiting" else " More people have to agree."
    return _page("Thank you", f"<p>Your decision is recorded: {escape(given['decision'])}.{open_still}</p>")


async def _find(wiring: Wiring, connection: Connection, token: str) -> tuple[Any, LinkRow, ApprovalRow]:
    key = _own_key(wiring) or await read_key(connection)
    link_id, link = await find_link(connection, wiring.store, key, token)
    row = await get_approval(connection, wiring.namespace, link.approval_id)
    if row is None:
        raise Refusal(410, _GONE)
    return link_id, link, row


def _own_key(wiring: Wiring) -> bytes:
    return wiring.settings.api_link_key.get_secret_value().encode()


def _decode(content: bytes) -> dict[str, str]:
    """The fields of a form, each once."""
    try:
        fields = parse_qs(content.decode(), keep_blank_values=True, max_num_fields=200)
    except (UnicodeDecodeError, ValueError) as error:
        raise faulty("", f"no form: {error}") from None
    return {name: values[-1].replace("\r\n", "\n").replace("\0", "") for name, values in fields.items()}


# == the page ==========================================================================================================
def _page(title: str, content: str, status: int = 200) -> Response:
    html = _PAGE.format(title=escape(title), style=_STYLE, content=content)
    return Response(html, status, _SECURITY, media_type="text/html")


def _refused(status: int, error: HeadraceError) -> Response:
    return _page("Not decided", f"<p>{escape(error.message)}</p>", status)


def _question(row: ApprovalRow, link: LinkRow) -> str:
    parts = [f"<p>{escape(row.workflow)} asks {escape(link.name)}.</p>"]
    if row.expires_at is not None:
        parts.append(f"<p>To be answered by {escape(format_instant(row.expires_at))}.</p>")
    if row.context is not None:
        parts.append(f"<pre>{escape(_readable(row.context))}</pre>")
    parts.append('<form method="post">')
    parts += [_field(name, schema) for name, schema in _fields(row.form).items()]
    parts.append('<label for="comment">Comment</label><textarea id="comment" name="comment" rows="3"></textarea>')
    parts.append('<button name="decision" value="approve">Approve</button>')
    parts.append('<button name="decision" value="reject" formnovalidate>Reject</button></form>')
    return "".join(parts)


def _readable(context: str) -> str:
    data = msgspec.json.decode(context)
    return data if isinstance(data, str) else msgspec.json.format(context, indent=2)


def _fields(form: str | None) -> dict[str, Mapping[str, Any]]:
    """What is asked for, by the name of its input: each property of a flat object, or else all of it as JSON."""
    if form is None:
        return {}
    schema = msgspec.json.decode(form)
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if isinstance(properties, dict) and all(
        isinstance(each, dict) and each.get("type") in _SIMPLE for each in properties.values()
    ):
        return {_FIELD + name: each for name, each in properties.items()}
    return {"form": {"title": "Answer, as JSON", "type": "json"}}


_SIMPLE: Final = ("string", "number", "integer", "boolean")


def _field(name: str, schema: Mapping[str, Any]) -> str:
    label = escape(str(schema.get("title") or name.removeprefix(_FIELD)))
    about = schema.get("description")
    about = f"<small>{escape(str(about))}</small>" if about else ""
    name = escape(name)
    options = schema.get("enum")
    if schema["type"] == "boolean":
        options = ["true", "false"]
    if isinstance(options, list):
        choices = "".join(f"<option>{escape(str(option))}</option>" for option in ["", *options])
        return f'<label for="{name}">{label}</label>{about}<select id="{name}" name="{name}">{choices}</select>'
    if schema["type"] == "json":
        return f'<label for="{name}">{label}</label>{about}<textarea id="{name}" name="{name}" rows="5"></textarea>'
    kind = "text" if schema["type"] == "string" else 'number" step="any'
    return f'<label for="{name}">{label}</label>{about}<input id="{name}" name="{name}" type="{kind}">'


def _read_form(form: str | None, given: Mapping[str, str]) -> bytes | None:
    """What was filled in, as JSON; what was left empty is not there. Raises FaultyRequest."""
    fields = _fields(form)
    if not fields:
        return None
    if "form" in fields:
        answered = (given.get("form") or "{}").encode()
    else:
        filled = {name: given[name] for name in fields if given.get(name)}
        values = {name.removeprefix(_FIELD): _value(text, fields[name], name) for name, text in filled.items()}
        answered = msgspec.json.encode(values)
    try:
        payload.check(answered)
    except PayloadError as error:
        raise faulty("form", error.message) from None
    if len(answered) > FORM_BYTES_MAX:
        raise faulty("form", f"may have {FORM_BYTES_MAX} bytes")
    return answered


def _value(text: str, schema: Mapping[str, Any], name: str) -> Any:
    try:
        match schema["type"]:
            case "boolean":
                return {"true": True, "false": False}[text]
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case _:
                return text
    except (KeyError, ValueError):
        raise faulty(name, f"must be {schema['type']}") from None
