"""How a run begins: what is published, who asks, and whether a limit lets one more go."""

from collections.abc import Callable, Iterable
from typing import Final

from headrace.errors import ConflictError, NotFoundError
from headrace.graph import Workflow
from headrace.machine import Action, Plan, compile_plan
from headrace.machine.limit import Verdict
from headrace.machine.status import AWAITS_PERMIT
from headrace.messages import RunId
from headrace.testing.clock import Clock
from headrace.testing.permit import Permits
from headrace.testing.run import Parent, Run


class Starts:
    """Of all runs, in the one version that each workflow is there in."""

    def __init__(
        self, workflows: Iterable[Workflow], clock: Clock, permits: Permits, carry_out: Callable[[Run, Action], None]
    ) -> None:
        self._workflows: Final = {workflow.name: (workflow, compile_plan(workflow)) for workflow in workflows}
        self._clock, self._permits, self._carry_out = clock, permits, carry_out
        self._runs = 0

    @property
    def plans(self) -> list[Plan]:
        return [plan for _, plan in self._workflows.values()]

    def find(self, name: str) -> tuple[Workflow, Plan] | None:
        return self._workflows.get(name)

    def find_plan(self, name: str) -> Plan:
        """Raises NotFoundError."""
        if name not in self._workflows:
            raise NotFoundError(f"the harness has no workflow {name}", workflow=name)
        return self._workflows[name][1]

    def new_id(self) -> RunId:
        self._runs += 1
        return RunId(f"00000000-0000-7000-8000-{self._runs:012}")

    def start(self, name: str, input: bytes, by: str, priority: int) -> Run:
        """From outside. Answers the run that goes where a limit drops this one; raises ConflictError where it
        refuses it."""
        plan, run_id = self.find_plan(name), self.new_id()
        verdict = self._permits.admit(plan, run_id, input)
        if verdict.how == "rejected":
            message = f"as many runs of workflow {plan.name} go as go at once; run {verdict.holder} is one of them"
            raise ConflictError(message, holder=verdict.holder, workflow=plan.name)
        if verdict.how == "dropped":
            return self._permits.find_run(verdict.holder)
        run = self.begin(run_id, plan, input, verdict, by=by, priority=priority)
        self._permits.replace(verdict, run)
        return run

    def begin(
        self, run_id: RunId, plan: Plan, input: bytes, verdict: Verdict, *, by: str, priority: int = 0,
        parent: Parent | None = None,
    ) -> Run:  # fmt: skip
        control = AWAITS_PERMIT if verdict.how == "waits" else 0
        run = Run(
            run_id, plan, input, self._clock, self._carry_out, by=by, priority=priority, parent=parent, control=control
        )
        if plan.limit is not None:
            self._permits.ask(run, plan.limit.key_of(input), is_granted=not control)
        run.begin()
        return run
