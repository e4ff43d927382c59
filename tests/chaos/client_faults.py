"""Faults that come in through the front door: too much, too odd, or a new version in the middle."""

import contextlib
import json
import time
from typing import Final

import httpx

from tests.caller import HEADERS
from tests.chaos.fault import Fault
from tests.chaos.workload import WORKFLOWS, next_version

TRIES_MAX: Final = 10
"""The other fault that it overlaps with may keep it out for a while. Repeated, the content is the version it was."""


class Burst(Fault):
    kind = "F47 burst of starts"
    uses = frozenset({"load"})
    lasts = (2.0, 3.0)

    def begin(self) -> None:
        count = self.draw.randint(20, 40)
        self.system.on_burst(count, "")
        self.fired += count


class NewVersion(Fault):
    kind = "F43 new version in the middle"
    uses = frozenset({"api", "postgres"})
    lasts = (0.5, 1.0)

    def begin(self) -> None:
        """Runs under way stay on theirs; those that start now are on this one."""
        workflow = next_version(self.draw.choice(WORKFLOWS)["name"], self.draw)
        for _ in range(TRIES_MAX):
            with contextlib.suppress(httpx.TransportError):
                url = f"{self.draw.choice(self.system.api_urls)}/workflows"
                answer = httpx.post(url, json=workflow, headers=HEADERS, timeout=5)
                self.fired += answer.status_code in (httpx.codes.CREATED, httpx.codes.OK)
            if self.fired:
                return
            time.sleep(0.5)


class OddRequests(Fault):
    kind = "F35 odd requests"
    uses = frozenset({"api", "postgres"})
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        """Each is refused for what it is, whatever state the rest is in."""
        deep = "[" * 100 + "]" * 100
        bodies = {
            "too large": b'{"input":"' + b"x" * (1 << 20) + b'"}',
            "not json": b'{"input": nope}',
            "not utf-8": b'{"input":"\xff"}',
            "NaN": b'{"input": NaN}',
            "NUL": b'{"input":"a\\u0000b"}',
            "lone surrogate": b'{"input":"\\ud800"}',
            "deep": f'{{"input":{deep}}}'.encode(),
            "an id that is none": b'{"input":{},"run_id":"none"}',
            "a key of 300": json.dumps({"input": {}, "key": "k" * 300}).encode(),
        }
        answers = []
        headers = {**HEADERS, "content-type": "application/json"}
        for what, body in bodies.items():
            url = f"{self.draw.choice(self.system.api_urls)}/workflows/w1/runs"
            with contextlib.suppress(httpx.TransportError):  # something else has broken it; nothing was said
                answers.append((what, httpx.post(url, content=body, headers=headers, timeout=5).status_code))
        self.fired += len(answers)
        self.facts["answers"] = answers
