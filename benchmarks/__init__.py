"""What is measured, and how to repeat it: `make bench`, `make bench QUICK=1`, `make bench-peers`, `make guard`.
docs/performance.md has the results and their meaning.

Real Apache Kafka (KRaft) and real Postgres (fsync and synchronous_commit on), everything on this machine, loopback
only.

    __main__     the workloads by name, and what each is
    sizes        how much each does
    session      one command: the servers (rig), the stacks on them (bench), what they showed (report)
    saturation, latency, wide, timers, recovery, history, reads, growth, payloads: W1 to W9, and idle, overload, backlog
    console, watched: the operator's console in a real browser (browser), and what it costs the engine
    aged         a database with a million finished runs
    load, callers  processes that start runs: as the trigger agent does it, and over HTTP
    peers/       the same work on what users would pick instead
    hot_path, guard  the Python of a step, without servers, against the commit before
"""
