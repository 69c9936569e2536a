"""One log line a fact: what the store could not do, and what to do about it."""

from __future__ import annotations

import logging

_LOG = logging.getLogger("kforge")
_said: set[str] = set()


def say_once(sentence: str) -> None:
    """Logs `sentence` as a warning unless this process has already said it."""
    if sentence not in _said:
        _said.add(sentence)
        _LOG.warning("%s", sentence)
