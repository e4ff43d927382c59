"""Public bugs of other engines as tests of this one: each is named after its case, `test_b01_…`.

`../cases.md` says where every case is shown, or why it cannot be yet. Grouped by what they need to run: the pure
machine; the engine's own agents, sweeps and API on a real Postgres (`world`); a worker on a real Kafka; the whole set
of processes. A case that another folder of the tests shows is not repeated here, only what it leaves out.
"""
