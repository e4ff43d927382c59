"""What is done in the console is done in the engine, and followed to its end."""

import re

from playwright.sync_api import Page, expect

from tests.browser.window import Console, Engine


def tray(page: Page, text: str) -> None:
    expect(page.locator(".tray")).to_contain_text(text)


def test_approve_and_the_run_goes_on(console: Console, engine: Engine) -> None:
    run_id, approval_id = engine.asking()
    page = console.open(f"/approvals?id={approval_id}")
    page.locator(".detail").get_by_role("button", name="Approve").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("It is decided once.")
    expect(dialog.get_by_label("Reason or comment")).to_have_value("approve by console")
    dialog.get_by_label("Reason or comment").fill("looked at the build")
    dialog.get_by_text("The same from a terminal or a script").click()
    expect(dialog).to_contain_text(f"headrace approve {run_id} --task ask")
    console.shot("-dialog")
    dialog.get_by_role("button", name="Approve", exact=True).click()
    tray(page, "ask is completed")
    approval = engine.get(f"/approvals/{approval_id}")
    assert (approval["status"], approval["decided_by"], approval["comment"]) == (
        "approved",
        "console",
        "looked at the build",
    )


def test_fix_a_copy_replay_it_and_see_that_it_helped(console: Console, engine: Engine) -> None:
    run_id, letter_id = engine.failed_order("fix-me")
    page = console.open(f"/runs/{run_id}")
    page.locator(".banner").get_by_role("link", name="Edit a copy").click()
    editor = page.get_by_label("Input of the task, as JSON")
    editor.fill('{"order_id": "fix-me", "amount": 12.5, "seq": 9007199254740993}')
    expect(page.get_by_role("group", name="What was changed")).to_contain_text("9007199254740993")
    page.get_by_role("button", name="Replay the edited copy").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay", exact=True).click()
    tray(page, "charge completed")
    expect(page.locator(".notice")).to_contain_text("It helped: completed.")
    letter = engine.get(f"/dead-letters/{letter_id}")
    assert (letter["status"], letter["closed_by"], letter["replay_outcome"]) == ("replayed", "console", "completed")
    given = engine.http.get(f"/tasks/{run_id}.charge").text
    assert "9007199254740993" in given


def test_what_ran_before_a_replay_is_not_drawn_as_if_it_had_waited_for_it(console: Console, engine: Engine) -> None:
    """`ship` runs whatever happened before, so it had when the replay let `pack` and `gift` run after all."""
    run_id, letter_id = engine.failed_order("shipped")
    engine.until("ship", lambda: engine.get(f"/tasks/{run_id}.ship")["status"] == "completed")
    shipped_at = engine.get(f"/tasks/{run_id}.ship")["changed_at"]
    engine.post(f"/dead-letters/{letter_id}/replay", input={"order_id": "shipped", "amount": 1})
    engine.until_status(run_id, "completed")
    assert (
        engine.get(f"/tasks/{run_id}.pack")["changed_at"]
        > shipped_at
        == engine.get(f"/tasks/{run_id}.ship")["changed_at"]
    )
    page = console.open(f"/runs/{run_id}")
    tried = page.locator("[data-task=charge] .seg-failed")
    expect(tried).to_have_count(3)
    first = page.locator("[data-task=ship] .seg").first
    waited_from, last_try = first.bounding_box(), tried.last.bounding_box()
    assert waited_from is not None
    assert last_try is not None
    assert waited_from["x"] >= last_try["x"], "its turn came with the last try of charge, not with the run"


def test_a_replay_that_fails_again_is_not_called_repaired(console: Console, engine: Engine) -> None:
    run_id, _ = engine.failed_order("hopeless")
    page = console.open(f"/runs/{run_id}?task=charge")
    page.get_by_role("complementary").get_by_role("button", name="Replay").click()
    page.get_by_role("dialog").get_by_role("button", name="Replay", exact=True).click()
    tray(page, "it failed again, as a new letter")
    expect(page.locator(".tray-act.is-failed")).to_have_count(1)
    assert len(engine.get("/dead-letters", filter=f"run:{run_id}")["items"]) == 1


