"""`make demo`: all examples on the embedded parts, with a worker killed in the middle.

    make demo                 # about a minute; ends with `demo: N runs completed, M tasks, 0 lost`
    make demo KEEP=1          # the same, and everything stays up until Ctrl-C

Orders arrive as records on a topic: some twice, one that cannot be read, one that is wrong. The flights run as a wide
graph. An invoice is read from the images of its pages, one of which is blank until it is scanned again. The release
waits for a person, and so do two follow-ups, whose days are seconds here; one gets a reply. Three payments are settled:
a large one by two of three people, and one is undone, because its payee's account is closed. While orders are being
packed, one worker gets SIGKILL: the other one carries on, and it comes back itself. At the end the account is checked
against the world outside; what does not fit is said, and the exit status is 1.
"""

import argparse
import math
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

import httpx
from rich.console import Console
from rich.markup import escape

from headrace.client import Client
from headrace.errors import HeadraceError, UnavailableError
from headrace.stack import Stack
from headrace.views import Approval, DeadLetter, Run

sys.path.insert(0, str(Path(__file__).parent))
import account as accounts
from demo_follow_up.outside import Outside as Office
from documents import scanner
from flights_etl.source import read_airlines
from flights_etl.workflow import build_workflow
from orders import shop
from orders.outside import Outside
from settlement.ledger import CLOSED, HELD, Ledger

EXAMPLES = Path(__file__).resolve().parent
WORKERS = 2
QUEUES = ("default", "io", "slow")
SLOTS = 8
LEASE_SECONDS = 3.0
"""How long a dead worker's tasks wait for the next one; a real cluster takes ten times that."""
SHIP_SECONDS = 1.5
"""Long enough that bodies are running whenever the worker is killed."""
WAIT_SECONDS = 180.0
LOOK_SECONDS = 0.2
PACKING = 3
"""Orders that the worker must be packing when it is killed."""
LOG_LINES = 40
TAKEOVERS_SHOWN = 6
VERSION = "1.2.0"
WRITTEN = ("orders", "documents", "release", "demo_follow_up", "settlement")
"""Workflows in YAML."""
CONTACTS = {"Ada": "ada@example.org", "Alan": "alan@example.org"}
"""Who asked for a demo; the first one replies."""
PAYMENTS = {"small": ("Grace", 4_900), "large": ("Grace", 250_000), "undone": (next(iter(CLOSED)), 7_500)}
"""Payee and cents, by id. The large one has to be agreed to, and the last one cannot be confirmed."""
AGREEING = ("ada", "grace")
"""Two of the three who may."""
QUESTIONS = 2 + len(CONTACTS)
BLANK = 3
"""The page of the invoice that the scanner saw from its back."""
T = TypeVar("T")

interrupted = threading.Event()


class Wrong(Exception):
    """The demo did not go as it should."""


@dataclass(frozen=True)
class Check:
    what: str
    holds: bool
    detail: str


@dataclass(frozen=True)
class Outcome:
    """Of the whole demo."""

    runs: int
    tasks: int
    lost: int
    """Runs that should have completed and did not."""
    failed: list[Check]


