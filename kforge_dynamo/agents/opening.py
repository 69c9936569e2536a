"""From the name of a model to the model: litellm's, a folder, a script, a record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kforge_dynamo.agents.exchange import ExchangeModel
from kforge_dynamo.agents.model import Ask, Model, Reply, ScriptedModel, read_script
from kforge_dynamo.agents.providers import LitellmModel
from kforge_dynamo.agents.registry import PREFIXES, ModelEntry, find
from kforge_dynamo.errors import ModelError

_DAY_S = 86400.0


class EndOfRecord:
    """The model of a replay: every reply comes from the record, and this is asked where the record has none."""

    def __init__(self, name: str) -> None:
        self.name = name

    def ask(self, ask: Ask, timeout_s: float) -> Reply:
        """Raises: ModelError."""
        raise ModelError("missing", f"the record has no reply of the {ask.role} at step {ask.step}")


def entry_of(name: str, user: Mapping[str, ModelEntry]) -> ModelEntry:
    """What is known of a model; for folders, scripts and records nothing is paid. Raises: ModelError."""
    if _prefixed(name) is not None:
        limit_s = _DAY_S if name.startswith("exchange:") else 60.0
        return ModelEntry(name, input_price=0.0, output_price=0.0, timeout_s=limit_s)
    return find(name, user)


def open_model(name: str, user: Mapping[str, ModelEntry]) -> Model:
    """The model called `name`. Nothing is sent yet. Raises: ModelError for an unknown name or a missing key, SettingsError for
    a script that is none."""
    place = _prefixed(name)
    if place is None:
        return LitellmModel(name, find(name, user))
    if not place:
        raise ModelError("unknown", f"model {name!r}: expected a path behind the colon")
    path = Path(place).expanduser()
    if name.startswith("exchange:"):
        return Free(ExchangeModel(path.resolve()))
    if name.startswith("scripted:"):
        return Free(ScriptedModel(read_script(path), name))
    return EndOfRecord(name)


def _prefixed(name: str) -> str | None:
    """What stands behind a prefix; None for a name without one."""
    prefix, colon, place = name.partition(":")
    return place if colon and prefix in PREFIXES else None


class Free:
    """A model whose replies cost nothing."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.name = model.name

    def ask(self, ask: Ask, timeout_s: float) -> Reply:
        """The reply, with its price."""
        reply = self._model.ask(ask, timeout_s)
        return Reply(reply.text, reply.prompt_tokens, reply.reply_tokens, 0.0, reply.seconds)