def test_discard_needs_a_reason(console: Console, engine: Engine) -> None:
    _, letter_id = engine.failed_order("give-up")
    page = console.open(f"/dead-letters/{letter_id}")
    page.get_by_role("button", name="Discard").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("")
    expect(dialog.get_by_role("button", name="Discard", exact=True)).to_be_disabled()
    dialog.get_by_label("Reason").fill("the customer left")
    dialog.get_by_role("button", name="Discard", exact=True).click()
    expect(page.locator(".notice")).to_contain_text("the customer left")
    assert engine.get(f"/dead-letters/{letter_id}")["close_reason"] == "the customer left"


def test_all_letters_of_a_cause_are_counted_before_they_are_replayed(console: Console, engine: Engine) -> None:
    letters = [engine.failed_order(f"bulk-{number}")[1] for number in range(2)]
    fingerprint = engine.get(f"/dead-letters/{letters[0]}")["fingerprint"]
    count = len(engine.get("/dead-letters", filter=f"fingerprint:{fingerprint}")["items"])
    page = console.open(f"/dead-letters?tab=letters&fingerprint={fingerprint}")
    page.get_by_role("button", name="Replay all").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"Exactly the {count} letters")
    expect(dialog.get_by_role("button", name=f"Replay {count}")).to_be_disabled()
    dialog.get_by_label("to confirm").fill(str(count))
    dialog.get_by_role("button", name=f"Replay {count}").click()
    tray(page, f"{count} out, 0 left")
    tray(page, f"{count} failed again")


def test_a_run_started_from_the_form_is_watched_to_its_end(console: Console, engine: Engine) -> None:
    page = console.open("/workflows/orders?tab=launch")
    page.get_by_label("order_id").fill("from-the-form")
    page.get_by_label("amount").fill("-5")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".field-error")).to_contain_text("minimum")
    console.faults[:] = [fault for fault in console.faults if "422" not in fault]  # what was just shown
    page.get_by_label("amount").fill("25")
    page.get_by_label("Labels").fill("customer")
    expect(page.get_by_text("write NAME=VALUE, one a line")).to_be_visible()
    page.get_by_label("Labels").fill("customer=acme\nnote = a=b, c ")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".run-title [data-status=completed]")).to_be_visible()
    expect(page.locator(".timeline-row[data-task=ship] .seg-completed")).to_have_count(1)
    run_id = page.url.rpartition("/")[2]
    run = engine.get(f"/runs/{run_id}")
    assert (run["input"], run["output"], run["labels"]) == (
        {"order_id": "from-the-form", "amount": 25},
        {"parcel": "P-from-the-form"},
        {"customer": "acme", "note": "a=b, c"},
    )


def test_a_person_says_what_became_of_an_effect(console: Console, engine: Engine) -> None:
    run_id = engine.start("payout", iban="DE03")
    engine.until_status(run_id, "waiting")
    page = console.open(f"/runs/{run_id}?task=transfer")
    page.get_by_label("If it happened").fill('{"transfer": "T-1"}')
    page.get_by_role("button", name="It happened").click()
    page.get_by_role("dialog").get_by_role("button", name="It happened", exact=True).click()
    tray(page, "transfer is completed")
    assert engine.get(f"/tasks/{run_id}.transfer")["output"] == {"transfer": "T-1"}


def test_a_signal_moves_what_waits_for_it(console: Console, engine: Engine) -> None:
    run_id = engine.start("import", rows=[])
    engine.until_status(run_id, "waiting")
    page = console.open(f"/runs/{run_id}?tab=approvals")
    page.get_by_label("Data, as JSON").fill('{"cents": 1250}')
    page.get_by_role("button", name="Send the signal").click()
    page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".signals [data-status=taken]")).to_be_visible()
    expect(page.locator(".run-title [data-status=completed]")).to_be_visible()
    (signal,) = engine.get(f"/runs/{run_id}/signals")["items"]
    assert (signal["name"], signal["data"], signal["actor"]) == ("payment.received", {"cents": 1250}, "console")


def test_cancel_says_what_it_ends_and_can_be_done_once(console: Console, engine: Engine) -> None:
    run_id = engine.start("lonely")
    page = console.open(f"/runs/{run_id}")
    button = page.get_by_role("button", name="Cancel …")
    button.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 open task ends as cancelled")
    dialog.get_by_role("button", name="Cancel run").dblclick()
    tray(page, "the run is cancelled")
    expect(button).to_have_attribute("aria-disabled", "true")
    expect(button).to_have_attribute("title", "the run is cancelled already")
    kinds = [item["kind"] for item in engine.get(f"/runs/{run_id}/history")["items"]]
    assert kinds.count("cancelled") == 1


