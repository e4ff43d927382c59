"""`python -m api.document`: print the OpenAPI document, from which the console's types are made. Needs no database."""

import json
import sys

from pydantic import SecretStr

from api.app import create_app
from api.settings import ApiSettings


def main() -> None:
    settings = ApiSettings(postgres="", secret=SecretStr("no secret is used by a document"))
    json.dump(create_app(settings).openapi(), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
