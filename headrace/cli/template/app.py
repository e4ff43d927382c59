"""Three tasks. A worker runs them; `workflow.yaml` says in which order."""

from dataclasses import dataclass

from headrace import Context, task


@dataclass
class Person:
    name: str
    language: str


@task("hello.look_up")
def look_up(name: str) -> Person:
    """A plain function. Its parameters are read from the run's input, by name, and checked."""
    return Person(name, "de" if name.endswith("a") else "en")


@task("hello.compose")
async def compose(ctx: Context, person: Person) -> str:
    """An async function. The first attempt fails on purpose: the engine tries again a second later."""
    if ctx.attempt == 1:
        raise ConnectionError("the dictionary did not answer")
    word = {"de": "Guten Tag", "en": "Hello"}[person.language]
    return f"{word}, {person.name}!"


@task("hello.send")
def send(ctx: Context, text: str) -> dict[str, str]:
    """Send `ctx.effect_key` along with a real call: it is the same in every attempt, so nothing is sent twice."""
    ctx.log.info("sending", text=text)
    return {"sent": text, "key": ctx.effect_key}
