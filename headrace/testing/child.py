"""Runs that a task of another asks for, and what that task is told of them."""

from collections import deque
from typing import Final

import msgspec

from headrace.errors import PayloadError
from headrace.machine import CancelChild, Cancelled, ChildTold, Finish, StartChild
from headrace.machine.child import refuse_input
from headrace.machine.reason import DEPTH_MAX, LIMIT_REACHED, TOO_DEEP
from headrace.messages import Error, RunId
from headrace.testing.permit import Permits
from headrace.testing.run import Parent, Run
from headrace.testing.start import Starts


class Children:
    """Of all runs."""

    def __init__(self, starts: Starts, permits: Permits) -> None:
        self._starts, self._permits = starts, permits
        self._asked: Final[dict[tuple[RunId, int, int], tuple[Run, StartChild]]] = {}
        """Runs that are to start, by who asks for them: run, task, token."""
        self._told: Final[deque[tuple[Run, ChildTold]]] = deque()

    def ask(self, run: Run, action: StartChild) -> None:
        self._asked[run.run_id, action.task, action.token] = (run, action)

    def cancel(self, run: Run, action: CancelChild) -> None:
        if self._asked.pop((run.run_id, action.task, action.token), None) is None:
            reason = f"run {run.run_id} does not wait for it any more"
            run.children[action.task].tell(Cancelled(reason))

    def tell_end(self, run: Run, finish: Finish) -> None:
        """To the task that waits for it, if one does."""
        if run.parent is not None and run.parent.is_waiting:
            hand = (run.parent.action.task, run.parent.action.token)
            output = finish.output or b"null"
            told = ChildTold(*hand, run.run_id, finish.status.value, output, finish.error)
            self._tell(run.parent.run, told)

    def go_on(self) -> bool:
        """Tell one parent what became of its child, or else start one child; whether there was one."""
        if self._told:
            parent, event = self._told.popleft()
            parent.tell(event)
        elif self._asked:
            self._start(*self._asked.pop(next(iter(self._asked))))
        else:
            return False
        return True

    def _tell(self, parent: Run, event: ChildTold) -> None:
        self._told.append((parent, event))

    def _start(self, parent: Run, action: StartChild) -> None:
        """As `state.children` does: start it, or say why not."""
        spec, run_id = parent.state.plan.tasks[action.task].child, self._starts.new_id()
        assert spec is not None
        told = ChildTold(action.task, action.token, run_id, "refused")
        found = self._starts.find(spec.workflow)
        if parent.depth >= DEPTH_MAX:
            return self._tell(parent, msgspec.structs.replace(told, error=TOO_DEEP))
        if found is None:
            why = Error("CHILD_NOT_FOUND", f"there is no workflow {spec.workflow}", retryable=False)
            return self._tell(parent, msgspec.structs.replace(told, error=why))
        workflow, plan = found
        if faults := workflow.check_input(msgspec.json.decode(action.input)):
            why = refuse_input(workflow.name, faults)
            return self._tell(parent, msgspec.structs.replace(told, error=why))
        try:
            verdict = self._permits.admit(plan, run_id, action.input)
        except PayloadError as error:
            why = Error(error.reason, error.message, retryable=False)
            return self._tell(parent, msgspec.structs.replace(told, error=why))
        if verdict.how in ("rejected", "dropped"):
            why = Error(
                LIMIT_REACHED, f"run {verdict.holder} of workflow {workflow.name} goes already", retryable=False
            )
            return self._tell(parent, msgspec.structs.replace(told, error=why))
        if not spec.is_awaited:
            self._tell(parent, msgspec.structs.replace(told, outcome="started"))
        link = Parent(parent, action, spec.is_awaited)
        child = self._starts.begin(run_id, plan, action.input, verdict, by=parent.started_by, parent=link)
        parent.children[action.task] = child
        self._permits.replace(verdict, child)
