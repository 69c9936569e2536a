"""`kforge models`: which language models can be asked, and whether one answers."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kforge_dynamo.agents.model import Ask
from kforge_dynamo.agents.opening import entry_of, open_model
from kforge_dynamo.agents.registry import BUILTIN, COMMON, FILE, ModelEntry, read_user
from kforge_dynamo.errors import ModelError
from kforge_dynamo.settings import config_folder, model_key

_TEST_S = 60.0
_QUESTION = Ask(0, "generator", "Answer with one word.", "Which word follows `ready, steady`?", 2000)

models = typer.Typer(help="Language models: which there are, and whether one answers.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.add_typer(models, name="models")


@models.command("list")
def list_models() -> None:
    """Every name for `kforge warm --model`, the user's own first."""
    user = read_user(config_folder())
    table = Table(box=None, pad_edge=False)
    for column in ("name", "model", "key", "context", "USD per million tokens in/out", "sees"):
        table.add_column(column, overflow="fold")
    for name, entry in {**COMMON, **user}.items():
        table.add_row(name, entry.model, _key(entry), f"{entry.context_tokens:,}", _price(entry), "yes" if entry.vision else "")
    table.add_row(BUILTIN, "the built-in generator alone", "", "", "free", "")
    table.add_row("exchange:DIR", "whoever answers the prompts in that folder: a person, a coding agent", "", "", "", "")
    table.add_row("scripted:FILE", "replies from a folder of texts or a JSON list", "", "", "free", "")
    table.add_row("replay:RUN", "the replies of a recorded run, evaluated again", "", "", "free", "")
    console = Console()
    console.print(table)
    console.print(f"Your own go into {config_folder() / FILE}; litellm's provider/model names work as they are.", highlight=False)


def _key(entry: ModelEntry) -> str:
    if not entry.key:
        return "none needed"
    return entry.key if model_key(entry.key) else f"{entry.key} (not set)"


def _price(entry: ModelEntry) -> str:
    if entry.input_price is None or entry.output_price is None:
        return "litellm's"
    return f"{entry.input_price:g} / {entry.output_price:g}"


@models.command("test")
def test_model(
    name: Annotated[str, typer.Argument(help="a name of `kforge models list`")],
    timeout: Annotated[float, typer.Option(help="seconds to wait")] = _TEST_S,
) -> None:
    """Ask one short question; says what came back, in which time, at which price. Status 1 where nothing usable did."""
    if name == BUILTIN:
        typer.echo("builtin: works without a model")
        return
    user = read_user(config_folder())
    entry_of(name, user)
    model = open_model(name, user)
    started = time.monotonic()
    try:
        reply = model.ask(_QUESTION, timeout)
    except ModelError as error:
        typer.echo(f"{name}: {error.kind}: {error}", err=True)
        raise typer.Exit(1) from error
    price = f"{reply.money:.6f} USD" if reply.money is not None else "price unknown"
    counts = f"{reply.prompt_tokens} + {reply.reply_tokens} tokens" if reply.prompt_tokens is not None else "tokens unknown"
    words = " ".join(reply.text.split())[:60]
    typer.echo(f"{name}: {words!r} after {time.monotonic() - started:.1f} s, {counts}, {price}")
