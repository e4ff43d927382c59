"""`python -m headrace.cli`: the same as `headrace`, for an interpreter that is named."""

from headrace.cli import main

if __name__ == "__main__":
    main()