def test_new_runs_are_counted_and_rows_change_where_they_stand(console: Console, engine: Engine) -> None:
    old = engine.start("lonely")
    page = console.open("/runs?filter=workflow:lonely")
    first = page.locator(".table-row").first
    expect(first).to_have_attribute("data-row", old)
    new = engine.start("lonely")
    expect(page.locator(".news-button")).to_contain_text("new run")
    assert engine.http.post(f"/runs/{old}/cancel", json={}).is_success
    expect(first.locator("[data-status=cancelled]")).to_be_visible()
    expect(first).to_have_attribute("data-row", old)
    page.locator(".news-button").click()
    expect(page.locator(".table-row").first).to_have_attribute("data-row", new)


def act_as(page: Page, name: str) -> None:
    """Say another name; with the token of this machine that is who acts."""
    page.get_by_title("Whom the record names for what you do").click()
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Keep").click()


def test_two_people_fill_the_form_in_and_both_are_on_record(console: Console, engine: Engine) -> None:
    run_id, approval_id = engine.asking("refund", amount=80)
    page = console.open(f"/approvals?id={approval_id}")
    expect(page.locator(".detail")).to_contain_text("Refund 80 EUR?")
    expect(page.locator(".detail")).to_contain_text("0 of 2 yeses")
    for name, count in (("grace", 1), ("linus", 2)):
        act_as(page, name)
        page.locator(".detail").get_by_role("button", name="Approve").click()
        dialog = page.get_by_role("dialog")
        button = dialog.get_by_role("button", name="Approve", exact=True)
        expect(button).to_be_disabled()
        dialog.get_by_label("Why *").fill("it came late")
        dialog.get_by_label("amount").fill("700")
        expect(dialog).to_contain_text("amount must be at most 500")
        dialog.get_by_label("amount").fill("80")
        dialog.get_by_text("The same from a terminal or a script").click()
        expect(dialog).to_contain_text(f"headrace approve {run_id} --task agreed")
        button.click()
        expect(page.get_by_role("list", name="Votes").locator("> li")).to_have_count(count)
    expect(page.get_by_role("list", name="Votes")).to_contain_text("console")
    engine.until_status(run_id, "completed")
    votes = engine.get(f"/approvals/{approval_id}")["record"]
    assert [(vote["by"], vote["source"], vote["form"]["amount"]) for vote in votes] == [
        ("grace", "console", 80),
        ("linus", "console", 80),
    ]


def test_a_rerun_says_what_repeats_and_with_which_version(console: Console, engine: Engine) -> None:
    run_id, _ = engine.failed_order("again")
    page = console.open(f"/runs/{run_id}?task=charge")
    panel = page.get_by_role("complementary")
    panel.get_by_text("With another input").click()
    panel.get_by_label("Input of the task, as JSON").fill('{"order_id": "again", "amount": 10}')
    panel.get_by_role("button", name="Rerun from here with the edited input").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("on version 1, the one that it is on")
    expect(dialog.get_by_role("table", name="What runs again").get_by_role("row", name="charge")).to_be_visible()
    expect(dialog).to_contain_text("Reused as they stand: validate, stock, fraud.")
    dialog.get_by_role("button", name="Rerun 5 tasks").click()
    tray(page, "it helped: the run is completed")
    reran = next(
        each for each in engine.get(f"/runs/{run_id}/history", by="people")["items"] if each["kind"] == "reran"
    )
    assert (reran["actor"], reran["detail"]["reason"]) == ("console", "rerun by console")
    page.get_by_role("tab", name="Audit").click()
    expect(page.locator(".table-row", has_text="reran")).to_contain_text("rerun by console")


