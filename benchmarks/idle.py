"""What the processes use while nothing runs, in percent of a core."""

import time

from benchmarks.session import Session


def measure(session: Session) -> None:
    sampler, seconds = session.bench.sampler(), session.sizes.idle_seconds
    sampler.sample()
    time.sleep(seconds)
    sampler.sample()
    used = {part: cpu / seconds * 100 for part, cpu in sampler.used().items()}
    ours = sum(cpu for part, cpu in used.items() if part != "broker" and not part.startswith("postgres"))
    rows = [("our processes", f"{ours:.2f}"), *((part, f"{cpu:.2f}") for part, cpu in used.items())]
    found = [{"percent_of_a_core": used, "memory_mib": sampler.sample_memory()}]
    session.report.add("idle", f"percent of a core over {seconds:g} s", rows, found)
