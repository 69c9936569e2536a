"""torch's own logging: kforge's logger is registered there, and what TORCH_LOGS asked for is kept.

Private API, read in torch 2.11.0, 2.13.0 and 2.14.1: `torch._logging._internal.register_log(alias, logger)`,
`log_state.get_log_level_pairs()`. A release without them has no lines of kforge in TORCH_LOGS, and nothing else changes.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

from torch._logging import _internal

NAME = "kforge"


class Stderr(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment, one line a record, where nobody else handles it."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if logging.getLogger().handlers or sys.stderr is None:
            return
        try:
            sys.stderr.write("kforge: " + " ".join(record.getMessage().split()) + "\n")
        except (OSError, ValueError):  # a closed stream must not stop a compile
            return


def register() -> None:
    """Makes "kforge" a name of TORCH_LOGS and of `torch._logging.set_logs`; called once, when settings are imported."""
    with contextlib.suppress(AttributeError, TypeError):
        _internal.register_log(NAME, NAME)


def asked_for() -> bool:
    """Whether TORCH_LOGS or set_logs has asked for kforge's lines: their level and their form are torch's then."""
    state: Any = _internal.log_state
    try:
        return NAME in dict(state.get_log_level_pairs())
    except AttributeError:
        return False
