"""The graph of `flights_etl`, built in Python because the data decide how wide it is: one transform per carrier.

python examples/flights_etl/workflow.py                   # as JSON
python examples/flights_etl/workflow.py --publish         # to the API that HEADRACE_API names
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import Client, Workflow, build
from headrace.settings import ClientSettings

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that this file runs alone
from flights_etl.source import read_airlines

INPUT: dict[str, Any] = {
    "type": "object",
    "required": ["folder"],
    "properties": {
        "folder": {"type": "string", "minLength": 1, "description": "where the run keeps its files"},
    },
}


def build_workflow(carriers: Sequence[str]) -> Workflow:
    """carriers: two-letter codes, as in the data. Tasks hand on paths, never rows."""
    flights = build("flights_etl", description="All flights out of New York in 2013, by carrier.", input=INPUT)
    flights.task("extract", run="flights.extract", queue="slow", retry=5, timeout="5m")
    flights.task(
        "validate",
        run="flights.validate",
        needs="extract",
        with_={"parts": "${{ tasks.extract.output.parts }}", "carriers": list(carriers)},
        queue="slow",
        retry=5,
        timeout="5m",
    )
    names = {carrier: f"transform_{carrier}" for carrier in carriers}
    for carrier, name in names.items():
        flights.task(
            name,
            run="flights.transform",
            needs="validate",
            with_={"part": f"${{{{ tasks.extract.output.parts['{carrier}'] }}}}"},
            queue="slow",
            retry=5,
            timeout="5m",
        )
    flights.task(
        "load",
        run="flights.load",
        needs=list(names.values()),
        with_={
            "folder": "${{ input.folder }}",
            "parts": [f"${{{{ tasks.{name}.output.path }}}}" for name in names.values()],
        },
        queue="slow",
        retry=5,
        timeout="5m",
    )
    flights.task(
        "report",
        run="flights.report",
        needs="load",
        queue="slow",
        retry=5,
        timeout="1m",
    )
    return flights.publishable()


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the workflow as JSON, or publish it.")
    parser.add_argument("--publish", action="store_true", help="to the API that HEADRACE_API names")
    workflow = build_workflow(list(read_airlines()))
    if not parser.parse_args().publish:
        print(workflow.canonical().decode())
        return
    with Client.from_settings(ClientSettings()) as client:
        print(client.publish(workflow))


if __name__ == "__main__":
    main()
