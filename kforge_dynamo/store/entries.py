"""Winners and standings of one index: what is kept under which name, and which entry answers for given sizes.

A row `head:<digest of the key>` lists the entries of a key with their domains, oldest first; a row `entry:<digest>` holds
one sealed entry. The head only says where to look: an entry counts when it is authentic and itself names the key and a
domain that holds the sizes. One that does not is put aside in a row `aside:<digest>`.

For given sizes the answer is the narrowest winner of the present toolchain, the newest where several are equally narrow;
else the newer of a stale winner and a "no winner"; else "not searched".
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.codec import digest, from_plain, plain
from kforge_dynamo.records.outcome import CacheKey, Provenance, Standing, State, Terms, Winner
from kforge_dynamo.records.task import Domain
from kforge_dynamo.store.database import Change, Rows
from kforge_dynamo.store.envelope import Foreign, Refused, believed, seal, unseal
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.rows import Index
from kforge_dynamo.store.secret import Secret

Current = Callable[[str], Provenance | None]
"""The provenance that an entry of this language would get now; None where the language cannot be used here."""

T = TypeVar("T")

_ATTEMPTS = 8
_PER_KEY = 256  # entries of one key; the oldest go first
_MEMO = 4096
_KINDS: Mapping[str, type[Winner] | type[Standing]] = {"winner": Winner, "standing": Standing}


@dataclass(frozen=True, slots=True)
class Found:
    """An answer of the store. `winner` is there for WINNER and STALE, `standing` for the other states.

    `layer` is "user", the place of a shared layer, or "shipped". `reason` says what makes a winner stale or a "no winner"
    worth another search. `name` is the digest of the record where it is known already, else empty.
    """

    state: State
    layer: str
    winner: Winner | None
    standing: Standing | None
    reason: str
    name: str = ""

    def __post_init__(self) -> None:
        if (self.winner is not None) != (self.state in (State.WINNER, State.STALE)) or (self.winner is None) == (
            self.standing is None
        ):
            raise ValueError(f"{self.state.value} needs a winner or a standing, and not the other")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a head, and its record where it is authentic; else `problem` says why it is not."""

    digest: str
    kind: str
    key: CacheKey
    domain: Domain
    record: Winner | Standing | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class _Line:
    digest: str
    kind: str
    state: str
    domain: Domain


@dataclass(frozen=True, slots=True)
class _Head:
    key: CacheKey
    lines: tuple[_Line, ...]


class _Missing(Refused):
    """A line lists an entry that is not there."""


class _Moved(Exception):
    """The lines of a key have changed since they were read."""


