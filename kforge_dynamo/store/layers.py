"""The store: the user's cache, above shared layers in their order, above the layer that ships with kforge; one door.

`open_store` never raises: what cannot be used is logged once and missing. One store is shared by all threads of a process;
for processes see `store.rows`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import platform
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.candidate import Candidate
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import CacheKey, Standing, State, Terms, Winner
from kforge_dynamo.records.target import Numerics, Target
from kforge_dynamo.records.task import Task
from kforge_dynamo.store import secret, shipped
from kforge_dynamo.store.artifacts import Artifacts, Build
from kforge_dynamo.store.entries import Current, Entries, Entry, Found, better
from kforge_dynamo.store.envelope import SCHEMA
from kforge_dynamo.store.epochs import Epochs
from kforge_dynamo.store.explain import Miss, explain
from kforge_dynamo.store.folder import Folder, find, make_private, short_lived
from kforge_dynamo.store.lessons import Lessons
from kforge_dynamo.store.notes import say_once
from kforge_dynamo.store.pruning import SHARE, Parts, Pruned, prune
from kforge_dynamo.store.rows import Index
from kforge_dynamo.store.shared import Layer, open_layers
from kforge_dynamo.store.trust import read_trust
from kforge_dynamo.store.usage import Usage

_PUTS_A_LOOK = 64  # the size is looked at with the first write of a process, and then with every so many
_MOST_NOTES = 256

UNVERIFIED = "it comes from a shared layer and was not verified on this machine yet"
"""Why a layer's winner is a seed under `Access.verify_on_load`."""


@dataclass(frozen=True, slots=True)
class Access:
    """What is read beside the user's cache: `layers` as `store.shared` names them, `trust` as words of `store.trust`.

    With `verify_on_load` winners of shared layers are seeds until they were verified here. Beyond `limit_bytes` the user's cache
    loses what was not used for longest (`store.pruning`).
    """

    layers: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()
    verify_on_load: bool = False
    limit_bytes: float = math.inf


_open: dict[tuple[int, str | None, Access], Store] = {}


def key_of(task: Task, target: Target, numerics: Numerics) -> CacheKey:
    """The identity under which answers for `task` on `target` under `numerics` are kept."""
    return CacheKey(digest(task), target.name, digest(numerics), SCHEMA)


def open_store(cache_dir: str | None, access: Access = Access()) -> Store:
    """The store of this process at `cache_dir` (None: the platform's folder for this user). Never raises."""
    name = (os.getpid(), cache_dir, access)  # a fork may have been made while another thread of its parent held a lock
    store = _open.get(name)
    if store is None:
        store = _open.setdefault(name, Store(find(cache_dir), shipped.Shipped(shipped.folder()), access))
    return store


def close_stores() -> None:
    """Forgets the open stores, so that the next `open_store` looks again. Those who hold one may go on using it."""
    _open.clear()


