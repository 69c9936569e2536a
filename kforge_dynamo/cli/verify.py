"""`kforge verify TASK CANDIDATE`: is a kernel right, and how fast is it?"""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from kforge_dynamo.cli.files import CandidatePath, TaskPath, device_of, load_candidate, load_task
from kforge_dynamo.cli.verdicts import EXIT_CODES, as_data, exit_table, show
from kforge_dynamo.evaluation import Evaluator, Order
from kforge_dynamo.sandbox.profile.instruments import BY_NAME

Untimed = Annotated[bool, typer.Option("--no-time", help="Only check; the baseline is not compiled.")]
Stage = Annotated[str, typer.Option(help="final: five seeds a class and the whole domain; search: one seed, the sizes alone")]
Seconds = Annotated[float, typer.Option("--timeout", help="seconds that one candidate may take")]
Mode = Annotated[str, typer.Option(help="the torch.compile mode of the baseline")]
OnDevice = Annotated[str | None, typer.Option("--device", help="cpu, cuda or cuda:N; else the task's")]
Profiles = Annotated[
    list[str] | None,
    typer.Option("--profile", metavar="NAME", help=f"also run {', '.join(BY_NAME)} on a kernel that passed; may be repeated"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=exit_table())(verify)


def verify(
    task: TaskPath,
    candidate: CandidatePath,
    as_json: AsJson = False,
    untimed: Untimed = False,
    stage: Stage = "final",
    timeout: Seconds = 120.0,
    mode: Mode = "default",
    device: OnDevice = None,
    profile: Profiles = None,
) -> None:
    """Judge one kernel for one task, and end with status 0 only where it passed."""
    assignment, proposed = load_task(task), load_candidate(candidate)
    place, target = device_of(assignment, device)
    evaluator = Evaluator(target, str(place))
    try:
        trial = evaluator.judge(assignment, proposed, Order(stage, not untimed, timeout, mode, tuple(profile or ())))
    finally:
        evaluator.close()
    if as_json:
        typer.echo(json.dumps(as_data(assignment, trial), indent=1))
    else:
        show(Console(), assignment, trial)
    raise typer.Exit(EXIT_CODES[trial.verdict.status])