class Entries:
    """The entries of `index`, vouched for by `secret`; without one they are read only, and believed by their digests.

    `name` is how people are told of the layer.
    """

    def __init__(self, index: Index, secret: Secret | None, name: str = "user") -> None:
        self.name = name
        self._index = index
        self._secret = secret
        self._memo: dict[str, Winner | Standing] = {}

    def lookup(self, key: CacheKey, sizes: tuple[int, ...], current: Current | None, terms: Terms | None = None) -> Found | None:
        """The answer for `sizes`, None where there is none. Without `current` no winner is stale, without `terms` every
        "no winner" stands."""
        return self._steady(key, lambda lines: self._answer(key, lines, sizes, current, terms))

    def by_candidate(self, key: CacheKey, candidate: str) -> Winner | None:
        """The newest winner of `key` whose candidate has this digest."""

        def search(lines: tuple[_Line, ...]) -> Winner | None:
            for line in reversed(lines):
                record = self._record(key, line) if line.kind == "winner" else None
                if isinstance(record, Winner) and digest(record.trial.candidate) == candidate:
                    return record
            return None

        return self._steady(key, search)

    def winners_of(self, key: CacheKey) -> Iterator[Winner]:
        """The winners of `key`, whatever their sizes, the newest first."""
        for line in reversed(self._lines(key)):
            with contextlib.suppress(_Moved):
                record = self._record(key, line) if line.kind == "winner" else None
                if isinstance(record, Winner):
                    yield record

    def _steady(self, key: CacheKey, read: Callable[[tuple[_Line, ...]], T | None]) -> T | None:
        """What `read` makes of the lines of `key`; asked again where an entry was replaced between two reads."""
        for _ in range(_ATTEMPTS):
            try:
                return read(self._lines(key))
            except _Moved:
                continue
        return None

    def _lines(self, key: CacheKey) -> tuple[_Line, ...]:
        head = _parse_head(self._index.get(_head_name(key)))
        return head.lines if head is not None and head.key == key else ()

    def _answer(
        self, key: CacheKey, lines: tuple[_Line, ...], sizes: tuple[int, ...], current: Current | None, terms: Terms | None
    ) -> Found | None:
        held = [(place, line) for place, line in enumerate(lines) if line.domain.holds(sizes)]
        others: list[tuple[int, Found]] = []
        for place, line in sorted(held, key=_rank):
            record = self._record(key, line)
            if record is None or not record.domain.holds(sizes):
                continue
            found = judge(record, line.digest, self.name, current, terms)
            if found.state is State.WINNER:
                return found
            others.append((place, found))
        decided = [item for item in others if item[1].state is not State.NOT_SEARCHED]
        return max(decided or others, key=lambda item: item[0])[1] if others else None

    def put(self, records: Sequence[Winner | Standing]) -> bool:
        """Stores `records`, all or none, in place of what they make superfluous; True when they are on disk, else they last
        for this process."""
        assert self._secret is not None, "a layer without a key is not written"
        changes = []
        for record in records:
            kind = "winner" if isinstance(record, Winner) else "standing"
            state = State.WINNER if isinstance(record, Winner) else record.state
            line = _Line(digest(record), kind, state.value, record.domain)
            if kind == "standing" and line in self._lines(record.key):
                continue  # what is known already must not change the version
            self._remember(line.digest, record)
            changes.append(_put(_head_name(record.key), record.key, line, seal(kind, record, self._secret)))

        def change(rows: Rows) -> None:
            for each in changes:
                each(rows)

        return self._index.edit(change) if changes else True

    def all(self) -> Iterator[Entry]:
        """Every entry, each checked anew."""
        for name in self._index.names("head:"):
            head = _parse_head(self._index.get(name))
            for line in head.lines if head is not None else ():
                assert head is not None
                try:
                    yield Entry(line.digest, line.kind, head.key, line.domain, self._load(line), None)
                except Refused as error:
                    yield Entry(line.digest, line.kind, head.key, line.domain, None, str(error))

    def keys(self) -> Iterator[tuple[CacheKey, tuple[tuple[State, Domain], ...]]]:
        """Every key with the states and domains of its entries, not authenticated: to explain, not to use."""
        for name in self._index.names("head:"):
            head = _parse_head(self._index.get(name))
            if head is not None:
                yield head.key, tuple((State(line.state), line.domain) for line in head.lines)

    def evict(self, chosen: Callable[[str, CacheKey, Domain], bool]) -> int:
        """Removes the entries for which `chosen(digest, key, domain)` holds; how many those were."""
        counted = 0
        for name in self._index.names("head:"):
            head = _parse_head(self._index.get(name))
            lines = [line for line in head.lines if chosen(line.digest, head.key, line.domain)] if head is not None else []
            if lines:
                counted += len(lines)
                self._index.edit(_drop(name, [line.digest for line in lines], aside=False))
        return counted

    def clear(self) -> int:
        """Removes every row; how many entries those were."""
        names = self._index.names("")
        self._memo.clear()
        self._index.edit(_delete_all(names))
        return sum(name.startswith("entry:") for name in names)

    def version(self) -> str | None:
        """A text that is another one after every change of the entries; None where nothing was ever stored."""
        return self._index.get("version")

    def _record(self, key: CacheKey, line: _Line) -> Winner | Standing | None:
        record = self._memo.get(line.digest)
        if record is None:
            try:
                record = self._load(line)
            except Refused as error:
                if isinstance(error, _Missing) and line not in self._lines(key):
                    raise _Moved from error
                which = f"the stored {line.kind} {line.digest[:12]}" if not isinstance(error, Foreign) else "a stored entry"
                say_once(f"{which} {error}; it was put aside and is not used")
                self._index.edit(_drop(_head_name(key), [line.digest], aside=True))
                return None
            self._remember(line.digest, record)
        return record if record.key == key else None

    def _load(self, line: _Line) -> Winner | Standing:
        """Raises: Refused."""
        text = self._index.get(f"entry:{line.digest}")
        if text is None:
            raise _Missing("is missing")
        if self._secret is None:
            return believed(line.kind, _KINDS[line.kind], text, line.digest)
        return unseal(line.kind, _KINDS[line.kind], text, self._secret, line.digest)

    def _remember(self, name: str, record: Winner | Standing) -> None:
        if len(self._memo) >= _MEMO:
            self._memo.clear()
        self._memo[name] = record


_BETTER = {State.WINNER: 0, State.NO_WINNER: 1, State.STALE: 2, State.NOT_SEARCHED: 3}


def better(one: Found | None, other: Found | None) -> Found | None:
    """The answer that says more; the first of two that say as much."""
    if one is None or other is None:
        return one or other
    return other if _BETTER[other.state] < _BETTER[one.state] else one


