"""`kforge show TASK`: one region as text, or as a program that computes it, compiles it with kforge and compares with fp64."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from kforge_dynamo.cli.cache import CacheDir, store_for
from kforge_dynamo.cli.dossier import reference
from kforge_dynamo.cli.files import load_task
from kforge_dynamo.errors import RecordError, StoreError
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.codec import from_text
from kforge_dynamo.records.outcome import Winner
from kforge_dynamo.records.task import Task
from kforge_dynamo.semantics import pytorch
from kforge_dynamo.semantics.show import show as show_task
from kforge_dynamo.store import Store
from kforge_dynamo.store.explain import known_numerics
from kforge_dynamo.store.ship import task_name

TaskWord = Annotated[
    str, typer.Argument(metavar="TASK", help="a task file, or the first digits of a task or of a winner in the cache")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command()(show)


def show(
    task: TaskWord,
    repro: Annotated[bool, typer.Option("--repro", help="Print a program that can be run and sent to somebody.")] = False,
    cache_dir: CacheDir = None,
) -> None:
    """Print one region: what it computes, or a program that shows what kforge makes of it."""
    found = assignment_of(task, cache_dir)
    if repro:
        typer.echo(program(found))
        return
    sizes = ", ".join(f"{axis} = {size}" for axis, size in zip(found.task.axes, found.sizes, strict=True))
    typer.echo(f"{found.title}, for {found.device} at precision {found.numerics.fp32}, {sizes}\n\n{show_task(found.task)}")


def assignment_of(word: str, cache_dir: str | None) -> Assignment:
    """The task that `word` names: a file, or digits of a stored winner or its task. Raises: StoreError, SettingsError."""
    if Path(word).exists():
        return load_task(Path(word))
    return _stored(store_for(cache_dir), word.lower())


def _stored(store: Store, prefix: str) -> Assignment:
    found: dict[tuple[str, str], Winner] = {}
    for _, entry in store.entries():
        if isinstance(entry.record, Winner) and prefix and (entry.digest.startswith(prefix) or entry.key.task.startswith(prefix)):
            found.setdefault((entry.key.task, entry.key.numerics), entry.record)
    if len(found) != 1:
        what = "no stored winner and no file has" if not found else f"{len(found)} stored tasks have"
        raise StoreError(f"{what} the name {prefix!r}; kforge cache list shows the winners, kforge task export makes task files")
    return _assignment(next(iter(found.values())))


def _assignment(winner: Winner) -> Assignment:
    """The task of a stored winner, at the size in the middle of its range. Raises: StoreError."""
    numerics = known_numerics().get(winner.key.numerics)
    try:
        task: Task = from_text(Task, winner.task)
    except RecordError as error:
        raise StoreError(f"the task of this winner is of another version of kforge: {error}") from error
    if numerics is None:
        raise StoreError("the numerics of this winner are of another version of kforge; search it again with kforge warm")
    sizes = tuple(math.isqrt(item.low * item.high) for item in winner.domain.ranges)
    device = "cpu" if winner.trial.candidate.language == "cpp" else "cuda"
    return Assignment(task_name(winner.task), device, task, sizes, winner.domain, numerics)


def program(assignment: Assignment) -> str:
    """A Python program: the region's inputs, the region in PyTorch and in fp64, what kforge makes of it, and the errors."""
    head = reference(assignment).partition("if __name__")[0].rstrip()
    precision = assignment.numerics.fp32
    option = precision if precision in ("strict", "mixed") else "auto"
    setting = precision if precision in ("highest", "high", "medium") else "highest"
    return f'''{head}


{_in_fp64(assignment.task)}

def error(values, truths):
    """RMS distance from fp64 over the RMS of fp64, for each output."""
    pairs = [(value.double(), truth.double()) for value, truth in zip(values, truths)]
    return [((value - truth).square().mean() / truth.square().mean().clamp(min=1e-300)).sqrt().item() for value, truth in pairs]


if __name__ == "__main__":
    import kforge_dynamo

    torch.set_float32_matmul_precision({setting!r})
    compiled = torch.compile(
        lambda *tensors: reference(*tensors, **SIZES), backend="kforge", options={{"precision": {option!r}, "on_miss": "search"}}
    )
    with torch.no_grad():
        tensors = inputs()
        truths = exact(*[tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors], **SIZES)
        print("error of eager ", error(reference(*tensors, **SIZES), truths))
        print("error of kforge", error(compiled(*tensors), truths))
    for region in kforge_dynamo.report():
        print(region.title, region.sizes, region.state, region.scheme, region.speedup, region.reason)
    print(kforge_dynamo.stats())'''


def _in_fp64(task: Task) -> str:
    """The region with every value in fp64; a conversion that narrows stays the rounding that it is."""
    text = pytorch.source(task, "exact")
    text = re.sub(r"\.to\(torch\.(float16|bfloat16)\)", r".to(torch.\1).double()", text)
    return re.sub(r"\.to\(torch\.float32\)", ".double()", text)
