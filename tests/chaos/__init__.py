"""Chaos: every process of Headrace on a real Kafka and Postgres, a nemesis that breaks them at random, and an oracle
outside.

    python -m tests.chaos --seconds 600 --seed 1
    python -m tests.chaos --seconds 60 --seed 7 --kinds F01,F20 --no-checker --json report.json

What stands where:

    system      the processes under test, with a fault proxy in front of Kafka and Postgres for each part
    ledger      the effect ledger: a service of its own that notes every call of an effect, with fsync
    app         the bodies of the workflows; workload: the workflows, and what is started
    driver      the clients: starts, decisions, cancels, replays; each call with its outcome in the client log
    record_sender  somebody else's system, whose records say signals
    operators   those who act on many at once: pauses of workflows and queues, bulks, versions; and the pools
    pool_watch  who holds which slot, seen again and again
    nemesis     chooses faults by seed; faults: the kinds, each with a count that proves it fired
    dump        the final state, read after everything is healed and quiet
    checker     one pure function over ledger, client log and dump: the violations
    report      the table by kind, recovery times, and the last line
"""
