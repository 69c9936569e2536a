"""`kforge runs`: the recorded runs of the agents: list, show, replay, resume."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kforge_dynamo.agents.campaign import problem_of, setup_of
from kforge_dynamo.agents.generator import Generator
from kforge_dynamo.agents.loop import Loop, Means
from kforge_dynamo.agents.model import Model
from kforge_dynamo.agents.opening import EndOfRecord, entry_of, open_model
from kforge_dynamo.agents.pictures import pictures
from kforge_dynamo.agents.registry import read_user
from kforge_dynamo.agents.search import Clock, Evaluate, Problem, SearchResult
from kforge_dynamo.agents.transcript import Recorded, Transcript, comparable, cut, read, runs
from kforge_dynamo.cli.agents import runs_folder
from kforge_dynamo.codegen.builtin import BuiltinGenerator
from kforge_dynamo.errors import RecordError, SettingsError
from kforge_dynamo.evaluation import Evaluator, Order
from kforge_dynamo.forge import Bench, Miss, settle
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.outcome import Trial, Winner
from kforge_dynamo.records.target import Target
from kforge_dynamo.settings import Settings, config_folder
from kforge_dynamo.sites import store_of
from kforge_dynamo.store import key_of
from kforge_dynamo.targets import detect, provenance

RunWord = Annotated[str, typer.Argument(metavar="RUN", help="a run's name or the beginning of it, or its folder")]
Trials = Annotated[str, typer.Option("--trials", help="recorded: no device is needed; live: evaluate again here")]

runs_app = typer.Typer(help="Recorded runs of the agents.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.add_typer(runs_app, name="runs")


def _root() -> Path:
    return runs_folder(store_of(Settings.parse()[0]))


def find_run(word: str) -> Path:
    """The folder of a run. Raises: SettingsError where none or several are meant."""
    path = Path(word).expanduser()
    given = runs(path) if path.is_dir() else []
    found = given or [item for item in runs(_root()) if item.name.startswith(word)]
    if len(found) != 1:
        raise SettingsError(f"{word!r} names {len(found)} runs; `kforge runs list` shows those in {_root()}")
    return found[0]


@runs_app.command("list")
def list_runs() -> None:
    """Every run with its task, model, steps, cost and ending."""
    table = Table(box=None, pad_edge=False)
    for column in ("run", "task", "model", "strategy", "steps", "best", "spent", "ended"):
        table.add_column(column, overflow="fold")
    folders = runs(_root())
    for folder in folders:
        try:
            recorded = read(folder)
        except RecordError as error:
            table.add_row(folder.name, "", "", "", "", "", "", escape(str(error)))
            continue
        spent = [recorded.spent(item["step"]) for item in recorded.events if item["event"] == "spent"]
        cost = spent[-1].text(recorded.header.budget) if spent and spent[-1] is not None else "-"
        setup = setup_of(recorded.header, entry_of("exchange:.", {}))
        cells = (folder.name, recorded.header.assignment.title, recorded.header.model, setup.plan.strategy, str(recorded.steps))
        table.add_row(*map(escape, (*cells, _best(recorded), cost, recorded.ending or "not ended: `kforge runs resume`")))
    console = Console()
    console.print(table if folders else f"No runs in {escape(str(_root()))}.")


def _best(recorded: Recorded) -> str:
    times = [
        trial.timings[0].candidate.median_us
        for step in range(recorded.steps + 1)
        for trial in recorded.trials(step, "search")
        if trial.timings
    ]
    return f"{min(times):.1f} us" if times else "-"


@runs_app.command("show")
def show_run(
    run: RunWord,
    step: Annotated[int | None, typer.Option(help="one step in full: prompt, reply, kernels, trials")] = None,
) -> None:
    """What happened, one line an event; with --step everything of it."""
    recorded = read(find_run(run))
    for item in recorded.events:
        if step is None:
            typer.echo(f"{item.get('at', '')} step {item['step']:3} {item['event']:10} {_words(item)}")
        elif item["step"] == step:
            typer.echo(f"=== {item['event']} {item.get('role', '')}")
            typer.echo(_whole(item))


def _words(item: dict[str, Any]) -> str:
    event = item["event"]
    if event == "trial":
        verdict = item["trial"]["verdict"]
        return f"{item['stage']} #{item['index']}: {verdict['status']} {' '.join(verdict['evidence'].split())[:100]}"
    if event == "proposal":
        return f"{len(item['candidates'])} kernels; {item['idea']} {'; '.join(item['objections'])}"
    if event == "diagnosis":
        return f"#{item['attempt']}: {item['diagnosis']['limit']}"
    if event in ("prompt", "reply", "failure"):
        text = item.get("user") or item.get("sentence") or item.get("reply", {}).get("text", "")
        return f"{item['role']}: {len(text)} letters: {' '.join(text.split())[:80]}"
    return str(item.get("reason", ""))


def _whole(item: dict[str, Any]) -> str:
    if item["event"] == "prompt":
        return f"{item['system']}\n\n{item['user']}"
    if item["event"] == "reply":
        return str(item["reply"]["text"])
    if item["event"] == "trial":
        verdict = item["trial"]["verdict"]
        return f"{verdict['status']}: {verdict['where']}\n{verdict['evidence']}\n{item['trial']['candidate']['source']}"
    return "\n".join(f"{name}: {value}" for name, value in item.items() if name not in ("event", "at"))


@runs_app.command("replay")
def replay(run: RunWord, trials: Trials = "recorded") -> None:
    """Take the decisions of a run again: from its recorded trials, or with trials made here."""
    if trials not in ("recorded", "live"):
        raise SettingsError(f"trials {trials!r}: expected recorded or live")
    recorded = read(find_run(run))
    if trials == "live":
        _settle(recorded, EndOfRecord(recorded.header.model), None, lambda *a, **k: None, live=True)
        return
    events: list[dict[str, Any]] = []

    def write(event: str, step: int, **data: Any) -> None:
        events.append({"event": event, "step": step} | data)

    means = Means(EndOfRecord(recorded.header.model), _analyst(recorded), None, write, _say, time.monotonic, recorded)
    loop = Loop(problem_of(recorded.header), setup_of(recorded.header, entry_of("replay:.", {})), means)
    loop.run(tuple(recorded.trials(0, "search")))
    mine, theirs = comparable(events), comparable(recorded.events)
    for number, (new, old) in enumerate(zip(mine, theirs, strict=False)):
        if _decision(new) != _decision(old):
            typer.echo(f"event {number} differs: {new['event']} of step {new['step']}, recorded was {old['event']}", err=True)
            raise typer.Exit(1)
    if len(mine) < len(theirs):
        typer.echo(f"the replay ended after {len(mine)} of {len(theirs)} events: {loop.reason}", err=True)
        raise typer.Exit(1)
    reworded = sum(new != old for new, old in zip(mine, theirs, strict=False))
    words = f", {reworded} prompts with words of today" if reworded else ""
    typer.echo(f"all {len(theirs)} recorded events came out the same{words}; {loop.reason}")


def _decision(item: dict[str, Any]) -> dict[str, Any]:
    """An event without the words of its prompt, which change with kforge while what follows from the reply does not."""
    return {name: value for name, value in item.items() if item["event"] != "prompt" or name not in ("system", "user")}


@runs_app.command("resume")
def resume(run: RunWord) -> None:
    """Go on with a run that was killed, or whose model failed: with the same model and budgets, in the same folder."""
    folder = find_run(run)
    recorded = read(folder)
    header = recorded.header
    user = read_user(config_folder())
    model = open_model(header.model, user)
    analyst = None if header.analyst == "rules" else open_model(header.analyst, user)
    cut(folder, recorded)
    transcript, left = Transcript(folder), [len(recorded.events)]

    def write(event: str, step: int, **data: Any) -> None:
        """What is in the record already is not written again."""
        left[0] -= 1
        if left[0] < 0:
            transcript.write(event, step, **data)

    _settle(recorded, model, analyst, write, live=False)


def _analyst(recorded: Recorded) -> Model | None:
    return None if recorded.header.analyst == "rules" else EndOfRecord(recorded.header.analyst)


def _say(text: str) -> None:
    typer.echo(f"  {text}")


def _target(recorded: Recorded, live: bool) -> Target:
    """This machine's device for the run. Raises: SettingsError where it is none for it."""
    wanted = recorded.header.target
    if wanted.kind == "cuda" and not torch.cuda.is_available():
        raise SettingsError(f"the run is for {wanted.name}; no GPU is seen here (`--trials recorded` needs none)")
    target = detect(torch.device(wanted.kind))
    if target is None or (target.name != wanted.name and not live):
        raise SettingsError(f"the run is for {wanted.name}, this is {target.name if target else 'unknown'}; it cannot go on here")
    return target


