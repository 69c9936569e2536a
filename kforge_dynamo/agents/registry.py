"""Names of language models, what each needs and costs: those that ship, and the user's own in `models.toml`.

```toml
[models.local]                      # kforge warm --model local
model = "openai/qwen3-coder"        # litellm's name: provider/model
api_base = "http://127.0.0.1:8000/v1"
context_tokens = 32768
reply_tokens = 4096
input_price = 0.0                   # US dollars per million tokens
output_price = 0.0
key = "MY_SERVER_API_KEY"           # the NAME of an environment variable; never the key itself
```

Beside the names: `builtin` (the built-in generator alone), `exchange:DIR`, `scripted:FILE`, `replay:RUN`, and any of litellm's
names with a provider, like `openrouter/vendor/model`.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kforge_dynamo.errors import ModelError, SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIXES = ("exchange", "scripted", "replay")
BUILTIN = "builtin"
FILE = "models.toml"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """How to reach a model. `model` is litellm's name, `key` the name of the environment variable with its key (empty: none).

    `context_tokens` bounds prompt and reply together. Prices are US dollars per million tokens, None where unknown: then
    litellm's own table is asked. `effort` goes out as `reasoning_effort` where it is not empty. `timeout_s` is the limit of one
    request, repetitions included; `retries` how often litellm repeats it after errors of the server.
    """

    model: str
    key: str = ""
    api_base: str = ""
    context_tokens: int = 128_000
    reply_tokens: int = 16_000
    input_price: float | None = None
    output_price: float | None = None
    vision: bool = False
    effort: str = ""
    timeout_s: float = 300.0
    retries: int = 2


_PROVIDER_KEYS = {
    "anthropic": "ANTHROPIC_API_KEY",
    "azure": "AZURE_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "groq": "GROQ_API_KEY",
    "mistral": "MISTRAL_API_KEY",
    "openai": "OPENAI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "xai": "XAI_API_KEY",
}


def _entry(model: str, context: int, prices: tuple[float, float], vision: bool = True, effort: str = "") -> ModelEntry:
    key = _PROVIDER_KEYS[model.split("/")[0]]
    return ModelEntry(model, key, "", context, 32_000, prices[0], prices[1], vision, effort)


COMMON: Mapping[str, ModelEntry] = {
    "claude-opus": _entry("anthropic/claude-opus-5-5", 1_000_000, (4.0, 20.0)),
    "claude-sonnet": _entry("anthropic/claude-sonnet-5-5", 1_000_000, (2.0, 10.0)),
    "claude-haiku": _entry("anthropic/claude-haiku-5-5", 1_000_000, (0.1, 0.5)),
    "gpt": _entry("openai/gpt-5.6", 922_000, (4.0, 20.0), effort="medium"),
    "gpt-mini": _entry("openai/gpt-5.4-mini", 272_000, (0.75, 4.5), effort="medium"),
    "gemini-pro": _entry("gemini/gemini-3.1-pro-preview", 1_048_576, (2.0, 12.0)),
    "gemini-flash": _entry("gemini/gemini-3.8-flash", 1_048_576, (0.75, 3.75)),
    "deepseek": _entry("deepseek/deepseek-v4-pro", 1_000_000, (1.32, 3.96), vision=False),
    "grok": _entry("xai/grok-4.7", 500_000, (2.0, 6.0)),
    "mistral-large": _entry("mistral/mistral-large-4", 1_048_576, (0.7, 2.1)),
    "ollama": ModelEntry("openai/default", api_base="http://127.0.0.1:11434/v1", context_tokens=32_768, reply_tokens=4_096,
                         input_price=0.0, output_price=0.0),
}  # fmt: skip
"""Source of names, context sizes and prices: `model_cost` of litellm 1.110.2. `ollama` is a server on this machine; its model is
chosen in `models.toml`."""


def read_user(folder: Path) -> dict[str, ModelEntry]:
    """The entries of `models.toml` in `folder`, none where there is no such file.

    Raises: SettingsError that names the file, the entry and the field.
    """
    path = folder / FILE
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from error
    tables = data.get("models", {})
    if set(data) - {"models"} or not isinstance(tables, dict):
        raise SettingsError(f"{path}: expected tables [models.NAME], found {sorted(data)}")
    return {name: _user_entry(f"{path}: [models.{name}]", table) for name, table in tables.items()}


def _user_entry(place: str, table: Any) -> ModelEntry:
    if not isinstance(table, dict) or not isinstance(table.get("model"), str):
        raise SettingsError(f'{place}: expected at least model = "provider/name"')
    fields = {field.name: field for field in dataclasses.fields(ModelEntry)}
    for name, value in table.items():
        if name not in fields:
            hint = " (a key comes from the environment: key = NAME_OF_THE_VARIABLE)" if "key" in name else ""
            raise SettingsError(f"{place}: no field {name!r}{hint}; the fields are {', '.join(fields)}")
        kind = (
            type(fields[name].default) if name not in ("model", "input_price", "output_price") else (str, float)[name != "model"]
        )
        good = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
        if not good or (isinstance(value, int | float) and value < 0):
            raise SettingsError(f"{place}: {name} = {value!r}: expected {kind.__name__}, not negative")
    if table.get("key") and not str(table["key"]).replace("_", "").isalnum():
        raise SettingsError(f"{place}: key is the NAME of an environment variable, and this is none")
    default = _PROVIDER_KEYS.get(str(table["model"]).split("/")[0], "") if not table.get("api_base") else ""
    values: dict[str, Any] = {"key": default} | table
    return ModelEntry(**values)


def find(name: str, user: Mapping[str, ModelEntry]) -> ModelEntry:
    """The entry called `name`, the user's first; a name with a slash is litellm's own.

    Raises: ModelError that says which names there are.
    """
    if name in user:
        return user[name]
    if name in COMMON:
        return COMMON[name]
    if "/" in name and ":" not in name.split("/")[0]:
        return ModelEntry(name, _PROVIDER_KEYS.get(name.split("/")[0], ""))
    known = [*user, *COMMON, BUILTIN, *(f"{prefix}:..." for prefix in PREFIXES)]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ModelError("unknown", f"no model is called {name!r}; {hint}There are {', '.join(known)}, and litellm's provider/model")