def judge(record: Winner | Standing, name: str, layer: str, current: Current | None, terms: Terms | None) -> Found:
    """What `record`, whose digest is `name`, means here and now."""
    if isinstance(record, Winner):
        reason = staleness(record, current) if current is not None else ""
        return Found(State.STALE if reason else State.WINNER, layer, record, None, reason, name)
    reason = outgrown(record, terms) if terms is not None and record.state is State.NO_WINNER else ""
    return Found(State.NOT_SEARCHED if reason else record.state, layer, None, record, reason or record.reason, name)


def staleness(winner: Winner, current: Current) -> str:
    """How the software of now differs from what `winner` was made with; empty where it does not."""
    made = winner.provenance
    now = current(winner.trial.candidate.language)
    if now is None:
        return f"the language {winner.trial.candidate.language} cannot be used here"
    names = ("torch", "language", "compiler", "driver", "kforge")
    changes = [
        f"{name} {getattr(made, name)} -> {getattr(now, name)}" for name in names if getattr(made, name) != getattr(now, name)
    ]
    return "; ".join(changes)


def outgrown(standing: Standing, terms: Terms) -> str:
    """Why a search under `terms` may find what the search behind `standing` did not; empty where it may not."""
    before = standing.terms
    if before is None or before.generator != terms.generator:
        return f"generator {before.generator if before else 'unknown'} found no winner, {terms.generator} has not searched"
    added = sorted(set(terms.languages) - set(before.languages))
    if added:
        return f"no winner was found before {', '.join(added)} could be used"
    if terms.budget_s > before.budget_s:
        return f"no winner was found within {before.budget_s:g} s, now there are {terms.budget_s:g} s"
    return ""


def _rank(item: tuple[int, _Line]) -> tuple[bool, int, int]:
    """Winners first, the narrowest of them first, the newer of equals first."""
    place, line = item
    return line.kind != "winner", narrowness(line.domain), -place


def narrowness(domain: Domain) -> int:
    """How many sizes the domain holds."""
    return math.prod(item.high - item.low + 1 for item in domain.ranges)


def _head_name(key: CacheKey) -> str:
    return f"head:{digest(key)}"


def _parse_head(text: str | None) -> _Head | None:
    """None where there is no head or it is damaged: its entries are misses."""
    if text is None:
        return None
    try:
        head: _Head = from_plain(_Head, json.loads(text))
    except (RecordError, ValueError, RecursionError):
        return None
    known = {state.value for state in State}
    return head if all(line.kind in _KINDS and line.state in known for line in head.lines) else None


def _put(name: str, key: CacheKey, line: _Line, text: str) -> Change:
    def change(rows: Rows) -> None:
        head = _parse_head(rows.get(name))
        lines = [item for item in head.lines if item.digest != line.digest] if head is not None else []
        gone = [item for item in lines if _superfluous(item, line)]
        kept = [item for item in lines if item not in gone]
        gone += kept[: max(0, len(kept) + 1 - _PER_KEY)]
        kept = [item for item in kept if item not in gone]
        for item in gone:
            rows.delete(f"entry:{item.digest}")
        rows.set(f"entry:{line.digest}", text)
        _write_head(rows, name, _Head(key, (*kept, line)))

    return change


def _superfluous(old: _Line, new: _Line) -> bool:
    """Whether `new` answers for all sizes of `old`, and at least as well."""
    if not all(
        outer.axis == inner.axis and outer.low <= inner.low and inner.high <= outer.high
        for outer, inner in zip(new.domain.ranges, old.domain.ranges, strict=False)
    ) or len(new.domain.ranges) != len(old.domain.ranges):
        return False
    if new.kind == "winner":
        return old.kind == "standing" or old.domain == new.domain
    return old.kind == "standing" and (new.state == State.NO_WINNER.value or old.state == new.state)


def _drop(name: str, digests: list[str], aside: bool) -> Change:
    def change(rows: Rows) -> None:
        head = _parse_head(rows.get(name))
        if head is None:
            return
        for each in digests:
            text = rows.get(f"entry:{each}")
            if aside and text is not None:
                rows.set(f"aside:{each}", text)
            rows.delete(f"entry:{each}")
        _write_head(rows, name, _Head(head.key, tuple(line for line in head.lines if line.digest not in digests)))

    return change


def _delete_all(names: list[str]) -> Change:
    def change(rows: Rows) -> None:
        for name in names:
            rows.delete(name)
        rows.set("version", secrets.token_hex(8))

    return change


def _write_head(rows: Rows, name: str, head: _Head) -> None:
    if head.lines:
        rows.set(name, json.dumps(plain(head), sort_keys=True, separators=(",", ":")))
    else:
        rows.delete(name)
    rows.set("version", secrets.token_hex(8))
