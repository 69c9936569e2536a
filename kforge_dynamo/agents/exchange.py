"""The model that is whoever reads a folder: each prompt becomes a file there, and its reply is awaited beside it.

A person or any coding agent can be the model: read `NAME.prompt.md`, write `NAME.reply.md` (best under another name first,
then renamed, so that no half reply is read). The names hold a digest of the prompt, so a reply can only be taken for the
prompt it was written for, and a run that is resumed finds the replies that came while it was gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from kforge_dynamo.agents.model import Ask, Reply
from kforge_dynamo.errors import ModelError

_POLL_S = 0.2
README = """# Being the model

Each `NAME.prompt.md` here is a request; it is open as long as there is no `NAME.reply.md` with the same NAME.
Read the prompt, write your reply to a file of another name, then rename it to `NAME.reply.md`.
The prompt says what a reply has to hold. A reply `stop` alone ends the run with the best kernel so far.
"""


class ExchangeModel:
    """See the module. `now` and `sleep` are passed in so that tests need no waiting."""

    def __init__(
        self, folder: Path, now: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.name = f"exchange:{folder}"
        self._folder, self._now, self._sleep = folder, now, sleep

    def ask(self, ask: Ask, timeout_s: float) -> Reply:
        """The text of the reply file, once it is there and no longer grows."""
        text = f"{ask.system}\n\n{ask.user}\n"
        name = f"{ask.step:04d}-{ask.role}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        reply = self._folder / f"{name}.reply.md"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(self._folder / "README.md", README)
            _write(self._folder / f"{name}.prompt.md", text)
        except OSError as error:
            raise ModelError("down", f"the exchange folder {self._folder} cannot be written: {error}") from error
        started, size = self._now(), -1
        while self._now() - started < timeout_s:
            found = _size(reply)
            if found > 0 and found == size:
                return self._read(reply, self._now() - started)
            size = found
            self._sleep(_POLL_S)
        raise ModelError("stalled", f"nobody wrote {reply} within {timeout_s:.0f} s; resume the run once it is there")

    def _read(self, path: Path, seconds: float) -> Reply:
        text = path.read_text(encoding="utf-8", errors="replace")
        if text.strip().lower() == "stop":
            raise ModelError("refused", f"{path.name} says stop")
        if not text.strip():
            raise ModelError("empty", f"{path.name} holds no text")
        return Reply(text, seconds=seconds)


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return -1


def _write(path: Path, text: str) -> None:
    """Whole or not at all; a file that is there already stays."""
    if path.exists():
        return
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
