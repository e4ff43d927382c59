"""What is started: the workflows, and by seed which of them, with which input.

W1 linear with effect keys · W2 fan-out of 20 and a join, with a random skip · map: 12 items, 5 at a time · W4 approval
with expiry, and signals with a time-out that fails or is an outcome · W5 sagas · W6 parents and children ·
W8 retry and backoff · W9 odd results, and bodies that kill their worker · outside: effects without keys (`manual`,
`reconcile`) and exclusive tasks. W3 (durable functions), W7 (schedules) and W10 (tenants) need features
that are still to come.
"""

import random
from typing import Any, Final

FAN: Final = 20
ITEMS: Final = 12
_RETRY: Final = {"attempts": 12, "delay": "200ms", "backoff": "exponential", "cap": "2s"}
"""Enough that faults alone do not use it up."""


def _linear() -> dict[str, Any]:
    bodies = ["chaos.effect", "chaos.effect_in_thread", "chaos.effect", "chaos.effect", "chaos.effect_in_thread"]
    tasks: dict[str, Any] = {}
    for number, body in enumerate(bodies):
        tasks[f"t{number}"] = {"run": body, "retry": _RETRY, "timeout": "15s"}
        if number:
            tasks[f"t{number}"] |= {"needs": [f"t{number - 1}"], "with": f"${{{{ tasks.t{number - 1}.output }}}}"}
    return {"name": "w1", "tasks": tasks}


def _fan() -> dict[str, Any]:
    tasks: dict[str, Any] = {"first": {"run": "chaos.effect", "retry": _RETRY}}
    for number in range(FAN):
        tasks[f"f{number}"] = {
            "run": "chaos.effect",
            "needs": ["first"],
            "if": f"${{{{ !({number} in input.skips) }}}}",
            "with": "${{ tasks.first.output }}",
            "retry": _RETRY,
        }
    needs = [f"f{number}" for number in range(FAN)]
    tasks["join"] = {"run": "chaos.effect", "needs": needs, "with": "${{ tasks.first.output }}", "retry": _RETRY}
    return {"name": "w2", "tasks": tasks}


def _map() -> dict[str, Any]:
    read = {"n": "${{ item }}", "before": "${{ input.before }}", "after": "${{ input.after }}"}
    list_ = {"over": [*range(ITEMS)], "max_parallel": 5, "failures": "finish"}
    return {
        "name": "map",
        "tasks": {
            "first": {"run": "chaos.effect", "retry": _RETRY},
            "each": {"run": "chaos.effect", "needs": ["first"], "map": list_, "with": read, "retry": _RETRY},
            "last": {"run": "chaos.effect", "needs": ["each"], "with": "${{ tasks.each.output[0] }}", "retry": _RETRY},
        },
    }


def _approval(on_expiry: str) -> dict[str, Any]:
    return {
        "name": f"w4-{on_expiry}",
        "tasks": {
            "before": {"run": "chaos.effect", "retry": _RETRY},
            "ask": {
                "needs": ["before"],
                "approval": {
                    "title": "Go on?",
                    "approvers": ["ada", "grace"],
                    "expires": "4s",
                    "on_expiry": on_expiry,
                    "remind": ["1s"],
                },
            },
            "after": {"run": "chaos.effect", "needs": ["ask"], "with": "${{ tasks.before.output }}", "retry": _RETRY},
        },
    }


def _signals() -> dict[str, Any]:
    """One task that nobody may ever tell anything, and one whose failure is replayed."""
    told = {"name": "chaos.news", "timeout": "4s", "on_timeout": "complete"}
    keyed = {"name": "chaos.news", "key": "${{ input.n }}", "timeout": "5s"}
    return {
        "name": "w4-signal",
        "tasks": {
            "before": {"run": "chaos.effect", "retry": _RETRY},
            "told": {"needs": ["before"], "signal": told},
            "keyed": {"needs": ["before"], "signal": keyed},
            "after": {"run": "chaos.effect", "needs": ["told"], "with": "${{ tasks.before.output }}", "retry": _RETRY},
        },
    }


def _outside() -> dict[str, Any]:
    """Effects that no key protects, and a body that must never overlap with itself."""
    outside = {"run": "chaos.outside", "retry": _RETRY, "timeout": "15s"}
    alone = {"run": "chaos.alone", "retry": _RETRY, "exclusive": True}
    return {
        "name": "outside",
        "tasks": {
            "manual": {**outside, "effect": "manual"},
            "reconciled": {**outside, "effect": "reconcile", "lookup": "chaos.look_up"},
            "alone": {**alone, "needs": ["reconciled"], "with": "${{ tasks.reconciled.output }}"},
        },
    }


