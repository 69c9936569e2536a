"""The tasks of a folder as an agent works on them: read one, try kernels, see verdicts and what to change, hand the best in."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kforge_dynamo.agents.analyst import by_rules
from kforge_dynamo.agents.campaign import PROMPT_TOKENS, languages_for
from kforge_dynamo.agents.feedback import verdict_lines
from kforge_dynamo.agents.parsing import Context, identity, parse
from kforge_dynamo.agents.prompts import RULES, Brief, diagnosis_lines, request
from kforge_dynamo.agents.search import Problem
from kforge_dynamo.agents.sections import fenced
from kforge_dynamo.agents.strategies import Attempt, Move, Plan, State
from kforge_dynamo.cli.files import MOST_BYTES, TASK_FILE, device_of, load_task
from kforge_dynamo.cli.verdicts import as_data
from kforge_dynamo.errors import RecordError, SettingsError
from kforge_dynamo.evaluation import Evaluator, Order
from kforge_dynamo.forge import floor_us
from kforge_dynamo.languages.examples import EXAMPLES
from kforge_dynamo.rechecks import known
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.target import Target
from kforge_dynamo.store import Store
from kforge_dynamo.submission import submit

AUTHOR = "agent"
_HALVES = {"float16", "bfloat16"}


@dataclass(slots=True)
class _Bench:
    """One task with its device and the attempts at it."""

    assignment: Assignment
    target: Target
    evaluator: Evaluator
    state: State

    @property
    def problem(self) -> Problem:
        """The task as prompts describe it."""
        item = self.assignment
        floor = floor_us(item.task, item.sizes, self.target)
        return Problem(item.task, item.sizes, self.target, item.numerics, floor, item.title, item.domain)


@dataclass(slots=True)
class Workbench:
    """The tasks below `folder`, judged for at most `seconds` a kernel. Calls from several threads take turns at the device.

    What it is given is text: a task by its name in the folder, a kernel by its source. No path is taken.
    """

    folder: Path
    store: Store
    seconds: float
    _benches: dict[str, _Bench] = field(default_factory=dict)
    _trials: dict[str, tuple[Assignment, Trial]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def tasks(self) -> list[dict[str, Any]]:
        """Every task: its name, what it computes, sizes, what the store answers. Raises: SettingsError where there is none."""
        places = self._places()
        if not places:
            raise SettingsError(f"no {TASK_FILE} below {self.folder}; kforge task export TARGET --to DIR writes such folders")
        return [{"task": name, **self._summary(load_task(path))} for name, path in places.items()]

    def show(self, name: str) -> str:
        """Rules, task, device, how a kernel is called with a worked example, and the attempts so far."""
        bench = self._bench(name)
        brief = Brief(Move("fresh"), languages_for(bench.target))
        return f"{RULES}\n\n{request(bench.problem, bench.state, brief, PROMPT_TOKENS)}"

    def evaluate(
        self, name: str, source: str, plan: dict[str, Any] | None, scheme: str, instruments: list[str]
    ) -> dict[str, Any]:
        """Judges a kernel with one seed of each input class, and times it. Returns the verdict in few lines, what limits the
        kernel and what to change, and the number by which `verdict` tells the rest. Raises: KforgeError in one sentence."""
        bench = self._bench(name)
        candidate = _candidate(bench, source, plan, scheme)
        if isinstance(candidate, str):
            return {"status": "rejected", "passed": False, "lines": [candidate]}
        with self._lock:
            order = Order("search", True, self.seconds, "default", tuple(instruments))
            trial = bench.evaluator.judge(bench.assignment, candidate, order)
            return self._keep(bench, trial)

    def submit(self, name: str, source: str, plan: dict[str, Any] | None, scheme: str) -> dict[str, Any]:
        """Judges a kernel with all seeds and sizes, and stores it where it wins. As `evaluate`, with `stored` and `reason`."""
        bench = self._bench(name)
        candidate = _candidate(bench, source, plan, scheme)
        if isinstance(candidate, str):
            return {
                "status": "rejected",
                "passed": False,
                "lines": [candidate],
                "stored": False,
                "reason": "not stored: rejected",
            }
        with self._lock:
            done = submit(bench.assignment, candidate, bench.evaluator, bench.target, self.store, self.seconds, "default")
            return self._keep(bench, done.trial) | {"stored": done.stored, "reason": done.reason}

    def verdict(self, number: str) -> dict[str, Any]:
        """All that is known of a kernel that was judged here: verdict, every sample, profile. Raises: SettingsError."""
        if number not in self._trials:
            raise SettingsError(f"no kernel {number!r} was judged here; known are {', '.join(self._trials) or 'none'}")
        return as_data(*self._trials[number])

    def close(self) -> None:
        """Ends the workers."""
        for bench in self._benches.values():
            bench.evaluator.close()

    def _places(self) -> dict[str, Path]:
        found = sorted(path.parent for path in self.folder.rglob(TASK_FILE))
        return {path.relative_to(self.folder).as_posix() if path != self.folder else path.resolve().name: path for path in found}

    def _summary(self, assignment: Assignment) -> dict[str, Any]:
        data: dict[str, Any] = {"title": assignment.title, "device": assignment.device}
        data["sizes"] = dict(zip(assignment.task.axes, assignment.sizes, strict=True))
        try:
            _, target = device_of(assignment, None)
        except SettingsError as error:
            return data | {"stored": str(error)}
        found, _ = known(self.store, assignment, target)
        if found is None:
            return data | {"stored": "nothing yet"}
        winner = found.winner
        return data | {"stored": f"{winner.trial.timings[0].speedup:.2f}x" if winner is not None else found.reason}

    def _bench(self, name: str) -> _Bench:
        """The task of that name. Raises: SettingsError where there is none, or its device is not here."""
        with self._lock:
            places = self._places()
            if name not in places:
                raise SettingsError(f"no task {name!r}; known are {', '.join(places) or 'none'}")
            assignment = load_task(places[name])
            bench = self._benches.get(name)
            if bench is None or bench.assignment != assignment:  # it was exported anew
                place, target = device_of(assignment, None)
                shared = [item.evaluator for item in self._benches.values() if item.target.name == target.name]
                evaluator = shared[0] if shared else Evaluator(target, str(place))
                bench = self._benches[name] = _Bench(assignment, target, evaluator, State(Plan(), target.kind))
            return bench

    def _keep(self, bench: _Bench, trial: Trial) -> dict[str, Any]:
        """Adds the trial to the attempts and says what an author needs of it."""
        candidate, state = trial.candidate, bench.state
        attempt = Attempt(len(state.attempts), len(state.attempts), 0, Move("fresh"), candidate, trial, identity(candidate))
        state.attempts.append(attempt)
        number = digest(candidate)[:12]
        self._trials[number] = (bench.assignment, trial)
        data: dict[str, Any] = {"kernel": number, "status": trial.verdict.status.value, "passed": trial.verdict.passed}
        if trial.timings:
            data["speedup"] = round(trial.timings[0].speedup, 3)
        data["lines"] = verdict_lines(attempt)
        diagnosis = by_rules(bench.problem, state, attempt)
        if diagnosis is not None:
            data["advice"] = diagnosis_lines(diagnosis)
        return data


def _candidate(bench: _Bench, source: str, plan: dict[str, Any] | None, scheme: str) -> Candidate | str:
    """The kernel, or why it is none that is judged. Raises: RecordError for a source that is too long."""
    if len(source.encode()) > MOST_BYTES:
        raise RecordError(f"the kernel has {len(source) >> 20} MiB, expected at most {MOST_BYTES >> 20}")
    languages = languages_for(bench.target)
    dtypes = {item.value.dtype for item in bench.assignment.task.inputs}
    usual = "native" if dtypes & _HALVES else "ieee"
    context = Context(languages[:1], scheme or usual, bench.assignment.task.axes, AUTHOR)
    text = fenced(EXAMPLES[languages[0]].fence, source)
    found = parse(text if plan is None else f"{text}\n{fenced('json', json.dumps(plan))}", context)
    if found.candidates:
        return found.candidates[0]
    return "; ".join([*(reason for _, reason in found.refused), *found.objections])
