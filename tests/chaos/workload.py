"""What is started: the workflows, and by seed which of them, with which input.

W1 linear with effect keys · W2 fan-out of 20 and a join, with a random skip · map: 12 items, 5 at a time · W4
approval with expiry, questions that need two of three, and signals with a time-out that fails or is an outcome · W5
sagas, with a failure at each task and of what undoes it · W6 parents and children, cancelled · W8 retry and backoff ·
W9 odd results, and bodies that kill their worker · outside: effects without keys (`manual`, `reconcile`) and
exclusive tasks · pool: few slots, one limit that moves, one whose rows are taken away, a rate · repeat: rounds ·
deadline: of a task, of a queue and of a run · race: short runs at whose end two acts are asked at once · limit: more
starts of a key than may go at once, by each policy · clean: clean-ups behind a failure, a cancel and a deadline. W3
(durable functions), W7 (schedules) and W10 (tenants) need features that are still to come.
"""

import random
from typing import Any, Final, NamedTuple

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
    """Its second task fails for good where the input says so; then the task of the parent does."""
    return {
        "name": "w6-child",
        "output": {"receipt": "${{ tasks.one.output }}"},
        "tasks": {
            "one": {"run": "chaos.effect", "retry": _RETRY},
            "two": {"run": "chaos.saga", "needs": ["one"], "with": "${{ tasks.one.output }}", "retry": _RETRY},
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
    """Any of its tasks fails, by the input: before its effect, so that there is nothing to undo, or behind it and
    without a word. What undoes a task may fail for good, until a person repairs it."""
    undo = {"run": "chaos.undo", "with": "${{ task.input }}", "retry": _RETRY}
    done = {"run": "chaos.saga", "retry": _RETRY, "compensate": undo}
    return {
        "name": "w5",
        "tasks": {
            "first": done,
            "left": {**done, "needs": ["first"], "with": "${{ tasks.first.output }}"},
            "right": {**done, "needs": ["first"], "with": "${{ tasks.first.output }}"},
            "meet": {**done, "needs": ["left", "right"], "with": "${{ tasks.left.output }}"},
            "last": {"run": "chaos.saga", "needs": ["meet"], "with": "${{ tasks.meet.output }}", "retry": _RETRY},
        },
    }


SAGA_TASKS: Final = ("first", "left", "right", "meet", "last")


def _votes() -> dict[str, Any]:
    """Two of three have to agree; people vote at once, at the expiry, and while somebody cancels the run."""
    question = {
        "title": "Both of you?",
        "approvers": ["ada", "grace", "eve"],
        "needed": 2,
        "expires": "4s",
        "on_expiry": "fail",
    }
    after = {"run": "chaos.effect", "needs": ["ask"], "with": "${{ input }}", "retry": _RETRY}
    return {"name": "w4-votes", "tasks": {"ask": {"approval": question}, "after": after}}


class PoolLimit(NamedTuple):
    limit: int | None
    rate: str | None = None


POOLS: Final = {"strict": PoolLimit(2), "robbed": PoolLimit(2), "rated": PoolLimit(None, "3/10s")}
"""What they begin with. The limit of `strict` is moved while it works, up to POOL_LIMIT_MAX; rows of `robbed` are
deleted; nobody touches `rated`."""
POOL_LIMIT_MAX: Final = 3


def _pool() -> dict[str, Any]:
    held = {"run": "chaos.pooled", "retry": _RETRY, "pool": {"name": "strict", "fairness_key": "k${{ index % 2 }}"}}
    robbed = {"run": "chaos.pooled", "retry": _RETRY, "pool": "robbed", "with": "${{ input }}"}
    return {
        "name": "pool",
        "tasks": {
            "held": {**held, "map": {"over": [*range(4)], "failures": "finish"}, "with": "${{ input }}"},
            "robbed": robbed,
            "behind": {**robbed, "needs": ["robbed"]},
            "rated": {"run": "chaos.effect", "retry": _RETRY, "pool": "rated"},
        },
    }


ROUNDS_MAX: Final = 4


def _repeat() -> dict[str, Any]:
    repeat = {"until": "output.done", "max": ROUNDS_MAX, "delay": "200ms"}
    poll = {"run": "chaos.round", "retry": _RETRY, "timeout": "15s", "repeat": repeat}
    last = {"run": "chaos.effect", "needs": ["poll"], "with": "${{ tasks.poll.output }}", "retry": _RETRY}
    return {"name": "repeat", "tasks": {"poll": poll, "last": last}}


DEADLINE_SECONDS: Final = 3.0
START_SECONDS: Final = 2.0
RUN_DEADLINE_SECONDS: Final = 8.0


def _deadline() -> dict[str, Any]:
    late = {"run": "chaos.effect", "retry": _RETRY, "deadline": f"{DEADLINE_SECONDS:g}s"}
    queued = {"run": "chaos.effect", "retry": _RETRY, "start_within": f"{START_SECONDS:g}s"}
    return {
        "name": "deadline",
        "deadline": f"{RUN_DEADLINE_SECONDS:g}s",
        "tasks": {
            "late": late,
            "queued": queued,
            "behind": {**late, "needs": ["queued"], "with": "${{ tasks.queued.output }}"},
        },
    }


def _race() -> dict[str, Any]:
    """Short, so that what is asked of it meets its end."""
    one = {"run": "chaos.effect", "retry": _RETRY}
    two = {"run": "chaos.effect", "needs": ["one"], "with": "${{ tasks.one.output }}", "retry": _RETRY}
    return {"name": "race", "tasks": {"one": one, "two": two}}


LIMITS: Final = {"queue": 2, "reject": 1, "replace_oldest": 1, "drop": 1}
"""What becomes of one more -> how many runs of a customer go at once."""
CROWD: Final = 4
"""So many more are started with one."""


def _limit_name(over: str) -> str:
    return f"limit-{over.replace('_', '-')}"


def _limit(over: str) -> dict[str, Any]:
    """Nothing of it may be replayed but what ended it, so that a replay always comes back into the line."""
    one = {"run": "chaos.effect", "retry": _RETRY}
    two = {"run": "chaos.saga", "needs": ["one"], "with": "${{ tasks.one.output }}", "retry": _RETRY}
    return {
        "name": _limit_name(over),
        "limit": {"key": "${{ input.customer }}", "runs": LIMITS[over], "over": over},
        "tasks": {"one": one, "two": two},
    }


CLEAN_SECONDS: Final = 6.0


def _clean() -> dict[str, Any]:
    """What was taken is released, however the work ends, and that is booked."""
    given = {"with": "${{ input }}", "retry": _RETRY}
    return {
        "name": "clean",
        "deadline": f"{CLEAN_SECONDS:g}s",
        "tasks": {
            "take": {"run": "chaos.effect", **given},
            "beside": {"run": "chaos.effect", **given},
            "work": {"run": "chaos.saga", "needs": ["take"], **given},
            "release": {"run": "chaos.effect", "needs": ["take", "work"], "join": "finally", **given},
            "book": {"run": "chaos.saga", "needs": ["beside", "release"], "join": "finally", **given},
        },
    }


WORKFLOWS: Final[list[dict[str, Any]]] = [
    _linear(),
    _fan(),
    _map(),
    *map(_approval, ("fail", "approve", "reject")),
    _votes(),
    _signals(),
    _child(),
    _parent(),
    _saga(),
    _outside(),
    _pool(),
    _repeat(),
    _deadline(),
    _race(),
    *map(_limit, LIMITS),
    _clean(),
    _retries(),
    _odd(),
]
_SHARES: Final = {
    "w1": 40,
    "w2": 8,
    "map": 6,
    "w4-fail": 6,
    "w4-approve": 4,
    "w4-reject": 4,
    "w4-votes": 6,
    "w4-signal": 8,
    "w6": 6,
    "w5": 10,
    "outside": 12,
    "pool": 6,
    "repeat": 6,
    "deadline": 6,
    "race": 8,
    **{_limit_name(over): 3 for over in LIMITS},
    "clean": 14,
    "w8": 12,
    "w9": 4,
}
_ODD_KINDS: Final = (
    "exit", "segfault", "raise_exit", "block", "nan", "nul", "surrogate",
    "deep", "limit", "over", "huge", "bytes", "big",
)  # fmt: skip


CONTROLLED: Final = (
    "w1", "w2", "map", "w4-fail", "w4-votes", "w5", "w6", "w6-child", "w8", "pool", "repeat", "race", "clean",
    *map(_limit_name, LIMITS),
)  # fmt: skip
"""What operators act on as a whole. Where they act at random the oracle still knows what must become of each run."""


def next_version(name: str, draw: random.Random) -> dict[str, Any]:
    """The workflow with another description; half of the time with a task more, behind all others."""
    workflow = next(each for each in WORKFLOWS if each["name"] == name)
    tasks = {**workflow["tasks"]}
    if draw.random() < 0.5:
        more: dict[str, Any] = {"run": "chaos.effect", "with": {"before": 0.05}, "retry": _RETRY}
        if "limit" in workflow:  # nothing goes on beside a failure, so that its replay comes back into the line
            more["needs"] = list(workflow["tasks"])
        tasks["more"] = more
    return {**workflow, "tasks": tasks, "description": f"as of {draw.random()}"}


def choose(draw: random.Random, number: int, workflow: str = "") -> tuple[str, dict[str, Any]]:
    """The workflow, when it is not given, and the input of one start."""
    workflow = workflow or draw.choices(list(_SHARES), list(_SHARES.values()))[0]
    given: dict[str, Any] = {"n": number, "before": _pause(draw), "after": _pause(draw)}
    match workflow:
        case "map":
            given["before"], given["after"] = given["before"] / 4, 0.01
        case "w2":
            given["skips"] = draw.sample(range(FAN), draw.choice((0, 0, 1, 3)))
            given["before"], given["after"] = given["before"] / 4, 0.01
        case "w8":
            given |= {"fails": draw.randrange(4), "how": draw.choice(("error", "error", "later", "never", "slow"))}
        case "w5":
            given |= {
                "fails_at": draw.choice((*SAGA_TASKS, "nowhere")),
                "how": draw.choice(("before", "after")),
                "undo_fails": draw.choice((*SAGA_TASKS, "nowhere", "nowhere")),
            }
        case "w6":
            given |= {"fails_at": draw.choices(("two", "nowhere"), (1, 4))[0], "how": "before"}
        case "repeat":
            given |= {"rounds": draw.randint(1, ROUNDS_MAX + 1), "before": given["before"] / 4}
        case "deadline":
            given["before"] = round(draw.choice((0.1, 1.0, 2.8, 4.0)) * draw.uniform(0.8, 1.2), 3)
        case "pool":
            given["before"], given["after"] = round(draw.uniform(0.1, 0.8), 3), 0.01
        case "race":
            given["before"], given["after"] = round(draw.uniform(0.01, 0.3), 3), 0.01
        case "clean":
            given["before"] = draw.choices((0.1, 1.0, 2.5), (3, 3, 1))[0]
            given |= {"fails_at": draw.choices(("work", "book", "nowhere"), (2, 1, 4))[0], "how": "before"}
        case _ if workflow.startswith("limit-"):
            given |= {"customer": draw.choice(("ada", "eve")), "before": round(draw.uniform(0.1, 1.0), 3)}
            given |= {"fails_at": draw.choices(("two", "nowhere"), (1, 4))[0], "how": "before"}
        case "w9":
            given |= {"kind": draw.choice(_ODD_KINDS), "times": draw.choice((1, 2, 9))}
        case _:
            pass
    return workflow, given


def _pause(draw: random.Random) -> float:
    """Mostly short; some bodies outlive the moment in which they are reported as started, a few a whole lease."""
    return round(draw.choices((0.01, 0.1, 0.5, 3.0), (60, 25, 12, 3))[0] * draw.uniform(0.5, 1.5), 3)
