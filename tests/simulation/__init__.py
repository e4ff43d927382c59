"""Deterministic simulation: the engine's own code on one virtual clock, with everything that can go wrong on purpose.

One seed is one order of events: which lane runs next, how long a request takes, what is lost, doubled or late, who is
killed at which yield point. `python -m tests.simulation --from S --seeds 1 --trace` plays a seed again and prints it.

Real        `streams` as `python -m streams` runs it on the plain host: transport, membership, ownership, run agent with
            its cache, session agent, sweeps, topics; `connectors`: relay, ownership, slot, publisher; the worker:
            intake, control, hold, session, execution, reports, heartbeats, and its parent's last report; machine,
            store, outbox, starts, decisions. Its threads are lanes; nothing in it knows.
Modelled    `scheduler`, `primitives`, `loop`   time, threads, event loops
            `postgres`, `statements`            rows, locks, log; each named statement told again in Python, by its noun
            `postgres_clients`                  psycopg, the pipe, the replication stream
            `kafka`, `kafka_clients`            logs, groups; consumer, producer, admin client
            `seams`                             what is replaced where
Left out    Faust, sync bodies (their thread pool), triggers, the HTTP layer above `state`, SQL and binary arrays, the
            wire protocols. Those meet the real Postgres and Kafka in `tests/integration` and `tests/faults`.

`nemesis` makes the faults, `workloads` the load, `ledger` is the world outside, `checker` and `probes` say what was
violated, `planted` holds the bugs that must be found. A process is killed at a yield point: every request before it may
have taken effect, nothing after it does. Virtual time costs nothing, so leases and backoffs are those of production.
"""