def _settle(recorded: Recorded, model: Model, analyst: Model | None, write: Callable[..., None], *, live: bool) -> None:
    """Runs the loop with trials made here, stores the answer, prints it."""
    header, target = recorded.header, _target(recorded, live)
    assignment = header.assignment
    device = "cpu" if target.kind == "cpu" else f"{target.kind}:{torch.cuda.current_device()}"
    evaluator = Evaluator(target, device)

    def search(problem: Problem, generator: Generator, evaluate: Evaluate, clock: Clock) -> SearchResult:
        setup = setup_of(header, entry_of(header.model, read_user(config_folder())))
        means = Means(model, analyst, evaluate, write, _say, time.monotonic, recorded, live, pictures)
        seeds = tuple(recorded.trials(0, "search"))
        if live:
            seeds = tuple(evaluate(trial.candidate, "search", clock.left_s) for trial in seeds)
        return Loop(problem if live else problem_of(header), setup, means).run(seeds)

    def evaluate(miss: Miss, candidate: Candidate, stage: str, seconds: float) -> Trial:
        return evaluator.judge(assignment, candidate, Order(stage, True, max(seconds, 1.0), "default"))

    key = key_of(assignment.task, target, assignment.numerics)
    miss = Miss(key, assignment.task, assignment.sizes, assignment.domain, assignment.title, "wall")
    bench = Bench(
        target=target,
        numerics=assignment.numerics,
        generator=BuiltinGenerator(),
        evaluate=evaluate,
        provenance=lambda language: provenance(language, LANGUAGES[language].toolchain(), target),
        search=search,
    )
    try:
        answer, result = settle(miss, bench, header.budget.seconds)
    finally:
        evaluator.close()
    if isinstance(answer, Winner):
        store_of(Settings.parse()[0]).put_winner(answer)
    best = result.best
    if best is None:
        typer.echo("no kernel passed the final stage", err=True)
        raise typer.Exit(1)
    verdict = "stored as the winner" if isinstance(answer, Winner) else f"verified, and no winner here: {answer.reason}"
    typer.echo(f"best: {best.timings[0].speedup:.2f}x of Inductor's region, {verdict}")
