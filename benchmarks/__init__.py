"""What is measured, and how to repeat it: `make bench`, `make bench QUICK=1`. docs/performance.md has the results and
their meaning.

Real Apache Kafka (KRaft) and real Postgres (fsync and synchronous_commit on), everything on this machine, loopback
only.
"""
