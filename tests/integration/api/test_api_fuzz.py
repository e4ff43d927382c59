"""No request makes a 5xx, whatever it is, and every refusal is problem details."""

import json
import random
import string
import time

import httpx
import pytest

SECONDS = 6
ODD = [
    "",
    " ",
    ".",
    "..",
    "../x",
    "a/b",
    "a%2Fb",
    "%",
    "%00",
    "\x00",
    "\n",
    "x" * 300,
    "é",
    "e\u0301",
    "\U0001f600",
    "\u202e",
    "'",
    '"',
    ";--",
    "$1",
    "%(x)s",
    "{}",
    "null",
    "-1",
    "0",
    "2147483648",
    "9" * 30,
    "1e5",
    "NaN",
    "Infinity",
    "true",
    "orders",
    "validate",
]
VALUES = [
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    2**64,
    10**400,
    1.5,
    1e308,
    "",
    "x",
    "\u0000",
    "\ud800",
    "x" * 5000,
    [],
    {},
    [[]],
    {"": None},
    {"a": "\u0000"},
    {"input": 1},
    "${{ input }}",
    "${{",
]


@pytest.fixture
async def ids(api, definitions, engine):
    await api.publish(definitions["release"])
    run_id = await api.start("release")
    engine.complete(run_id, "build")
    failed = await api.start("release")
    engine.fail(failed, "build")
    return {
        "workflow": ["release"],
        "version": ["1"],
        "run_id": [run_id, failed],
        "task_id": [f"{run_id}.ask", f"{failed}.build"],
        "approval_id": [(await api.read("/approvals"))["items"][0]["approval_id"]],
        "dead_letter_id": [(await api.read("/dead-letters"))["items"][0]["dead_letter_id"]],
        "name": ["s"],
    }


async def test_no_request_makes_a_5xx(api, app, ids):
    random_ = random.Random(20240607)
    operations = [
        (method, path, operation)
        for path, methods in app.openapi()["paths"].items()
        for method, operation in methods.items()
        if not path.endswith("events")
    ]
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        method, path, operation = random_.choice(operations)
        request = make(random_, method, path, operation, ids)
        try:
            response = await api.request(**request)
        except (httpx.InvalidURL, UnicodeEncodeError):
            continue
        statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
        assert response.status_code < 500, (request, response.text)
        if response.status_code >= 400:
            assert response.headers["content-type"] == "application/problem+json", request
            assert response.json()["status"] == response.status_code
    assert sum(statuses.values()) > 100
    assert {200, 404, 422} <= statuses.keys()


def make(random_, method, path, operation, ids):
    for name, known in ids.items():
        odd = random_.choice(ODD) if random_.random() < 0.4 else random_.choice(known)
        path = path.replace(f"{{{name}}}", mutate(random_, odd) if random_.random() < 0.2 else quote(odd))
    query = {
        parameter["name"]: random_.choice([*ODD, "running", "failed", "10"])
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "query" and random_.random() < 0.4
    }
    request = {"method": method.upper() if random_.random() < 0.95 else "PATCH", "url": path, "params": query or None}
    headers = []
    if random_.random() < 0.2:
        headers.append((b"idempotency-key", random_.choice(ODD).encode("utf-8", "replace")[:50].replace(b"\n", b"")))
    if random_.random() < 0.2:
        headers.append((b"headrace-actor", random_.choice(ODD).encode("utf-8", "replace")[:300]))
    if method == "post":
        request["content"] = body(random_)
        media_type = random_.choice(["application/json"] * 8 + ["application/yaml", "text/plain", ""])
        headers.append((b"content-type", media_type.encode()))
    return request | {"headers": headers}


def quote(text):
    return "".join(
        c if c in string.ascii_letters + string.digits + "-_.%" else "".join(f"%{b:02X}" for b in c.encode())
        for c in text
    )


def mutate(random_, text):
    bad = ["%ff", "%c3", "%2e", "%2F", "%00", "%0a", "+", "~", "a", "%F0%9F%98%80"]
    at = random_.randrange(len(text) + 1)
    return quote(text[:at]) + random_.choice(bad) + quote(text[at:])


def body(random_):
    keys = [
        "input",
        "key",
        "version",
        "run_id",
        "reason",
        "comment",
        "decision",
        "name",
        "topic",
        "workflow",
        "filter",
        "tasks",
        "x",
    ]
    choice = random_.random()
    if choice < 0.1:
        return bytes(random_.randrange(256) for _ in range(random_.randrange(40)))
    fields = {
        random_.choice(keys): random_.choice([*VALUES, "approve", "release", "a"]) for _ in range(random_.randrange(4))
    }
    text = dump(random_, fields).encode("utf-8", "surrogatepass")
    if choice < 0.25 and text:
        at = random_.randrange(len(text))
        text = text[:at] + bytes([random_.randrange(256)]) + text[at + 1 :]
    return text


def dump(random_, value):
    return json.dumps(value, ensure_ascii=random_.random() < 0.5)
