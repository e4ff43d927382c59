"""What is released: a program that greets, and tells its version when asked for its health."""

import json
import sys

import greeting


def main(arguments: list[str]) -> int:
    if arguments == ["--health"]:
        print(json.dumps({"status": "ok", "version": greeting.VERSION}))
    else:
        print(greeting.greet(" ".join(arguments) or "world"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
