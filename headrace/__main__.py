"""`headrace`, and `python -m headrace` for an interpreter that is named.

`headrace worker` begins as a parent, which loads nothing of the command line.
"""

import sys


def main() -> None:
    """The `headrace` command."""
    if sys.argv[1:2] == ["worker"]:
        from headrace import parent

        if parent.is_wanted():
            sys.exit(parent.Parent().run())
    from headrace.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