def test_a_rerun_on_another_version_says_whether_it_fits(console: Console, engine: Engine) -> None:
    flow = "name: fitting\ntasks:\n  one: {{ run: shop.notify }}\n  two: {{ run: {two}, needs: one, retry: 1 }}{more}\n"
    engine.publish(flow.format(two="shop.decline", more=""))
    run_id = engine.start("fitting")
    engine.until_status(run_id, "failed")
    engine.publish(flow.format(two="shop.notify", more="\n  three: { run: shop.notify, needs: two }"))
    engine.publish("name: fitting\ntasks: { other: { run: shop.notify } }")
    page = console.open(f"/runs/{run_id}")
    page.locator(".run-head").get_by_role("button", name="Rerun").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("on version 1, the one that it is on")
    choice = dialog.get_by_label("On version")
    expect(choice.locator("option")).to_have_text(["v3, the latest", "v2", "v1, the one that it is on"])
    choice.select_option("3")
    expect(dialog).to_contain_text("It cannot be moved as it stands.")
    expect(dialog.locator(".notice code").first).to_contain_text(re.compile("one|two"))
    expect(dialog.locator("footer button[type=submit]")).to_be_disabled()
    console.shot("-blocked")
    choice.select_option("2")
    expect(dialog).to_contain_text("It fits version 2: nothing stands in the way.")
    expect(dialog).to_contain_text("moved from version 1 to 2")
    dialog.get_by_text("The same from a terminal or a script").click()
    expect(dialog).to_contain_text(f"headrace rerun {run_id} --version 2")
    dialog.locator("footer button[type=submit]").click()
    tray(page, "it helped: the run is completed")
    assert engine.get(f"/runs/{run_id}")["version"] == 2


def test_only_what_explain_offers_is_a_button(console: Console, engine: Engine) -> None:
    """What a run did was undone: its dead letter is there, and no replay takes the run up again."""
    run_id = engine.start("trip")
    engine.until_status(run_id, "compensated")
    letter = engine.until("the letter", lambda: engine.get("/dead-letters", filter=f"run:{run_id}")["items"])[0]
    page = console.open(f"/runs/{run_id}?task=pay")
    expect(page.locator(".banner")).to_contain_text("what it did was undone")
    expect(page.locator(".banner").get_by_role("link", name="Its dead letter")).to_be_visible()
    expect(page.get_by_role("complementary").get_by_role("link", name="Its dead letter")).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Replay"))).to_have_count(0)
    console.open(f"/dead-letters/{letter['dead_letter_id']}")
    button = page.get_by_role("button", name="Replay as it was")
    expect(button).to_have_attribute("title", "its run takes nothing up again")


def test_many_runs_are_shown_frozen_and_followed_to_what_became_of_each(console: Console, engine: Engine) -> None:
    runs = [engine.start("lonely") for _ in range(3)]
    page = console.open("/runs?filter=workflow:lonely+status:running")
    for run_id in runs[:2]:
        page.locator(f"[data-row='{run_id}']").get_by_role("checkbox").check()
    bar = page.get_by_role("group", name="One act on many runs")
    expect(bar).to_contain_text("2 runs chosen")
    bar.get_by_label("Act").select_option("cancel")
    bar.get_by_role("button", name="See what it would do").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Exactly these 2 runs are chosen")
    button = dialog.get_by_role("button", name="Cancel 2")
    expect(button).to_be_disabled()
    dialog.get_by_label("to confirm").fill("2")
    dialog.get_by_label("Reason or comment").fill("incident 7")
    button.click()
    expect(page.locator("[data-later=cancelled]")).to_contain_text("2")
    expect(page.locator(".table-row [data-status=cancelled]")).to_have_count(2)
    tray(page, "2 cancelled")
    assert engine.get(f"/runs/{runs[2]}")["status"] == "running"
    (bulk,) = [each for each in engine.get("/bulk")["items"] if each["reason"] == "incident 7"]
    assert (bulk["done"], bulk["created_by"]) == (2, "console")


def test_the_rest_of_a_stopped_bulk_is_another_one_of_exactly_those(console: Console, engine: Engine) -> None:
    runs = [engine.start("lonely") for _ in range(3)]
    first = engine.post("/bulk", act="cancel", run_ids=runs, rate=0.01, reason="incident 8")["bulk_id"]
    engine.until("its first turn", lambda: engine.get(f"/bulk/{first}")["done"])
    engine.post(f"/bulk/{first}/stop")
    page = console.open(f"/bulk/{first}")
    page.get_by_role("button", name="Do the rest").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Exactly these 2 runs are chosen")
    dialog.get_by_label("to confirm").fill("2")
    dialog.get_by_role("button", name="Cancel 2").click()
    page.wait_for_url(lambda url: first not in url)
    rest = page.url.rpartition("/")[2]
    ids = [item["run_id"] for item in engine.get(f"/bulk/{rest}/items")["items"]]
    assert sorted(ids) == sorted(set(runs) - {engine.get(f"/bulk/{first}/items", outcome="done")["items"][0]["run_id"]})


