"""Pictures of a profile for models that see, as `data:` addresses; checked against what the profile says of them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from kforge_dynamo.records.outcome import Trial

_MOST = 3
_MOST_BYTES = 4 << 20


def pictures(trial: Trial) -> tuple[str, ...]:
    """At most three pictures of at most 4 MiB each; a file that is gone or was changed is left out."""
    found = []
    for item in trial.profile.pictures if trial.profile is not None else ():
        try:
            data = Path(item.path).read_bytes() if item.file_bytes <= _MOST_BYTES else b""
        except OSError:
            continue
        if data and hashlib.sha256(data).hexdigest() == item.sha256:
            found.append(f"data:{item.mime};base64,{base64.b64encode(data).decode()}")
    return tuple(found[:_MOST])
