"""One call of `kforge warm --model` over all regions: seeds each from the built-in generator, runs the loop, keeps the record."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kforge_dynamo.agents import memory
from kforge_dynamo.agents.generator import Generator
from kforge_dynamo.agents.loop import Loop, Means, Setup
from kforge_dynamo.agents.model import Model
from kforge_dynamo.agents.opening import EndOfRecord
from kforge_dynamo.agents.parsing import Context, parse
from kforge_dynamo.agents.pictures import pictures
from kforge_dynamo.agents.registry import ModelEntry
from kforge_dynamo.agents.search import Clock, Evaluate, Problem, SearchResult, explore, passed
from kforge_dynamo.agents.sections import fenced
from kforge_dynamo.agents.strategies import Plan
from kforge_dynamo.agents.transcript import Header, Recorded, Transcript, now_text, read, runs
from kforge_dynamo.errors import ModelError
from kforge_dynamo.languages.examples import EXAMPLES
from kforge_dynamo.records.assignment import Assignment
from kforge_dynamo.records.codec import digest, from_text, to_text
from kforge_dynamo.records.diagnosis import Lesson
from kforge_dynamo.records.outcome import Trial
from kforge_dynamo.records.spending import Budget
from kforge_dynamo.records.target import Target
from kforge_dynamo.records.task import point

PROMPT_TOKENS = 24_000
_SEED_SHARE, _SEED_MOST_S = 0.25, 60.0


@dataclass(slots=True)
class Campaign:
    """The model, the plan and the bounds of each region; `folder` is where runs are recorded. With `replay` (a run or a folder of
    runs) recorded replies are evaluated again, by the plan recorded with them. `recall` and `remember` reach the lessons, None
    to go without."""

    model: Model
    entry: ModelEntry
    analyst: Model | None
    plan: Plan
    budget: Budget
    folder: Path
    replay: Path | None = None
    reference: str = ""
    reference_language: str = ""
    seeding: bool = True
    recall: Callable[[], Sequence[Lesson]] | None = None
    remember: Callable[[Lesson], object] | None = None
    say: Callable[[str], None] = lambda text: None
    done: list[tuple[Path, str]] = field(default_factory=list)

    def search(self, problem: Problem, generator: Generator, evaluate: Evaluate, clock: Clock) -> SearchResult:
        """As `agents.search.search`: the agents' loop over one task, within the clock's time and the other bounds."""
        budget = replace(self.budget, seconds=clock.left_s)
        recorded = self._recorded(problem)
        started = time.monotonic()
        seeds, ended = self._seeds(problem, generator, evaluate, clock, recorded)
        if ended is not None:
            return ended
        lessons = memory.nearest(self.recall(), problem) if self.recall is not None else []
        plan = self.plan if recorded is None else from_text(Plan, recorded.header.plan)
        header = self._header(problem, plan, budget, tuple(lessons))
        transcript = Transcript.begin(self.folder, header)
        self.say(f"run {transcript.folder.name}")
        model = self.model if recorded is None else EndOfRecord(self.model.name)
        means = Means(model, self.analyst, evaluate, transcript.write, self.say, time.monotonic, recorded, True, pictures)
        loop = Loop(problem, setup_of(header, self.entry), means)
        result = loop.run(seeds, time.monotonic() - started)
        self.done.append((transcript.folder, loop.reason))
        if self.remember is not None and recorded is None:
            for lesson in loop.lessons:
                self.remember(lesson)
        return result

    def _recorded(self, problem: Problem) -> Recorded | None:
        """The record of this task. Raises: ModelError where a replay has none."""
        if self.replay is None:
            return None
        wanted = digest(problem.task)
        found = [item for path in runs(self.replay) if digest((item := read(path)).header.assignment.task) == wanted]
        if not found:
            raise ModelError("missing", f"{self.replay} holds no run of the task {wanted[:12]} ({problem.title})")
        return found[-1]

    def _seeds(
        self, problem: Problem, generator: Generator, evaluate: Evaluate, clock: Clock, recorded: Recorded | None
    ) -> tuple[tuple[Trial, ...], SearchResult | None]:
        """The best of the built-in generator (of a replay: the recorded seeds, tried here), or the end of an untestable task."""
        if recorded is not None:
            again = tuple(evaluate(trial.candidate, "search", clock.left_s) for trial in recorded.trials(0, "search"))
            if any(trial.verdict.passed for trial in again) or not again:
                return again, None
        given = self._given(problem, evaluate, clock)
        if not self.seeding:
            return given, None
        self.say("seeds from the built-in generator")
        share_s = min(_SEED_SHARE * clock.left_s, _SEED_MOST_S)
        found = explore(problem, generator, evaluate, Clock(share_s, time.monotonic))
        if found.untestable is not None:
            return (), found
        return (*passed(found.trials)[:1], *given), None

    def _given(self, problem: Problem, evaluate: Evaluate, clock: Clock) -> tuple[Trial, ...]:
        """The user's reference as a seed, where it is in a language of this target; one that is not right is named as such and
        goes no further."""
        if not self.reference or self.reference_language not in languages_for(problem.target):
            return ()
        reply = fenced(EXAMPLES[self.reference_language].fence, self.reference)
        found = parse(reply, Context((self.reference_language,), "ieee", problem.task.axes, "the user's reference"))
        reasons = [*(reason for _, reason in found.refused), *found.objections]
        trials = tuple(evaluate(candidate, "search", clock.left_s) for candidate in found.candidates[:1])
        reasons += [f"{trial.verdict.status.value}: {trial.verdict.evidence}" for trial in trials if not trial.verdict.passed]
        if reasons:
            self.say(f"the reference kernel does not compute the task {problem.title}: {' '.join(reasons[0].split())[:300]}")
            self.reference = ""
        return tuple(trial for trial in trials if trial.verdict.passed)

    def _header(self, problem: Problem, plan: Plan, budget: Budget, lessons: tuple[Lesson, ...]) -> Header:
        domain = problem.domain if problem.domain is not None else point(problem.task, problem.sizes)
        title = problem.title or "task"
        assignment = Assignment(title, problem.target.kind, problem.task, problem.sizes, domain, problem.numerics)
        room = self.entry.context_tokens - self.entry.reply_tokens - 1000
        return Header(
            assignment=assignment,
            target=problem.target,
            model=self.model.name,
            analyst=self.analyst.name if self.analyst is not None else "rules",
            plan=to_text(plan),
            budget=budget,
            languages=languages_for(problem.target),
            prompt_tokens=max(6000, min(PROMPT_TOKENS, room)),
            reply_tokens=self.entry.reply_tokens,
            floor_us=problem.floor_us,
            lessons=lessons,
            reference=self.reference,
            reference_language=self.reference_language,
            created=now_text(),
        )


def languages_for(target: Target) -> tuple[str, ...]:
    """The languages that a model may write in for a target, the usual one first."""
    usual = "cpp" if target.kind == "cpu" else "triton"
    others = [name for name in EXAMPLES if name not in ("cpp", "triton") and target.kind != "cpu"]
    return (usual, *others)


def setup_of(header: Header, entry: ModelEntry) -> Setup:
    """The setup of the run that a header describes."""
    dtypes = {item.value.dtype for item in header.assignment.task.inputs}
    return Setup(
        plan=from_text(Plan, header.plan),
        budget=header.budget,
        languages=header.languages,
        scheme="native" if dtypes & {"float16", "bfloat16"} else "ieee",
        prompt_tokens=header.prompt_tokens,
        reply_tokens=header.reply_tokens,
        request_s=entry.timeout_s,
        lessons=header.lessons,
        reference=header.reference,
        reference_language=header.reference_language,
        day=header.created[:10],
    )


def problem_of(header: Header) -> Problem:
    """The problem of a recorded run."""
    task = header.assignment
    return Problem(task.task, task.sizes, header.target, task.numerics, header.floor_us, task.title, task.domain)