def test_several_questions_are_decided_with_one_reason_and_each_answers_by_itself(
    console: Console, engine: Engine
) -> None:
    engine.publish('name: nod\ntasks: { ask: { approval: { title: "Well, ${{ input.who }}?" } } }')
    asked = {who: engine.asking("nod", who=who) for who in ("ada", "bob", "cyd")}
    _, formed = engine.asking("refund", amount=5)
    page = console.open("/approvals")
    row = page.locator(f"[data-row='{formed}']")
    expect(row.get_by_role("checkbox")).to_be_disabled()
    expect(row.locator(".choice")).to_have_attribute("title", "its form has to be filled in")
    for who in asked:
        page.locator(f"[data-row='{asked[who][1]}']").get_by_role("checkbox").check()
    bar = page.get_by_role("group", name="One decision of many questions")
    expect(bar).to_contain_text("3 questions chosen")
    bar.get_by_role("button", name="Approve 3").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason or comment").fill("all were asked")
    engine.post(f"/approvals/{asked['bob'][1]}/reject", comment="faster")
    dialog.get_by_role("button", name="Approve 3").click()
    answers = dialog.get_by_role("list", name="Answers")
    expect(answers.locator("[data-outcome=completed]")).to_have_count(2)
    refused = answers.locator("[data-outcome=refused]")
    expect(refused).to_contain_text("Well, bob?")
    expect(refused).to_contain_text(re.compile("rejected|decided"))
    console.shot("-answers")
    console.faults[:] = [fault for fault in console.faults if "409" not in fault]  # what was just shown
    dialog.get_by_role("button", name="Close", exact=True).last.click()
    expect(bar).to_have_count(0)
    told = [engine.get(f"/approvals/{approval}") for _, approval in asked.values()]
    assert [(each["status"], each["comment"]) for each in told] == [
        ("approved", "all were asked"), ("rejected", "faster"), ("approved", "all were asked"),
    ]  # fmt: skip
    engine.until_status(asked["cyd"][0], "completed")


def test_what_nobody_but_an_operator_moves_is_one_press_from_the_overview(console: Console, engine: Engine) -> None:
    """After the seconds that a queue without a worker is given; a task dated back would be handed out anew."""
    engine.publish("name: stranded\ntasks: { wait: { run: shop.notify, queue: nowhere } }")
    stuck = engine.start("stranded")
    asking, _ = engine.asking()  # it waits for a person, for however long
    engine.until("its seconds", lambda: engine.get("/runs", filter="is:stuck workflow:stranded")["items"])
    page = console.open("/")
    tile = page.locator(".tile", has_text="Stuck")
    expect(tile).to_contain_text(re.compile("Stuck[1-9]"))
    tile.click()
    expect(page.get_by_role("button", name="Stuck", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(f"[data-row='{stuck}']")).to_be_visible()
    expect(page.locator(f"[data-row='{asking}']")).to_have_count(0)
    console.open(f"/runs/{stuck}")
    expect(page.locator(".banner [data-code=NO_WORKER]")).to_be_visible()


def test_a_limit_is_changed_while_tasks_wait(console: Console, engine: Engine) -> None:
    engine.put("/pools/press", limit=1)
    runs = [engine.start("print") for _ in range(2)]
    engine.until("the queue of the pool", lambda: engine.get("/pools/press")["waiters"])
    page = console.open("/workers?tab=pools&pool=press")
    expect(page.get_by_role("table", name="Queue of press").locator(f"a[href$='{runs[1]}']")).to_be_visible()
    page.get_by_role("button", name="Limits").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Slots").fill("2")
    dialog.get_by_text("The same from a terminal or a script").click()
    expect(dialog).to_contain_text("headrace set-pool press --limit 2")
    dialog.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_text("Nobody waits.")).to_be_visible()
    expect(page.get_by_role("table", name="Holders of press").locator(f"a[href$='{runs[1]}']")).to_be_visible()


