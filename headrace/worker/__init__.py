"""The worker: takes commands, runs bodies, reports with the token it was given. It talks to Kafka and never to
Postgres.

intake      a thread reads commands in whole polls and commits them as received
hold        on the event loop: everything received and not answered yet, waiting or in a slot
execution   runs one body, async on the loop or sync in a thread of its own (`threads`)
reports     the answers of a turn leave as one batch
session     the lease: counted from when a heartbeat was sent; without an answer for that long, the worker fences itself
control     a thread reads what the engine tells every worker: renewed, abort
"""

from headrace.worker.worker import Worker

__all__ = ["Worker"]
