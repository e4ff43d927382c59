"""A calibration of the machine in the same minute: single-row commits per second of pgbench with 8 clients."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from headrace.embedded.binaries import find_binaries
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.errors import ConfigurationError

SCRIPT = "\\set id random(1, 100000)\nUPDATE bench_row SET n = n + 1 WHERE id = :id;\n"


def single_row_commits(postgres: EmbeddedPostgres, seconds: int) -> float:
    """Commits per second of single-row updates. Makes its own database beside the one that is measured."""
    program = _pgbench()
    script = Path(postgres.socket_dir) / "bench.sql"
    common = ["-h", "127.0.0.1", "-p", str(postgres.port), "-U", "postgres"]
    psql = [str(program.with_name("psql")), *common, "-q", "-d"]
    subprocess.run(
        [*psql, "postgres", "-c", "DROP DATABASE IF EXISTS pgbench", "-c", "CREATE DATABASE pgbench"],
        check=True,
        env={**os.environ, "PGOPTIONS": "-c client_min_messages=warning"},  # the first time there is none to drop
    )
    table = "CREATE TABLE bench_row (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 60)"
    fill = "INSERT INTO bench_row SELECT i, 0 FROM generate_series(1, 100000) i"
    subprocess.run([*psql, "pgbench", "-c", table, "-c", fill], check=True)
    script.write_text(SCRIPT)
    script.chmod(0o644)
    run = [
        str(program),
        *common,
        "-n",
        "-c",
        "8",
        "-j",
        "2",
        "-T",
        str(seconds),
        "-M",
        "prepared",
        "-f",
        str(script),
        "pgbench",
    ]
    told = subprocess.run(run, check=True, capture_output=True, text=True).stdout
    found = re.search(r"^tps = ([\d.]+)", told, re.MULTILINE)
    if found is None:
        raise ConfigurationError(f"pgbench told no rate: {told}")
    return float(found.group(1))


def _pgbench() -> Path:
    for place in (find_binaries().postgres.with_name("pgbench"), shutil.which("pgbench")):
        if place and Path(place).exists():
            return Path(place)
    raise ConfigurationError("pgbench is not beside the Postgres binaries and not on PATH")