def _child() -> dict[str, Any]:
    return {
        "name": "w6-child",
        "output": {"receipt": "${{ tasks.one.output }}"},
        "tasks": {
            "one": {"run": "chaos.effect", "retry": _RETRY},
            "two": {"run": "chaos.effect", "needs": ["one"], "with": "${{ tasks.one.output }}", "retry": _RETRY},
        },
    }


def _parent() -> dict[str, Any]:
    return {
        "name": "w6",
        "tasks": {
            "before": {"run": "chaos.effect", "retry": _RETRY},
            "kid": {"needs": ["before"], "workflow": "w6-child"},
            "left": {"needs": ["before"], "workflow": {"name": "w6-child", "on_cancel": "abandon"}, "timeout": "20s"},
            "free": {"needs": ["before"], "workflow": {"name": "w6-child", "wait": False}},
            "after": {
                "run": "chaos.effect",
                "needs": ["kid", "left", "free"],
                "join": "always",
                "with": "${{ tasks.before.output }}",
                "retry": _RETRY,
            },
        },
    }


def _retries() -> dict[str, Any]:
    retry = {"attempts": 12, "delay": "300ms", "backoff": "linear", "cap": "1s", "jitter": 0.2}
    flaky = {"run": "chaos.flaky", "timeout": "1s", "retry": retry}
    last = {"run": "chaos.effect", "needs": ["flaky"], "with": "${{ tasks.flaky.output }}", "retry": _RETRY}
    return {"name": "w8", "tasks": {"flaky": flaky, "last": last}}


def _odd() -> dict[str, Any]:
    retry = {"attempts": 4, "delay": "100ms", "backoff": "fixed"}
    return {
        "name": "w9",
        "tasks": {
            "odd": {"run": "chaos.odd", "retry": retry, "timeout": "20s"},
            "beside": {"run": "chaos.effect", "retry": _RETRY},
        },
    }


def _saga() -> dict[str, Any]:
    """Nobody ever tells the last task anything, so the run fails behind all others; or earlier, or it is cancelled."""
    undo = {"run": "chaos.effect", "with": "${{ task.input }}", "retry": _RETRY}
    done = {"run": "chaos.effect", "retry": _RETRY, "compensate": undo}
    return {
        "name": "w5",
        "tasks": {
            "first": done,
            "left": {**done, "needs": ["first"], "with": "${{ tasks.first.output }}"},
            "right": {**done, "needs": ["first"], "with": "${{ tasks.first.output }}"},
            "meet": {**done, "needs": ["left", "right"], "with": "${{ tasks.left.output }}"},
            "last": {"needs": ["meet"], "signal": {"name": "chaos.never", "timeout": "1s"}},
        },
    }


WORKFLOWS: Final[list[dict[str, Any]]] = [
    _linear(),
    _fan(),
    _map(),
    *map(_approval, ("fail", "approve", "reject")),
    _signals(),
    _child(),
    _parent(),
    _saga(),
    _outside(),
    _retries(),
    _odd(),
]
_SHARES: Final = {
    "w1": 50,
    "w2": 10,
    "map": 8,
    "w4-fail": 6,
    "w4-approve": 4,
    "w4-reject": 4,
    "w4-signal": 8,
    "w6": 8,
    "w5": 8,
    "outside": 12,
    "w8": 15,
    "w9": 4,
}
_ODD_KINDS: Final = (
    "exit", "segfault", "raise_exit", "block", "nan", "nul", "surrogate",
    "deep", "limit", "over", "huge", "bytes", "big",
)  # fmt: skip


def choose(draw: random.Random, number: int) -> tuple[str, dict[str, Any]]:
    """The workflow and the input of one start."""
    workflow = draw.choices(list(_SHARES), list(_SHARES.values()))[0]
    given: dict[str, Any] = {"n": number, "before": _pause(draw), "after": _pause(draw)}
    match workflow:
        case "map":
            given["before"], given["after"] = given["before"] / 4, 0.01
        case "w2":
            given["skips"] = draw.sample(range(FAN), draw.choice((0, 0, 1, 3)))
            given["before"], given["after"] = given["before"] / 4, 0.01
        case "w8":
            given |= {"fails": draw.randrange(4), "how": draw.choice(("error", "error", "later", "never", "slow"))}
        case "w9":
            given |= {"kind": draw.choice(_ODD_KINDS), "times": draw.choice((1, 2, 9))}
        case _:
            pass
    return workflow, given


def _pause(draw: random.Random) -> float:
    """Mostly short; some bodies outlive the moment in which they are reported as started, a few a whole lease."""
    return round(draw.choices((0.01, 0.1, 0.5, 3.0), (60, 25, 12, 3))[0] * draw.uniform(0.5, 1.5), 3)
