"""The loop of the two agents over one task: ask, read, evaluate, diagnose, until a bound is reached; then the final stage.

Everything that is decided follows from the attempts so far and from what is written to the transcript, so a recorded run can be
taken up where it was killed, or replayed. Whatever a model does wrong ends the loop with the best so far, never with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kforge_dynamo.agents import analyst, memory, prompts
from kforge_dynamo.agents.model import Ask, Model, Reply
from kforge_dynamo.agents.parsing import Context, Proposal, identity, parse
from kforge_dynamo.agents.rules import untried
from kforge_dynamo.agents.search import Evaluate, Problem, SearchResult
from kforge_dynamo.agents.sections import tokens
from kforge_dynamo.agents.strategies import Attempt, Move, Plan, State, next_moves, stop_reason
from kforge_dynamo.agents.transcript import Recorded
from kforge_dynamo.errors import ModelError
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import digest, plain
from kforge_dynamo.records.diagnosis import Change, Diagnosis, Lesson
from kforge_dynamo.records.outcome import Status, Trial, Verdict
from kforge_dynamo.records.spending import Budget, Spent

_FINALISTS = 3
_FINAL_COST = 3.0  # a final trial repeats the checks with five seeds and takes more samples
_LARGEST_RESERVE = 0.25
_LEAST_REPLY = 256

Write = Callable[..., None]
"""`Transcript.write`."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a run is given beside its problem; `lessons` are those shown, `day` the date new ones get."""

    plan: Plan
    budget: Budget
    languages: tuple[str, ...]
    scheme: str
    prompt_tokens: int
    reply_tokens: int
    request_s: float
    lessons: tuple[Lesson, ...] = ()
    reference: str = ""
    reference_language: str = ""
    day: str = ""


@dataclass(frozen=True, slots=True)
class Means:
    """How a run reaches the world. With `recorded` it takes replies, and unless `live` trials, from there as long as there are
    any; `evaluate` is None where nothing can be evaluated here. `pictures` gives screenshots of a profile for a model."""

    model: Model
    analyst: Model | None
    evaluate: Evaluate | None
    write: Write
    say: Callable[[str], None]
    now: Callable[[], float]
    recorded: Recorded | None = None
    live: bool = False
    pictures: Callable[[Trial], tuple[str, ...]] = lambda trial: ()


class _Over(Exception):
    """The run is over, for the reason that is its text."""