class Store:
    """What is known of tasks: winners, "no winner" with its terms, "not searched"; built kernels; graph epochs."""

    def __init__(self, folder: Folder, layer: shipped.Shipped, access: Access = Access()) -> None:
        self.folder = folder
        self.shipped = layer
        self._access = access
        self._shared: tuple[Sequence[Layer], Sequence[str]] | None = None
        self._lock = threading.Lock()
        if folder.problem is not None:
            say_once(folder.problem)
        home = folder.path / f"v{SCHEMA}" if folder.path is not None else None
        key = _key(home, folder.writable)
        usable = home is not None and key is not None
        self._index = Index(home / "index" if home is not None and usable else None, folder.writable)
        self._secret = key if key is not None else secret.ephemeral()
        self._entries = Entries(self._index, self._secret)
        self._artifacts: Artifacts | None = None
        self._home = home if usable and folder.writable else None
        self._usage = Usage(self._home)
        self._puts = 0
        self._keep = home / "remote" if home is not None and usable and folder.writable else None
        self._artifact_home = home / "artifacts" if home is not None and usable and folder.writable else None
        self.epochs = Epochs(self._index, self._version)

    def lookup(
        self, key: CacheKey, sizes: tuple[int, ...], current: Current | None = None, terms: Terms | None = None
    ) -> Found | None:
        """What is known of `key` for `sizes`; None where nothing is. Never raises, never returns what is not authentic.

        `current(language)` is the provenance an entry would get now: a winner made with other software is STALE. `terms`
        are those of a search that could be started now: a "no winner" found under lesser terms is NOT_SEARCHED.
        """
        best = self._entries.lookup(key, sizes, current, terms)
        if best is not None and best.state is State.WINNER:
            return best
        for layer in self.shared:
            best = better(best, self._usable(layer.lookup(key, sizes, current, terms)))
            if best is not None and best.state is State.WINNER:
                return best
        return better(best, self.shipped.lookup(key, sizes, current, terms))

    @property
    def shared(self) -> Sequence[Layer]:
        """The shared layers that can be read and are believed, in order; opened when they are first asked for."""
        return self._shared_layers()[0]

    @property
    def shared_problems(self) -> Sequence[str]:
        """One sentence for each shared layer that is not used."""
        return self._shared_layers()[1]

    def _shared_layers(self) -> tuple[Sequence[Layer], Sequence[str]]:
        with self._lock:
            if self._shared is None:
                self._shared = open_layers(self._access.layers, read_trust(self._access.trust), self._keep)
            return self._shared

    def _usable(self, found: Found | None) -> Found | None:
        """What a shared layer's answer is worth here."""
        if found is None or found.winner is None:
            return found
        if self._index.get(f"refused:{found.name}") is not None:
            return None
        if self._access.verify_on_load and found.state is State.WINNER:
            return Found(State.STALE, found.layer, found.winner, None, UNVERIFIED, found.name)
        return found

    def refuse(self, winner: Winner, reason: str) -> None:
        """Remembers that `winner`, of a shared layer, did not pass here: it is not used again."""
        self._index.edit(lambda rows: rows.set(f"refused:{digest(winner)}", reason))

    def winner_of(self, key: CacheKey, candidate: str) -> Winner | None:
        """The stored winner of `key` whose candidate has the digest `candidate`, whatever its sizes and provenance."""
        shared = () if self._access.verify_on_load else self.shared
        layers: list[Layer] = [self._entries, *shared, self.shipped]
        return next((found for layer in layers if (found := layer.by_candidate(key, candidate)) is not None), None)

    def relatives(self, key: CacheKey, near: Callable[[str], bool]) -> Iterator[Winner]:
        """Winners of the same task under the same numerics on other devices, those whose name `near` accepts."""
        layers: list[Layer] = [self._entries, *self.shared, self.shipped]
        for layer in layers:
            for other, _ in list(layer.keys()):
                same = (other.task, other.numerics, other.schema) == (key.task, key.numerics, key.schema)
                if same and other.device != key.device and near(other.device):
                    yield from layer.winners_of(other)

    def put_winner(self, winner: Winner) -> bool:
        """Keeps `winner`; True when it is on disk, False when it lasts for this process alone (which was logged)."""
        return self.put_all([winner])

    def put_standing(self, *standings: Standing) -> bool:
        """Keeps NO_WINNER or NOT_SEARCHED answers, all in one change, as `put_winner`. Raises: ValueError for another state."""
        for standing in standings:
            if standing.state not in (State.NO_WINNER, State.NOT_SEARCHED):
                raise ValueError(f"a standing is no_winner or not_searched, found {standing.state.value}")
        return self.put_all(standings)

    def state_text(self, found: Found | None) -> str:
        """The state of a task for `epochs`: it identifies the answer, so that a replaced winner changes it."""
        return state_text(found)

    def explain_miss(self, key: CacheKey, sizes: tuple[int, ...]) -> Miss:
        """How the nearest stored winner differs from what was asked."""
        layers: list[Layer] = [self._entries, *self.shared, self.shipped]
        return explain(key, sizes, itertools.chain.from_iterable(layer.keys() for layer in layers))

    def artifact(self, candidate: Candidate, build: Build, context: str = "") -> Path:
        """The built `candidate`, checked against its recorded digest, built by `build` where it is missing or changed.

        `context` names what its machine code depends on beside its source, this torch and this CPU, which are always part
        of it: a GPU's name, a compiler that may not be mixed with another.
        Raises: StoreError where nothing can be written; what `build` raises.
        """
        path = self.artifacts().get(candidate, f"{_machine()} {context}", build)
        self._usage.note(f"kernel:{self.artifacts().home_of(path)}")
        return path

    @property
    def artifacts_root(self) -> Path:
        """A folder of this process alone, for what a search builds and throws away. Raises: StoreError."""
        return self.artifacts().scratch()

    def lessons(self) -> Lessons:
        """What the agents learnt, beside the winners."""
        home = self.folder.path / f"v{SCHEMA}" / "lessons" if self.folder.path is not None else None
        return Lessons(home, self._secret, self.folder.writable)

    def artifacts(self) -> Artifacts:
        """The folder of built candidates; a private temporary one where the cache cannot be written. Raises: StoreError."""
        if self._artifacts is None:
            if self._artifact_home is None:
                try:
                    self._artifact_home = short_lived(None, "kforge-")
                except OSError as error:
                    raise StoreError(
                        f"kernels cannot be built: no folder can be written ({error}); set KFORGE_CACHE_DIR"
                    ) from error
            self._artifacts = Artifacts(self._artifact_home, self._secret)
        return self._artifacts

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """Every entry with the name of its layer ("user" first, "shipped" last), each checked anew."""
        layers: list[Layer] = [self._entries, *self.shared, self.shipped]
        for layer in layers:
            for entry in layer.all():
                yield layer.name, entry

    def put_all(self, records: Sequence[Winner | Standing]) -> bool:
        """Keeps `records`, all in one change, as `put_winner`."""
        kept = self._entries.put(records)
        self._puts += 1
        if self._puts % _PUTS_A_LOOK == 1:
            self._mind_size()
        return kept

    def use(self, winner: Winner) -> None:
        """Notes that this process runs `winner`, which stays in the user's cache as long as the process lives."""
        name = f"entry:{digest(winner)}"
        if self._usage.note(name) and self._index.get(name) is None and self._from_user(winner):
            self._entries.put([winner])  # it was removed between the lookup and the note

    def _from_user(self, winner: Winner) -> bool:
        candidate = digest(winner.trial.candidate)
        return all(layer.by_candidate(winner.key, candidate) is None for layer in (*self.shared, self.shipped))

    def prune(self, limit_bytes: float, unused_s: float | None = None) -> Pruned | None:
        """See `store.pruning`; None where the user's cache cannot be written."""
        if self._home is None:
            return None
        return prune(Parts(self._home, self._index, self._entries, self.artifacts(), self._usage), limit_bytes, unused_s)

    def _mind_size(self) -> None:
        """Prunes where the cache has outgrown its limit, or the notes of ended processes have become many."""
        if self._home is None or self._access.limit_bytes == math.inf:
            return
        parts = Parts(self._home, self._index, self._entries, self.artifacts(), self._usage)
        size_bytes = parts.size_bytes()
        if size_bytes > self._access.limit_bytes:
            done = prune(parts, SHARE * self._access.limit_bytes)
            say_once(
                f"the cache in {self._home} had {size_bytes >> 20} MiB, more than its limit; {done.entries} entries and "
                f"{done.kernels} built kernels that were not used for longest are gone. KFORGE_CACHE_MIB sets the limit"
            )
        elif self._usage.count() > _MOST_NOTES:
            prune(parts, math.inf)

    def evict(self, prefix: str) -> int:
        """Removes the user's entries whose digest begins with `prefix`; how many those were."""
        return self._entries.evict(lambda name, key, domain: name.startswith(prefix))

    def evict_key(self, key: CacheKey, sizes: tuple[int, ...] | None = None) -> int:
        """Removes the user's entries of `key`, with `sizes` only those that hold them; how many those were."""
        return self._entries.evict(lambda name, other, domain: other == key and (sizes is None or domain.holds(sizes)))

    def clear(self) -> tuple[int, int]:
        """Empties the user's cache: entries, epochs, built kernels, and what was put aside. Returns the numbers of entries
        and of built kernels."""
        removed = self._entries.clear(), self.artifacts().clear()
        if self.folder.path is not None and self.folder.writable:
            for path in (self.folder.path / f"v{SCHEMA}").glob("*.damaged-*"):
                shutil.rmtree(path, ignore_errors=True)
            for path in (self.folder.path / f"v{SCHEMA}").glob(f"{secret.NAME}.aside-*"):
                path.unlink(missing_ok=True)
        return removed

    def health(self) -> str | None:
        """What is wrong with the user's cache in one sentence, None when nothing is."""
        return self.folder.problem or self._index.health()

    def _version(self) -> str:
        versions = [self._entries.version(), *(layer.version() for layer in self.shared), self.shipped.version()]
        return " ".join(map(str, versions))


def state_text(found: Found | None) -> str:
    """See `Store.state_text`."""
    if found is None or found.state is State.NOT_SEARCHED:
        return "not_searched"
    record = found.winner if found.winner is not None else found.standing
    return f"{found.state.value}:{(found.name or digest(record))[:24]}"


@lru_cache(maxsize=1)
def _machine() -> str:
    """What every native kernel here depends on: it is compiled for this CPU and linked with this torch."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = platform.processor()
    facts = [torch.__version__, str(Path(torch.__file__).parent), sys.platform, platform.machine(), flags]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:32]


def _key(home: Path | None, writable: bool) -> secret.Secret | None:
    """The key of the cache in `home`; None where the cache cannot be used."""
    if home is None:
        return None
    try:
        if not writable:
            return secret.load(home)
        make_private(home)
        return secret.load_or_make(home)
    except OSError as error:
        say_once(f"the cache in {home} cannot be used ({error.strerror or error}); winners last for this process alone")
        return None
