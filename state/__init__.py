"""The Postgres state store: schema, migrations, named SQL.

A function in here takes an open transaction (or a connection in one) and never opens one, except where its docstring
says so. SQL stands in `sql/`, one file per table, each statement under its name.
"""
