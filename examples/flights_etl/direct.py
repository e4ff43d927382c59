"""The same totals in one go with pandas, as somebody without a workflow would: what the report is checked against."""

import pandas
from flights_etl.source import flights_file
from flights_etl.warehouse import Totals


def compute() -> dict[str, Totals]:
    """By carrier."""
    columns = ["carrier", "dep_time", "dep_delay", "arr_delay", "distance"]
    rows = pandas.read_csv(flights_file(), usecols=columns)
    groups = rows.groupby("carrier")
    table = pandas.DataFrame(
        {
            "flights": groups.size(),
            "cancelled": groups["dep_time"].apply(lambda column: int(column.isna().sum())),
            "departure_delay": groups["dep_delay"].mean(),
            "arrival_delay": groups["arr_delay"].mean(),
            "miles": groups["distance"].sum(),
        }
    )
    return {str(carrier): _totals(row) for carrier, row in table.iterrows()}


def _totals(row: "pandas.Series[float]") -> Totals:
    return Totals(
        flights=int(row["flights"]),
        cancelled=int(row["cancelled"]),
        departure_delay=float(row["departure_delay"]),
        arrival_delay=float(row["arrival_delay"]),
        miles=int(row["miles"]),
    )
