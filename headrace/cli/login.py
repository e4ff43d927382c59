"""`headrace login`: a link that logs a browser in to the console."""

from headrace.cli.api import Api
from headrace.cli.command import command
from headrace.cli.terminal import Terminal


@command("login", panel="Access", epilog="Exit codes: 0 printed, 5 API away, 6 the token is none.")
def login(terminal: Terminal, api: Api) -> None:
    """Print a link that logs a browser in to the console as you: once, within ten minutes."""
    url = login_url(api)
    terminal.show({"url": url}, lambda: url)


def login_url(api: Api) -> str:
    return f"{api.url}{api.post('/login-codes')['path']}"