def test_the_gate_says_what_a_publish_leads_to(console: Console, engine: Engine) -> None:
    engine.publish("name: gate\ntasks: { wait: { run: shop.notify, queue: nobody } }")
    run_id = engine.start("gate")
    page = console.open("/publish?workflow=gate")
    editor = page.get_by_label("Definition, as YAML or JSON")
    expect(editor).to_have_value(re.compile("nobody"))
    editor.fill(
        "name: gate\ntasks:\n  wait: { run: shop.notify, queue: nobody }\n  tell: { run: shop.notify, needs: wait }"
    )
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_role("list", name="Difference")).to_contain_text("added tell")
    expect(page.get_by_role("table", name="Runs in flight, by version and status")).to_contain_text("finishes on v1")
    page.get_by_role("button", name="Publish …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 run in flight finish")
    dialog.get_by_role("button", name="Publish", exact=True).click()
    tray(page, "version 2 is the latest")
    expect(page.get_by_text("1 run is still pinned to an older version")).to_be_visible()
    page.get_by_role("button", name="Move to v2").click()
    page.get_by_role("dialog").get_by_role("button", name="Move 1").click()
    expect(page.get_by_role("heading", name="Move to the latest version · 1")).to_be_visible()
    engine.until_status(run_id, "pausing")  # nobody serves its queue: what was handed out has to end first


def test_a_paused_workflow_says_since_when_and_why(console: Console, engine: Engine) -> None:
    engine.publish("name: held\ntasks: { wait: { wait: { for: 1h } } }")
    engine.start("held")
    page = console.open("/workflows/held")
    page.get_by_role("button", name="Pause …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason or comment").fill("the bank is away")
    dialog.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator(".notice")).to_contain_text("the bank is away")
    tray(page, "1 paused")
    page.get_by_role("button", name="Resume …").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume", exact=True).click()
    tray(page, "its runs go on")


CORPUS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "<svg/onload=alert(1)>",
    "javascript:alert(1)",
    "{{constructor.constructor('alert(1)')()}}",
    "</textarea><iframe srcdoc='<script>parent.alert(1)</script>'>",
    "‮evil\u2066",
)


def test_what_users_write_is_only_ever_text(console: Console, engine: Engine) -> None:
    evil = " ".join(CORPUS)
    document = {
        "name": "evil",
        "description": evil,
        "input": {"type": "object", "properties": {evil: {"type": "string", "title": evil, "description": evil}}},
        "tasks": {
            "ask": {"approval": {"title": evil[:200], "approvers": [evil[:200], "<script>alert(1)</script>"]}},
            "charge": {"run": "shop.charge", "with": {"order_id": evil, "amount": evil}},
        },
        "output": {"evil": "${{ input }}"},
    }
    answer = engine.http.post("/workflows", json=document)
    assert answer.is_success, answer.text
    run_id = engine.start("evil", **{evil: evil})
    engine.until("the letter", lambda: engine.get("/dead-letters", filter=f"run:{run_id}")["items"])
    letter = engine.get("/dead-letters", filter=f"run:{run_id}")["items"][0]
    approval = next(each for each in engine.get("/approvals")["items"] if each["run_id"] == run_id)
    assert engine.http.post(
        f"/approvals/{approval['approval_id']}/approve",
        json={"comment": evil},
        headers={"Headrace-Actor": "<script>alert(1)</script>"},
    ).is_success
    pages = [f"/runs/{run_id}?tab={tab}&task=charge" for tab in ("timeline", "graph", "history", "data", "definition")]
    pages += [f"/approvals?status=approved&id={approval['approval_id']}", f"/dead-letters/{letter['dead_letter_id']}"]
    pages += ["/dead-letters?tab=letters", "/", "/workflows/evil?tab=launch", "/workflows/evil?tab=definition"]
    for path in pages:
        page = console.open(path)
        expect(page.locator("main")).to_contain_text("alert(1)" if "timeline" not in path and path != "/" else "")
        assert page.locator("main script, main iframe, main img, main a[href^='javascript:']").count() == 0