@dataclass(slots=True)
class Loop:
    """One run. `reason` says why it ended, `lessons` what it taught, `mismatch` that the user's reference computes something
    else."""

    problem: Problem
    setup: Setup
    means: Means
    state: State = field(init=False)
    spent: Spent = field(default=Spent())
    reason: str = ""
    lessons: list[Lesson] = field(default_factory=list)
    mismatch: str = ""
    _step: int = 0
    _started: float = 0.0
    _longest_s: float = 0.0
    _refined: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.state = State(self.setup.plan, self.problem.target.kind, bool(self.setup.reference))

    def run(self, seeds: tuple[Trial, ...], seconds: float = 0.0) -> SearchResult:
        """From trials that are already known (step 0) to the result; `seconds` were spent on them."""
        self._started = self.means.now() - seconds
        untestable = None
        for index, trial in enumerate(seeds):
            self._record(trial, 0, index, "search")
            self._add(Attempt(len(self.state.attempts), 0, 0, Move("seed"), trial.candidate, trial, identity(trial.candidate)))
        try:
            while True:
                moves = next_moves(self.state)
                reason = stop_reason(self.state, self.problem.floor_us) or ("" if moves else "all rounds are used up")
                if reason:
                    raise _Over(reason)
                self.state.round += 1
                for move in moves:
                    self._take(move)
        except _Over as over:
            self.reason = str(over)
        except ModelError as error:
            self.reason = str(error)
        except _Untestable as found:
            untestable = self.reason = str(found)
        best = self._final() if untestable is None else None
        self.lessons = memory.distil(self.problem, self.state, self.setup.day)
        for lesson in self.lessons:
            self.means.write("lesson", self._step, lesson=plain(lesson))
        self.means.write("end", self._step, reason=self.reason, best=digest(best.candidate) if best is not None else None)
        self.means.say(f"ended: {self.reason}; {self.spent.text(self.setup.budget)}")
        trials = tuple(item.trial for item in self.state.attempts if item.trial is not None)
        return SearchResult(trials, best, False, untestable, self._elapsed())

    def _take(self, move: Move) -> None:
        """One step: one request of the generation agent, and the trials of what it gave."""
        self._step += 1
        self._account()
        diagnosis, change = self._advice(move)
        setup = self.setup
        lines = memory.lines(setup.lessons)
        reference = "" if self.mismatch else setup.reference
        brief = prompts.Brief(move, setup.languages, diagnosis, change, lines, reference, setup.reference_language)
        user = prompts.request(self.problem, self.state, brief, setup.prompt_tokens)
        reply = self._ask(self.means.model, Ask(self._step, "generator", prompts.SYSTEM, user, setup.reply_tokens))
        parent = self.state.attempts[move.parent].candidate if move.parent is not None else None
        context = Context(setup.languages, setup.scheme, self.problem.task.axes, self.means.model.name, parent)
        known = [item.identity for item in self.state.attempts]
        found = self._proposal(parse(reply.text, context, known))
        if move.kind == "translate" and found.mismatch:
            self.mismatch = f"the reference kernel does not compute this task: {found.mismatch}"
            self.means.say(self.mismatch)
        named = change
        if found.idea or found.gain is not None:
            why = change.why if change is not None else "the model's own idea"
            what = found.idea or (change.what if change is not None else move.kind)
            gain = found.gain if found.gain is not None else change.gain if change is not None else None
            named = Change(what, why, gain) if gain is not None else None
        asked = Attempt(0, self._step, self.state.round, move, None, None, idea=found.idea, change=named)
        for candidate, reason in found.refused:
            verdict = Verdict(Status.REJECTED, None, None, "text of the reply", reason)
            self._try(asked, candidate, Trial(candidate, verdict, ()))
        for candidate in found.candidates:
            self._try(asked, candidate, None)
        if not found.candidates and not found.refused:
            problem = "; ".join(found.objections)
            self._add(replace(asked, number=len(self.state.attempts), problem=problem))
            self.means.say(f"step {self._step} ({move.kind}): {problem}")

    def _proposal(self, found: Proposal) -> Proposal:
        """Writes what was read. In a live replay what was read then counts: patches are of parents that then were chosen."""
        recorded = self.means.recorded
        if recorded is not None and self.means.live:
            known = {identity(item) for item in found.candidates}
            then = [trial.candidate for trial in recorded.trials(self._step, "search")]
            refused = {digest(item) for item, _ in found.refused}
            extra = [item for item in then if identity(item) not in known and digest(item) not in refused]
            found = replace(found, candidates=(*found.candidates, *extra) if not found.candidates else found.candidates)
        words = {"idea": found.idea, "gain": found.gain, "objections": list(found.objections)}
        kernels = [digest(item) for item in found.candidates]
        self.means.write("proposal", self._step, candidates=kernels, refused=len(found.refused), **words)
        return found

    def _try(self, asked: Attempt, candidate: Candidate, trial: Trial | None) -> None:
        """Evaluates a candidate (unless its trial is known) and keeps it as an attempt."""
        number = len(self.state.attempts)
        index = sum(item.step == self._step for item in self.state.attempts)
        if trial is None:
            bound = self.setup.budget.candidates
            if bound is not None and self.spent.candidates >= bound:
                raise _Over(f"the budget of {bound} candidates is spent")
            trial = self._evaluate(candidate, index, "search")
            self.spent = replace(self.spent, candidates=self.spent.candidates + 1)
        self._record(trial, self._step, index, "search")
        attempt = replace(asked, number=number, candidate=candidate, trial=trial, identity=identity(candidate))
        self._add(attempt)
        words = f"{attempt.us:.1f} us" if attempt.right else trial.verdict.status.value
        self.means.say(f"step {self._step} ({asked.move.kind}): {words}; {self.spent.text(self.setup.budget)}")

    def _add(self, attempt: Attempt) -> None:
        """Keeps an attempt with the rules' diagnosis. Raises: _Untestable."""
        self.state.attempts.append(attempt)
        diagnosis = analyst.by_rules(self.problem, self.state, attempt)
        if diagnosis is not None:
            self.state.attempts[-1] = replace(attempt, diagnosis=diagnosis)
        if attempt.trial is not None and attempt.trial.verdict.status is Status.NOT_TESTABLE:
            raise _Untestable(attempt.trial.verdict.evidence)

    def _advice(self, move: Move) -> tuple[Diagnosis | None, Change | None]:
        """The diagnosis of the kernel to improve, refined by the analyst's model once, and the change to try first."""
        if move.kind not in ("optimise", "combine") or move.parent is None:
            return None, None
        parent = self.state.attempts[move.parent]
        if parent.diagnosis is not None and self.means.analyst is not None and move.parent not in self._refined:
            self._refined.add(move.parent)
            parent = self._refine(self.means.analyst, parent, parent.diagnosis)
        if parent.diagnosis is None:
            return None, None
        self.means.write("diagnosis", self._step, attempt=parent.number, diagnosis=plain(parent.diagnosis))
        tried = [item.change.what for item in self.state.attempts if item.move.parent == move.parent and item.change is not None]
        change = untried(parent.diagnosis, tried)
        if move.variant and change is not None:  # requests of one round start from different changes
            change = parent.diagnosis.changes[move.variant % len(parent.diagnosis.changes)]
        return parent.diagnosis, change

    def _refine(self, model: Model, parent: Attempt, first: Diagnosis) -> Attempt:
        """The analyst's word on an attempt; where it has none the rules' stands."""
        assert parent.trial is not None
        pictures = self.means.pictures(parent.trial)
        question = replace(analyst.request(self.problem, self.state, parent, first, pictures), step=self._step)
        try:
            reply = self._ask(model, question)
        except ModelError as error:
            self.means.say(f"the rules' diagnosis stands: {error}")
            return parent
        parent = replace(parent, diagnosis=analyst.refined(reply.text, first, model.name))
        self.state.attempts[parent.number] = parent
        return parent

    def _ask(self, model: Model, ask: Ask) -> Reply:
        """A reply within the budget, and its cost. Raises: ModelError, _Over."""
        budget, estimate = self.setup.budget, tokens(ask.system) + tokens(ask.user)
        if budget.tokens is not None:
            ask = replace(ask, reply_tokens=min(ask.reply_tokens, budget.tokens - self.spent.tokens - estimate))
            if ask.reply_tokens < _LEAST_REPLY:
                raise _Over(f"the next request would exceed the budget of {budget.tokens} tokens")
        self.means.write("prompt", ask.step, role=ask.role, system=ask.system, user=ask.user, reply_tokens=ask.reply_tokens)
        try:
            reply = self._reply(model, ask)
        except ModelError as error:
            self.means.write("failure", ask.step, role=ask.role, kind=error.kind, sentence=str(error))
            raise
        self.means.write("reply", ask.step, role=ask.role, model=model.name, reply=plain(reply))
        sent = reply.prompt_tokens if reply.prompt_tokens is not None else estimate
        received = reply.reply_tokens if reply.reply_tokens is not None else tokens(reply.text)
        self.spent = replace(
            self.spent,
            tokens=self.spent.tokens + sent + received,
            money=self.spent.money + (reply.money or 0.0),
            requests=self.spent.requests + 1,
            unpriced=self.spent.unpriced + (reply.money is None),
        )
        if budget.money is not None and reply.money is None:
            raise ModelError("refused", f"the price of {model.name!r} is unknown, so the budget in dollars cannot be kept: "
                             "give input_price and output_price in models.toml")  # fmt: skip
        return reply

    def _reply(self, model: Model, ask: Ask) -> Reply:
        recorded = self.means.recorded
        if recorded is not None:
            reply = recorded.reply(ask.step, ask.role)
            if reply is not None:
                return reply
            failure = recorded.find("failure", ask.step, role=ask.role)
            if failure is not None:
                raise ModelError(str(failure["kind"]), str(failure["sentence"]))
        left_s = max(1.0, self.setup.budget.seconds - self._elapsed())
        return model.ask(ask, min(self.setup.request_s, left_s))

    def _evaluate(self, candidate: Candidate, index: int, stage: str) -> Trial:
        """A trial: recorded, or made now. Raises: _Over where neither is there."""
        recorded = self.means.recorded
        if recorded is not None and not self.means.live:
            trial = recorded.trial(self._step, index, stage)
            if trial is not None and digest(trial.candidate) == digest(candidate):
                return trial
        if self.means.evaluate is None:
            raise _Over(f"the record has no trial of this kernel at step {self._step}")
        before = self.means.now()
        trial = self.means.evaluate(candidate, stage, max(1.0, self.setup.budget.seconds - self._elapsed()))
        self._longest_s = max(self._longest_s, self.means.now() - before)
        return trial

    def _record(self, trial: Trial, step: int, index: int, stage: str) -> None:
        self.means.write("trial", step, index=index, stage=stage, trial=plain(trial))

    def _account(self) -> None:
        """Writes what is spent, and ends the run where a bound is reached. Raises: _Over."""
        recorded = self.means.recorded if not self.means.live else None
        item = recorded.find("spent", self._step) if recorded is not None else None
        if item is not None and recorded is not None:
            spent = recorded.spent(self._step) or self.spent
            reserve = float(item["reserve"])
            self._started = self.means.now() - spent.seconds
            self.spent = replace(self.spent, seconds=spent.seconds)
        else:
            self.spent = replace(self.spent, seconds=self._elapsed())
            reserve = min(_FINAL_COST * self._longest_s, _LARGEST_RESERVE * self.setup.budget.seconds)
        self.means.write("spent", self._step, spent=plain(self.spent), reserve=reserve)
        over = self.spent.over(self.setup.budget)
        kept = replace(self.spent, seconds=self.spent.seconds + reserve).over(self.setup.budget)
        if over or kept:
            raise _Over(over or f"{kept}; the rest is kept for the final checks of the best")

    def _elapsed(self) -> float:
        return self.means.now() - self._started

    def _final(self) -> Trial | None:
        """The final stage of the fastest few, until one passes; right kernels without a steady timing come last."""
        done = [item for item in self.state.attempts if item.trial is not None]
        right = sorted((item for item in done if item.right), key=lambda item: item.us)
        steady = {item.number for item in right}
        untimed = (Status.PASSED, Status.UNSTABLE_TIMING)
        unsteady = [item for item in done if item.trial and item.trial.verdict.status in untimed and item.number not in steady]
        unique = {item.identity: item for item in reversed([*right, *unsteady])}
        finalists = [item for item in [*right, *unsteady] if unique[item.identity] is item][:_FINALISTS]
        for index, item in enumerate(finalists):
            assert item.candidate is not None
            try:
                trial = self._evaluate(item.candidate, index, "final")
            except _Over as over:
                self.reason = f"{self.reason}; {over}"
                return None
            self._record(trial, self._step, index, "final")
            self.means.say(f"final checks of #{item.number}: {trial.verdict.status.value}")
            if trial.verdict.passed and trial.timings:
                return trial
        return None


class _Untestable(Exception):
    """No kernel of this task can be judged; the text says why."""
