"""The bodies of `demo_follow_up`: morning → draft → the owner agrees → mail and CRM → a reply, or a reminder.

Drafting goes to the queue `slow` and what acts outside to `io`, so that neither waits for the other. Each effect has
its own key, the same for every attempt.
"""

import os
import sys
from pathlib import Path
from typing import Any

from headrace import Context, did_not_happen, happened, task

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from demo_follow_up.outside import Outside


def outside() -> Outside:
    return Outside(Path(os.environ.get("FOLLOW_UP_DATA", ".headrace/demo_follow_up")))


@task("follow_up.draft", queue="slow")
def draft(name: str, topic: str, owner: str) -> dict[str, str]:
    """Where a language model would be asked: slow, changes nothing outside, and may be asked again."""
    return {"text": f"Dear {name},\n\nthank you for your interest in {topic}. When would suit you?\n\n{owner}"}


@task("follow_up.send_mail", queue="io")
def send_mail(ctx: Context, recipient: str, text: str) -> dict[str, str]:
    with ctx.effect() as key:
        return {"message_id": outside().do("mail", key, recipient=recipient, text=text)}


@task("follow_up.find_mail", queue="io")
def find_mail(ctx: Context) -> dict[str, Any]:
    """Whether the mail of an attempt that ended without a word was sent: it is never sent blindly again."""
    message_id = outside().find("mail", ctx.effect_key)
    return did_not_happen() if message_id is None else happened({"message_id": message_id})


@task("follow_up.note_in_crm", queue="io")
def note_in_crm(ctx: Context, email: str, note: str) -> None:
    with ctx.effect() as key:
        outside().do("crm", key, email=email, note=note)


@task("follow_up.notify_owner", queue="io")
def notify_owner(ctx: Context, owner: str, text: str) -> None:
    with ctx.effect() as key:
        outside().do("messenger", key, owner=owner, text=text)
