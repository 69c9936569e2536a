"""`kforge`: assembles the commands. What kforge raises on purpose ends as one sentence on stderr and status 1."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.core

from kforge_dynamo.cli import (
    cache,
    demo,
    doctor,
    evaluate,
    explain,
    language_models,
    mcp_server,
    place,
    report,
    runs,
    show,
    task,
    travel,
    verify,
    warm,
    why,
)
from kforge_dynamo.errors import KforgeError
from kforge_dynamo.settings import Settings, configure_logging
from kforge_dynamo.targets import kforge_version

COMMANDS = (
    demo,
    warm,
    explain,
    why,
    show,
    task,
    verify,
    evaluate,
    language_models,
    runs,
    mcp_server,
    report,
    place,
    doctor,
    travel,
    cache,
)
"""The modules whose `register(app)` adds a command, in the order of the help text."""


class _Sentences(typer.core.TyperGroup):
    """Shows a `KforgeError` as its text alone."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KforgeError as error:
            typer.echo(f"kforge: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from error


app = typer.Typer(
    name="kforge",
    cls=_Sentences,
    help="Kernels for the GEMM + epilogue regions of a model, found, proven and timed on this device.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kforge {kforge_version()}")
        raise typer.Exit


@app.callback()
def _start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    if context.invoked_subcommand != "doctor":  # which reports a wrong environment name among other things
        configure_logging(Settings.parse()[0])


for _module in COMMANDS:
    _module.register(app)


if __name__ == "__main__":
    app()
