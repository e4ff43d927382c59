"""The same work on what users would pick instead: `make bench-peers`, `python -m benchmarks.peers`.

Restate, Absurd, DBOS, PgQueuer, Temporal's development server and Prefect, each in an environment of its own under
`.scratch/peers` (none is a dependency of ours), and Headrace, in turns on one machine: peer, Headrace, peer, Headrace.
README.md beside this file says what is compared, and what is not comparable.

    settings        pinned versions, and the arguments of every peer for each workload
    environments    install them
    measurement     one script, from its start to the end of all that it started
    headrace        the workloads on Headrace, as a script like the others
    report          the tables, with ratios of neighbours
    scripts/        one for each peer; they run under the peer's own Python
"""
