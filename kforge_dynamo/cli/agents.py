"""The words of a command line about language models, and what is made of them: a campaign."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kforge_dynamo.agents.campaign import Campaign
from kforge_dynamo.agents.opening import entry_of, open_model
from kforge_dynamo.agents.registry import BUILTIN, read_user
from kforge_dynamo.agents.strategies import STRATEGIES, Plan
from kforge_dynamo.agents.transcript import runs
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.ledger import tell
from kforge_dynamo.records.spending import Budget
from kforge_dynamo.settings import Settings, config_folder
from kforge_dynamo.store import Store

ModelName = Annotated[
    str, typer.Option("--model", help="ask a language model: a name of `kforge models list`; else KFORGE_MODEL, else none")
]
AnalystName = Annotated[str, typer.Option("--analyst", help="another model for the analysis; `rules` for none; else the same")]
StrategyName = Annotated[str, typer.Option("--strategy", help=f"how the agents search: {', '.join(STRATEGIES)}")]
Iterations = Annotated[int, typer.Option("--iterations", min=1, max=1000, help="rounds of the agents")]
Tokens = Annotated[int | None, typer.Option("--budget-tokens", min=1, help="most tokens a region, prompts and replies")]
Money = Annotated[float | None, typer.Option("--budget-money", min=0.0, help="most US dollars a region")]
Candidates = Annotated[int | None, typer.Option("--budget-candidates", min=1, help="most kernels evaluated a region")]
Reference = Annotated[
    Path | None, typer.Option("--reference", help="a kernel in any language, to be translated or improved; its ending names it")
]
Memory = Annotated[bool, typer.Option("--memory/--no-memory", help="use and keep lessons of other tasks")]
Seeding = Annotated[bool, typer.Option("--seed/--no-seed", help="start from the built-in generator's best kernel")]

_ENDINGS = {".cpp": "cpp", ".cc": "cpp", ".cu": "cuda", ".py": "triton", ".hip": "hip", ".metal": "metal", ".sycl": "sycl"}


@dataclass(frozen=True, slots=True)
class Words:
    """The options of `kforge warm` about agents."""

    model: str
    analyst: str
    strategy: str
    iterations: int
    tokens: int | None
    money: float | None
    candidates: int | None
    reference: Path | None
    memory: bool
    seeding: bool


def chosen(model: str) -> str:
    """The model that is asked, empty for none: the option, else KFORGE_MODEL."""
    name = model or Settings.parse()[0].model
    return "" if name == BUILTIN else name


def runs_folder(store: Store) -> Path:
    """Where runs are recorded: beside the winners. Raises: SettingsError where nothing can be kept."""
    if store.folder.path is None:
        raise SettingsError("no folder can be written for the record of a run; set KFORGE_CACHE_DIR")
    return store.folder.path / "runs"


def campaign(words: Words, store: Store) -> Campaign:
    """The campaign for these words. Raises: ModelError for an unknown model or a missing key, before anything is sent."""
    name = chosen(words.model)
    if words.strategy not in STRATEGIES:
        raise SettingsError(f"strategy {words.strategy!r}: expected {', '.join(STRATEGIES)}")
    user = read_user(config_folder())
    entry = entry_of(name, user)
    model = open_model(name, user)
    second = name if words.analyst in ("", name) else words.analyst
    alone = words.analyst == "rules" or (second == name and ":" in name.split("/")[0])  # a script speaks for one agent
    lessons = store.lessons() if words.memory else None
    reference, language = _reference(words.reference)
    return Campaign(
        model=model,
        entry=entry,
        analyst=None if alone else open_model(second, user),
        plan=Plan(words.strategy, words.iterations),
        budget=Budget(0.0, words.tokens, words.money, words.candidates),
        folder=runs_folder(store),
        replay=_recorded(name.removeprefix("replay:"), runs_folder(store)) if name.startswith("replay:") else None,
        reference=reference,
        reference_language=language,
        seeding=words.seeding,
        recall=lessons.all if lessons is not None else None,
        remember=lessons.add if lessons is not None else None,
        say=lambda text: tell("step", "", text),
    )


def _recorded(word: str, root: Path) -> Path:
    """A run by its folder, a folder of runs, or a run's name. Raises: SettingsError."""
    given = Path(word).expanduser()
    found = next((path for path in (given, root / word) if word and path.is_dir() and runs(path)), None)
    if found is None:
        raise SettingsError(f"replay:{word}: no run is there; `kforge runs list` shows those in {root}")
    return found


def _reference(path: Path | None) -> tuple[str, str]:
    if path is None:
        return "", ""
    try:
        return path.read_text(encoding="utf-8"), _ENDINGS.get(path.suffix, path.suffix.removeprefix(".") or "text")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"reference {path}: cannot be read: {error}") from error
