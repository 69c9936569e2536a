"""The stores that this process has open, and the winners of compiled graphs' sites in them."""

from __future__ import annotations

from pathlib import Path

import torch

from kforge_dynamo.errors import StoreError
from kforge_dynamo.languages.base import Launcher
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.outcome import Winner
from kforge_dynamo.records.site import Site
from kforge_dynamo.settings import Settings
from kforge_dynamo.store import Access, Found, Store, open_store
from kforge_dynamo.targets import detect

_STORES: dict[str | None, Store] = {}


def store_of(settings: Settings) -> Store:
    """The store that these settings name; sites look for their winners in it from then on."""
    limit_bytes = settings.cache_mib * 2**20
    access = Access(settings.cache_layers, settings.trust, settings.verify == "on-load", limit_bytes)
    store = _STORES[settings.cache_dir] = open_store(settings.cache_dir, access)
    return store


def resolve(site: Site) -> tuple[Winner, Launcher]:
    """Finds, builds where its binary is gone, and loads the winner of a site. Raises: StoreError with the reason."""
    store, winner = _stored(site)
    store.use(winner)
    candidate = winner.trial.candidate
    language = LANGUAGES[candidate.language]
    target = detect(torch.device(site.device))
    if target is None or target.name != site.key.device:
        raise StoreError(f"the winner was made for {site.key.device}, this is {target.name if target else site.device}")

    def build(folder: Path) -> Path:
        return language.build(candidate, site.task, target, folder)

    context = f"{language.toolchain()} {target.name}"
    return winner, language.load(store.artifact(candidate, build, context), candidate, site.task, site.raw_dims)


def _present(found: Found | None) -> Winner | None:
    return None if found is None else found.winner


def _stored(site: Site) -> tuple[Store, Winner]:
    """The winner of a site from the stores that this process has opened, the default one last."""
    for store in [*reversed(_STORES.values()), open_store(None)]:
        winner = store.winner_of(site.key, site.winner) if site.winner else _present(store.lookup(site.key, site.sizes))
        if winner is not None:
            return store, winner
    raise StoreError(f"the cache has no winner for task {site.key.task[:12]} on {site.key.device}")
