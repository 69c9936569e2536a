"""Layers, keys, epochs: what is kept between processes, and what may be believed of it."""

from kforge_dynamo.store.entries import Current, Entry, Found
from kforge_dynamo.store.envelope import SCHEMA
from kforge_dynamo.store.explain import Miss
from kforge_dynamo.store.layers import UNVERIFIED, Access, Store, close_stores, key_of, open_store, state_text

__all__ = [
    "SCHEMA",
    "UNVERIFIED",
    "Access",
    "Current",
    "Entry",
    "Found",
    "Miss",
    "Store",
    "close_stores",
    "key_of",
    "open_store",
    "state_text",
]