class Demo:
    """The story, told while it happens."""

    def __init__(self, stack: Stack, client: Client, folder: Path, console: Console, orders: int) -> None:
        self._stack, self._client, self._folder, self._console = stack, client, folder, console
        self._orders = shop.make_orders(orders)
        self._outside = Outside(folder / "orders")
        self._office = Office(folder / "demo_follow_up")
        self._ledger = Ledger(folder / "settlement")
        self._started = time.monotonic()

    @property
    def _expected(self) -> int:
        """Runs that complete; one more is undone."""
        return len(self._orders) + 3 + len(CONTACTS) + len(PAYMENTS) - 1

    def tell(self) -> Outcome:
        self._publish()
        self._place_orders()
        self._start_the_others()
        self._kill_a_worker()
        self._approve()
        self._repair()
        runs = self._wait_for_all()
        return self._account(runs)

    # == what is done ==================================================================================================
    def _publish(self) -> None:
        flights = build_workflow(list(read_airlines())).canonical()
        files = [(EXAMPLES / name / "workflow.yaml").read_bytes() for name in WRITTEN]
        published = [self._until("the API", partial(self._client.publish, text)) for text in (*files, flights)]
        self._say(f"published {', '.join(f'{each.name} version {each.version}' for each in published)}")
        if self._stack.broker:
            self._stack.broker.create_topics({shop.TOPIC: 4})
        self._until("the subscription", lambda: subscribe(self._stack))

    def _place_orders(self) -> None:
        """All orders, every fifth one twice; one with a wrong amount; one event of another kind; one heap of bytes."""
        records = shop.write_orders([_spoil(self._orders[0]), *self._orders[1:]])
        records.insert(3, shop.Record("", shop.GARBAGE, []))
        records.insert(7, shop.write_binary(self._orders[1], "viewed-1", shop.VIEWED))
        shop.send(self._stack.kafka, shop.TOPIC, records)
        repeated = len(records) - len(self._orders) - 2
        self._say(
            f"wrote {len(records)} records to {shop.TOPIC}: {len(self._orders)} orders, {repeated} of them twice, one "
            "with a wrong amount, one event that is no order, one that is no JSON"
        )

    def _start_the_others(self) -> None:
        scans = self._folder / "scans"
        scanner.scan(scans, blank=(BLANK,))
        inputs: dict[str, dict[str, str]] = {"flights_etl": {}, "release": {"version": VERSION}}
        inputs["documents"] = {"document": scanner.NUMBER, "scans": str(scans)}
        for workflow, given in inputs.items():
            folder = {"folder": str(self._folder / workflow)}
            # The key makes it one run, however often we ask.
            start = partial(self._client.start, workflow, given | folder, key=f"demo-{workflow}")
            self._until("the API", start)
        for name, email in CONTACTS.items():
            contact = {"name": name, "email": email, "zone": "Europe/London"}
            asked = {"contact": contact, "owner": "grace", "topic": "durable workflows", "hurry": True}
            follow_up = self._until("the API", partial(self._client.start, "demo_follow_up", asked, key=f"demo-{name}"))
            if name == next(iter(CONTACTS)):  # long before anybody waits for it: it is kept
                self._until("the API", partial(self._reply, follow_up.run_id, email))
        for payment, (payee, cents) in PAYMENTS.items():
            asked = {"payment": {"id": payment, "payer": "Ada", "payee": payee, "cents": cents}}
            self._until("the API", partial(self._client.start, "settlement", asked, key=f"demo-{payment}"))
        self._say(
            f"started flights_etl on 336,776 flights, a release, an invoice of {len(scanner.PAGES)} scanned pages, and "
            f"two follow-ups, of whom one has replied already, and {len(PAYMENTS)} payments"
        )

    def _kill_a_worker(self) -> None:
        """While it packs, and the engine knows that it does."""
        victim = "worker-1"
        work = self._until(f"{victim} to pack orders", lambda: self._work_of(victim))
        pid = self._stack.kill9(victim)
        self._say(f"killed {victim} (process {pid}) with SIGKILL while it {work}", style="yellow")

    def _work_of(self, worker: str) -> str:
        """What that worker is doing, in words; empty while too little to be worth a murder."""
        sessions = {each.session_id for each in self._client.workers() if each.worker == worker and each.live}
        packing = 0
        for run in self._runs():
            if run.workflow == "orders" and run.counts.get("running"):
                tasks = self._client.tasks(run.run_id)
                packing += any(task.name == "ship" and task.session_id in sessions for task in tasks)
        if packing >= min(PACKING, len(self._orders) // 5):
            return f"was packing {packing} orders"
        is_late = self._outside.account().parcels >= len(self._orders) - 1  # all but the one with the wrong amount
        return "had packed all that it got" if is_late else ""

    def _reply(self, run_id: str, email: str) -> bool:
        self._client.signal(run_id, "mail.replied", {"text": "Tuesday, please"}, key=email, id=email)
        return True

    def _approve(self) -> None:
        def approved() -> list[Approval] | None:
            for client in (self._client, *people):
                for approval in client.approvals(for_me=True):
                    client.approve(approval.approval_id, "looks good")
            found = self._client.approvals(status="approved")
            return found if len(found) >= QUESTIONS else None

        with ExitStack() as open_:
            url, token = self._stack.api_url, self._stack.token
            people = [open_.enter_context(Client(url, token, actor=name)) for name in AGREEING]
            titles = [approval.title for approval in self._until("all to ask who have a question", approved)]
        self._say(f"approved {', '.join(f'“{title}”' for title in titles)}")

    def _repair(self) -> None:
        """The order with a wrong amount, the record that nobody can read, and the page that was blank."""

        def replayed() -> DeadLetter | None:
            if letter := self._letter("parked", "task", "orders"):
                self._client.replay(letter.dead_letter_id, input=self._orders[0])
            return self._letter("replayed", "task", "orders")

        def closed_for_good(workflow: str) -> DeadLetter | None:
            if letter := self._letter("parked", "task", workflow):
                self._client.discard(letter.dead_letter_id, "the payment was undone")
            return self._letter("discarded", "task", workflow)

        def scanned_again() -> DeadLetter | None:
            if letter := self._letter("parked", "task", "documents"):
                image = scanner.scan_page(self._folder / "documents" / "page-again.png", BLANK)
                self._client.replay(letter.dead_letter_id, input={"number": BLANK, "image": str(image)})
            return self._letter("replayed", "task", "documents")

        def discarded() -> DeadLetter | None:
            if letter := self._letter("parked", "record"):
                self._client.discard(letter.dead_letter_id, "not one of ours")
            return self._letter("discarded", "record")

        wrong = self._until("the wrong order's dead letter", replayed)
        self._say(f"found a dead letter of {wrong.workflow}.{wrong.task}, put the amount right, and replayed it")
        garbage = self._until("the unreadable record's dead letter", discarded)
        self._say(f"discarded the record at {garbage.topic}/{garbage.partition}/{garbage.offset}: {garbage.reason}")
        closed = self._until("the dead letter of what was undone", lambda: closed_for_good("settlement"))
        self._say(f"discarded the dead letter of {closed.workflow}.{closed.task}: what it had led to was undone")
        page = self._until("the blank page's dead letter", scanned_again)
        why = (page.error or {}).get("message", page.reason)
        self._say(f"scanned a page again, and replayed {page.workflow}.{page.task} alone: {why}")

    def _letter(self, status: str, kind: str, workflow: str | None = None) -> DeadLetter | None:
        letters = self._client.dead_letters(status=status)
        return next((each for each in letters if each.kind == kind and workflow in (None, each.workflow)), None)

    def _wait_for_all(self) -> list[Run]:
        with self._console.status("") as status:

            def all_completed() -> list[Run] | None:
                runs = self._runs()
                completed = sum(run.status == "completed" for run in runs)
                status.update(f"{completed} of {self._expected} runs completed")
                return runs if completed >= self._expected and all(run.is_over for run in runs) else None

            return self._until("all runs to complete", all_completed)

    def _runs(self) -> list[Run]:
        runs: list[Run] = []
        page = None
        while True:
            answer = self._client.runs(limit=200, page=page)
            runs += answer.items
            if (page := answer.next) is None:
                return runs

    # == what came of it ===============================================================================================
    def _account(self, runs: Sequence[Run]) -> Outcome:
        self._say(f"all {len(runs)} runs are over")
        by_workflow = self._until("the account", lambda: accounts.take_account(self._client, runs))
        self._console.print()
        self._console.print(accounts.draw(by_workflow))
        for takeover in [each for account in by_workflow for each in account.takeovers][:TAKEOVERS_SHOWN]:
            self._console.print(f"  {describe(takeover)}", style="yellow", highlight=False)
        checks = [
            *self._check_orders(runs),
            *self._check_flights(runs),
            *self._check_documents(runs),
            *self._check_release(runs),
            *self._check_follow_ups(runs),
            *self._check_payments(runs),
            self._check_parked(),
        ]
        self._console.print("\n[bold]What was checked[/]")
        for check in checks:
            sign = "[green]✓[/]" if check.holds else "[bold red]✗[/]"
            self._console.print(f"  {sign} {escape(check.what)}: {escape(check.detail)}", highlight=False)
        completed = sum(run.status == "completed" for run in runs)
        tasks = sum(account.tasks_completed for account in by_workflow)
        return Outcome(
            completed, tasks, max(0, self._expected - completed), [each for each in checks if not each.holds]
        )

    def _check_orders(self, runs: Sequence[Run]) -> Iterator[Check]:
        ordered = [order["order_id"] for order in self._orders]
        found = accounts.order_ids(runs)
        yield Check("each order ran once", found == ordered, f"{len(found)} runs for {len(ordered)} orders")
        world, cents = self._outside.account(), sum(order["amount_cents"] for order in self._orders)
        yield Check(
            "nobody was charged twice",
            not world.orders_charged_twice and world.charges == len(ordered) and world.cents == cents,
            f"{world.calls} calls to the bank, {world.charges} charges, {world.orders_charged_twice} double, "
            f"{world.cents / 100:,.2f} of {cents / 100:,.2f}",
        )
        shipped = (world.parcels, world.mails)
        yield Check("each order was shipped", shipped == (len(ordered),) * 2, "{} parcels, {} mails".format(*shipped))

    def _check_flights(self, runs: Sequence[Run]) -> Iterator[Check]:
        from flights_etl.direct import compute  # it takes pandas a second to be imported

        direct = compute()
        report = next((run.outputs.get("report") for run in runs if run.workflow == "flights_etl"), None) or {}
        is_same = same_totals(direct, report.get("carriers", {}))
        detail = f"{report.get('flights', 0):,} flights of {len(direct)} carriers, equal to a direct computation"
        yield Check("the flights' totals are right", is_same, detail if is_same else f"{report} is not {direct}")

    def _check_documents(self, runs: Sequence[Run]) -> Iterator[Check]:
        run = next(run for run in runs if run.workflow == "documents")
        output, total = run.output or {}, scanner.TOTAL_CENTS
        detail = f"{output.get('number')} of {output.get('customer')} over {output.get('total_cents', 0) / 100:,.2f}"
        yield Check("the invoice is read and adds up", output.get("total_cents") == total, detail)
        ends = [
            [each.outcome for each in self._client.attempts(page.task_id) if each.outcome in ("completed", "failed")]
            for page in self._client.items(run.run_id, "read")
        ]
        expected = [["completed"]] * len(scanner.PAGES)
        expected[BLANK - 1] = ["failed", "completed"]
        detail = f"{len(ends)} pages, page {BLANK} from its second image"
        yield Check("only the blank page was read again", ends == expected, detail if ends == expected else f"{ends}")

    def _check_release(self, runs: Sequence[Run]) -> Iterator[Check]:
        answer = next((run.outputs.get("smoke") for run in runs if run.workflow == "release"), None)
        yield Check("the release answers", answer == {"status": "ok", "version": VERSION}, str(answer))

    def _check_follow_ups(self, runs: Sequence[Run]) -> Iterator[Check]:
        replied = {
            run.input["contact"]["name"]: run.output["replied"] for run in runs if run.workflow == "demo_follow_up"
        }
        mails, reminders = self._office.done("mail"), self._office.done("messenger")
        first, *others = CONTACTS
        holds = (
            replied == {first: True} | dict.fromkeys(others, False)
            and len(mails) == len(CONTACTS)
            and [each["text"].split()[0] for each in reminders] == others
        )
        detail = f"{len(mails)} mails, {len(reminders)} reminder of who has not replied"
        yield Check("each follow-up was sent once", holds, detail if holds else f"{replied} {mails} {reminders}")

    def _check_payments(self, runs: Sequence[Run]) -> Iterator[Check]:
        ended = {run.input["payment"]["id"]: run.status for run in runs if run.workflow == "settlement"}
        expected = {**dict.fromkeys(PAYMENTS, "completed"), "undone": "compensated"}
        yield Check("payments are settled or undone", ended == expected, str(ended))
        balances, (payee, _) = self._ledger.balances(), PAYMENTS["small"]
        paid = sum(cents for name, cents in PAYMENTS.values() if name == payee)
        holds = balances == {"Ada": -paid, payee: paid} and self._ledger.audited() == ["large", "small"]
        detail = f"{payee} has {balances.get(payee, 0) / 100:,.2f}, {balances.get(HELD, 0)} is held"
        yield Check("no cent is lost", holds, detail if holds else f"{balances}, {self._ledger.audited()}")
        steps = self._ledger.booked("undone")
        yield Check(
            "what failed was undone backwards", steps == ["hold", "settle", "reverse", "release"], ", ".join(steps)
        )

    def _check_parked(self) -> Check:
        parked = self._client.dead_letters(status="parked")
        return Check("no dead letter is left", not parked, f"{len(parked)} parked")

    # == telling and waiting ===========================================================================================
    def _say(self, text: str, *, style: str = "") -> None:
        self._console.print(
            f"[dim]{time.monotonic() - self._started:5.1f} s[/]  {escape(text)}", style=style, highlight=False
        )

    def _until(self, what: str, fact: Callable[[], T | None]) -> T:
        """Wait for a fact and return it. Raises Wrong, with where the runs stand, after WAIT_SECONDS."""
        give_up_at = time.monotonic() + WAIT_SECONDS
        while not (found := self._ask(fact)):
            if interrupted.is_set():
                raise KeyboardInterrupt
            if time.monotonic() > give_up_at:
                stand = "\n".join(
                    f"  {run.workflow} {run.run_id} {run.status} {run.counts}"
                    for run in self._runs()
                    if not run.is_over
                )
                raise Wrong(f"waited {WAIT_SECONDS:g} s for {what}; runs that are not over:\n{stand or '  none'}")
            time.sleep(LOOK_SECONDS)
        return found

    def _ask(self, fact: Callable[[], T | None]) -> T | None:
        """None while the API is away, which it may be: it can be the one that is killed."""
        try:
            return fact()
        except UnavailableError:
            return None


def describe(takeover: accounts.Takeover) -> str:
    lost = f"{takeover.lost_by} had begun it" if takeover.lost_by else "it had not begun"
    first, last = takeover.tokens
    return (
        f"{takeover.workflow}.{takeover.task} of run …{takeover.run_id[-6:]}: lost under token {first} ({lost}), "
        f"completed by {takeover.carried_on_by} under token {last}"
    )


def subscribe(stack: Stack, **changes: str) -> bool:
    """Post `orders/subscription.json`, with other values for some of its fields; False when the API is away."""
    subscription = httpx.Response(200, content=(EXAMPLES / "orders" / "subscription.json").read_bytes()).json()
    try:
        answer = httpx.post(
            f"{stack.api_url}/subscriptions", json={**subscription, **changes}, headers=stack.headers, timeout=5
        )
    except httpx.TransportError:
        return False
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return False
    if not answer.is_success:
        raise Wrong(f"the API refused the subscription: {answer.text}")
    return True


def same_totals(direct: dict[str, Any], reported: dict[str, Any]) -> bool:
    """Numbers by carrier and name; means may differ in the last digits."""
    return direct.keys() == reported.keys() and all(
        math.isclose(number, reported[carrier][name], rel_tol=1e-9)
        for carrier in direct
        for name, number in direct[carrier].items()
    )


def _spoil(order: dict[str, Any]) -> dict[str, Any]:
    return {**order, "amount_cents": f"{order['amount_cents'] / 100:.2f} EUR"}


# == the process =======================================================================================================
def main() -> int:
    given = _parse()
    console = Console(width=None if sys.stdout.isatty() else 120)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        stack = _make_stack(Path(folder), console if given.log else None)
        try:
            outcome = _run(stack, Path(folder), console, given)
        except (KeyboardInterrupt, Wrong, HeadraceError, httpx.HTTPError, RuntimeError, TimeoutError) as error:
            if not interrupted.is_set():
                return _fail(stack, str(error))
            print("demo: interrupted; everything was stopped", file=sys.stderr)
            return 130
    if outcome.failed or outcome.lost:
        return _fail(
            stack,
            "; ".join(f"not so: {check.what} ({check.detail})" for check in outcome.failed)
            or f"{outcome.lost} runs lost",
        )
    print(f"demo: {outcome.runs} runs completed, {outcome.tasks} tasks, {outcome.lost} lost", flush=True)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--keep", action="store_true", default=os.environ.get("KEEP", "") not in ("", "0"), help="stay up until Ctrl-C"
    )
    parser.add_argument("--orders", type=int, default=40, help="how many orders are placed")
    parser.add_argument("--log", action="store_true", help="show what the processes write")
    # For tests: one more process is killed, by its name, so many seconds after the runs began.
    parser.add_argument("--kill", help=argparse.SUPPRESS)
    parser.add_argument("--after", type=float, default=2.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _make_stack(folder: Path, console: Console | None) -> Stack:
    settings = {"ORDERS_DATA": str(folder / "orders"), "ORDERS_SHIP_SECONDS": f"{SHIP_SECONDS:g}"}
    settings["FOLLOW_UP_DATA"] = str(folder / "demo_follow_up")
    settings["SETTLEMENT_DATA"] = str(folder / "settlement")
    log = (
        (lambda name, line: console.print(f"[dim]{name:>10}  {escape(line)}[/]", highlight=False)) if console else None
    )
    return Stack(
        EXAMPLES / "app.py",
        workers=WORKERS,
        queues=QUEUES,
        slots=SLOTS,
        lease_seconds=LEASE_SECONDS,
        settings=settings,
        log=log,
    )


def _run(stack: Stack, folder: Path, console: Console, given: argparse.Namespace) -> Outcome:
    begun = time.monotonic()
    console.print("[bold]headrace demo[/]: Postgres, a log, the engine and two workers, all on this machine")
    with stack, Client(stack.api_url, stack.token, actor="demo", roles=("release-managers", "sales")) as client:
        stack.wait_workers(WORKERS)
        console.print(f"  started in {time.monotonic() - begun:.1f} s: {', '.join(stack.pids())}", highlight=False)
        console.print(f"  console {stack.console_url}, API {stack.api_url}\n", highlight=False)
        with _killing(stack, given.kill, given.after):
            outcome = Demo(stack, client, folder, console, given.orders).tell()
        if given.keep:
            _keep(stack, console)
        else:
            console.print(
                f"\nThe console was at [bold]{stack.console_url}[/] and ends with the demo. To open these runs in it, "
                "keep it up: [bold]make demo KEEP=1[/]. For tasks of yours: [bold]headrace new[/].\n",
                highlight=False,
            )
    return outcome


def _keep(stack: Stack, console: Console) -> None:
    made = httpx.post(f"{stack.api_url}/login-codes", headers=stack.headers).raise_for_status().json()
    console.print(
        f"\nEverything is still up. API [bold]{stack.api_url}[/], console [bold]{stack.console_url}[/]\n"
        f"  log in to it, once: {stack.api_url}{made['path']}\n"
        f"  the runs of this demo: {stack.console_url}runs\n"
        f"  HEADRACE_API={stack.api_url} HEADRACE_API_TOKEN={stack.token} "
        f"{Path(sys.executable).parent}/headrace runs\nCtrl-C stops it.",
        highlight=False,
        soft_wrap=True,
    )
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("stopping …")


@contextmanager
def _killing(stack: Stack, name: str | None, after_seconds: float) -> Iterator[None]:
    if name is None:
        yield
        return
    timer = threading.Timer(after_seconds, stack.kill9, (name,))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _fail(stack: Stack, reason: str) -> int:
    print("\nThe last lines of the processes:", file=sys.stderr)
    for name, line in list(stack.lines)[-LOG_LINES:]:
        print(f"  {name:>10}  {line}", file=sys.stderr)
    print(f"\ndemo: FAILED: {reason}", file=sys.stderr, flush=True)
    return 1


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    interrupted.set()  # a library may turn the exception into one of its own, or swallow it in a callback
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
