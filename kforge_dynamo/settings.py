"""The only table of options and environment names, and the only place that reads the environment.

`torch.compile(model, backend="kforge", options={...})` takes the names of `ROWS` beside every name of Inductor's; each row
may also be set by its environment name. An option wins over the environment, the environment over the default.
"""

from __future__ import annotations

import difflib
import logging
import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
import torch._inductor  # `list_options`; read in torch 2.11 to 2.14
import torch.distributed

from kforge_dynamo import domains, surroundings, torch_logs
from kforge_dynamo.domains import Row
from kforge_dynamo.errors import SettingsError

LOGGER = logging.getLogger(torch_logs.NAME)
torch_logs.register()

LANGUAGE_NAMES = ("cpp", "triton")
"""What `languages` may name; a test compares it with `kforge_dynamo.languages`."""

KEY_NAMES = surroundings.KEY_NAMES

_RANK_COUNTS = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_RANKS = ("RANK", "LOCAL_RANK")
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 60}


@dataclass(frozen=True, slots=True)
class Settings:
    """What one call of `torch.compile` asked of kforge. Text and numbers only, so that it has a digest.

    `on_miss` is resolved (never "auto"). `cache_dir` is None where the platform's folder is to be used, `record` where nothing
    is recorded. `languages` is empty where every language may be used. Only `precision`, `on_miss`, `budget_s`,
    `region_budget_s`, `languages` and `prepack` change what is compiled; what the cache's layers answer is in the graph's epoch.
    """

    precision: str
    on_miss: str
    budget_s: float
    region_budget_s: float
    languages: tuple[str, ...]
    cache_dir: str | None
    disabled: bool
    log: str
    cache_layers: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()
    verify: str = "never"
    cache_mib: float = 4096.0
    record: str | None = None
    model: str = ""
    cxx: str | None = None
    sandbox: tuple[str, ...] = ()
    prepack: str = "verify"
    prepack_bytes: int | None = None

    @property
    def searching(self) -> bool:
        """Whether a miss may start a search in this process."""
        return self.on_miss in ("search", "background", "agent")

    @staticmethod
    def parse(options: Mapping[str, Any] | None = None) -> tuple[Settings, dict[str, Any]]:
        """The settings, and the options that are Inductor's, unchanged and in order.

        Raises: SettingsError in one sentence, for a name that neither side has or a value outside its domain.
        """
        given = dict(options or {})
        inductor = {name: value for name, value in given.items() if name not in _BY_OPTION}
        for name in inductor:
            _check_inductor_name(name)
        values = {row.name: _value_of(row, given) for row in ROWS}
        if values["on_miss"] == "auto":
            values["on_miss"] = "search" if may_search_by_default() else "fallback"
        return Settings(**values), inductor


ROWS = (
    Row(
        "precision",
        "KFORGE_PRECISION",
        "str",
        '"auto", "strict" or "mixed"',
        "auto",
        "What fp32 GEMM operands are promised: torch's own setting; component-wise fp32 accuracy; or fp16 operands with fp32 "
        "accumulation.",
        domains.one_of("auto", "strict", "mixed"),
    ),
    Row(
        "on_miss",
        "KFORGE_ON_MISS",
        "str",
        '"auto", "search", "background", "agent", "fallback" or "error"',
        "auto",
        'What to do for a region without a stored winner. "auto" is "search" in a single main process and "fallback" in forked, '
        'daemonic and multiprocessing children and in one of several ranks; "agent" is for `kforge warm --model` alone.',
        domains.one_of("auto", "search", "background", "agent", "fallback", "error"),
    ),
    Row(
        "budget_s",
        "KFORGE_BUDGET_S",
        "float",
        "0 to 86400 seconds",
        30.0,
        "Time that searches may take in this process, over all graphs and recompiles.",
        domains.seconds,
    ),
    Row(
        "region_budget_s",
        "KFORGE_REGION_BUDGET_S",
        "float",
        "0 to 86400 seconds",
        10.0,
        "Time that the search for one region may take.",
        domains.seconds,
    ),
    Row(
        "languages",
        "KFORGE_LANGUAGES",
        "list of str",
        f"some of {', '.join(LANGUAGE_NAMES)}, separated by commas in the environment",
        (),
        "Restricts the programming models that kernels are written in; without it all that work here are used.",
        domains.some_of(*LANGUAGE_NAMES),
    ),
    Row(
        "prepack",
        "KFORGE_PREPACK",
        "str",
        '"verify", "trust" or "off"',
        "verify",
        'When a packed copy of a weight outlives a call: "off" never, "verify" where it is frozen or, on a GPU, found unchanged '
        'in each call, "trust" until the weight changes as kforge can see, or `kforge_dynamo.invalidate()` is called.',
        domains.one_of("verify", "trust", "off"),
    ),
    Row(
        "prepack_bytes",
        "KFORGE_PREPACK_BYTES",
        "int",
        "0 or more bytes",
        None,
        "How much memory of a device those copies may take in this process; without it a fifth of what is free.",
        domains.memory_bytes,
    ),
    Row(
        "cache_dir",
        "KFORGE_CACHE_DIR",
        "path",
        "a folder that only this user can write",
        None,
        "Where winners are kept; without it the platform's cache folder for this user.",
        domains.absolute_path,
    ),
    Row(
        "cache_layers",
        "KFORGE_CACHE_LAYERS",
        "list of str",
        "folders, zip files or URLs, separated by commas",
        (),
        "Read-only answers of others, looked up in this order after one's own; docs/cache.md says how to make them.",
        domains.layers,
    ),
    Row(
        "trust",
        "KFORGE_TRUST",
        "list of str",
        "public keys of 64 hexadecimal digits, or the word digest, separated by commas",
        (),
        "Whom to believe for `cache_layers`: layers signed with these keys, or with digest whoever can write there.",
        domains.believed,
    ),
    Row(
        "verify",
        "KFORGE_VERIFY",
        "str",
        '"never" or "on-load"',
        "never",
        'With "on-load" a winner of a shared layer is verified in the sandbox here before it is used.',
        domains.one_of("never", "on-load"),
    ),
    Row(
        "cache_mib",
        "KFORGE_CACHE_MIB",
        "float",
        "1 or more MiB",
        4096.0,
        "How large the user's cache may grow; beyond it the least recently used go, never those in use.",
        domains.mebibytes,
    ),
    Row(
        "record",
        "KFORGE_RECORD",
        "path",
        "a file",
        None,
        "Adds the regions of this process to the file, for `kforge warm --recorded`; its graphs are compiled anew.",
        domains.absolute_path,
    ),
    Row(
        "disabled",
        "KFORGE_DISABLE",
        "bool",
        "1 or 0",
        False,
        "Turns kforge off: Inductor compiles everything.",
        domains.switch,
        option=False,
    ),
    Row(
        "sandbox",
        "KFORGE_SANDBOX",
        "list of str",
        f"on, off, or some of {', '.join(surroundings.SANDBOX_LAYERS)} with a minus before each",
        (),
        "Leaves layers of the sandbox out, as in -landlock,-seccomp, to find out which is in the way; off leaves all out.",
        surroundings.layers_left_out,
        option=False,
    ),
    Row(
        "log",
        "KFORGE_LOG",
        "str",
        '"debug", "info", "warning", "error" or "off"',
        "info",
        "The least serious kind of line that is written to stderr.",
        domains.one_of(*_LEVELS),
        option=False,
    ),
    Row(
        "model",
        "KFORGE_MODEL",
        "str",
        "a name that `kforge models list` shows",
        "",
        "The language model that `kforge warm` asks where it is given none.",
        domains.word,
        option=False,
    ),
    Row(
        "cxx",
        "KFORGE_CXX",
        "str",
        "the name of a C++ compiler in PATH, or a path",
        None,
        "Compiles kernels for CPUs; without it CXX where that is g++ or clang++, else g++, clang++ or c++.",
        domains.program,
        option=False,
    ),
)

_BY_OPTION = {row.name: row for row in ROWS if row.option}


def settings_table() -> tuple[tuple[str, str, str, str, str], ...]:
    """The table for people: option ("-" where only the environment sets it), environment name, domain, default, meaning."""
    return tuple((row.name if row.option else "-", row.env, row.domain, _default_text(row), row.doc) for row in ROWS)


def may_search_by_default() -> bool:
    """Whether this is a main process that is alone: not forked, not a child of `multiprocessing`, not one of several ranks."""
    child = _forked or multiprocessing.parent_process() is not None or multiprocessing.current_process().daemon
    return not child and not _one_of_several_ranks()


def disabled() -> bool:
    """Whether KFORGE_DISABLE turns kforge off. Raises: SettingsError."""
    return bool(_value_of(next(row for row in ROWS if row.name == "disabled"), {}))


def named_compiler() -> tuple[str, str] | None:
    """The environment name that names a C++ compiler here, and what it says; None without one. Raises: SettingsError."""
    own = _value_of(next(row for row in ROWS if row.name == "cxx"), {})
    if own is not None:
        return "KFORGE_CXX", own
    text = os.environ.get("CXX", "").strip()
    return ("CXX", text) if text else None


def present_keys() -> tuple[str, ...]:
    """The names of `KEY_NAMES` that are set here. Their values are not read."""
    return tuple(name for name in KEY_NAMES if name in os.environ)


def model_key(name: str) -> str | None:
    """The key of a language model's provider, under the name the model's entry gives; None where it is not set."""
    return os.environ.get(name)


def config_folder() -> Path:
    """Where this user's `models.toml` is looked for."""
    return platformdirs.user_config_path("kforge", appauthor=False)


def keep_litellm_offline() -> None:
    """Before litellm is imported: it would fetch its table of prices from the network."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")


def present_names() -> tuple[str, ...]:
    """The environment names of the table that are set here."""
    return tuple(row.env for row in ROWS if row.env in os.environ)


def worker_environment() -> dict[str, str]:
    """The environment for a worker: what compilers, torch and devices go by, no secrets, kforge off."""
    return surroundings.inherited(os.environ) | {"KFORGE_DISABLE": "1"}


def sandbox_without() -> frozenset[str]:
    """The layers that KFORGE_SANDBOX leaves out. Raises: SettingsError."""
    return frozenset(_value_of(next(row for row in ROWS if row.name == "sandbox"), {}))


def compiler_folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Folders that compilers read here beside the system's own, and folders that they keep their caches in."""
    return surroundings.compiler_folders(os.environ)


def use_temporary_folder(path: str) -> None:
    """This process and the programs it starts put their temporary files below `path`."""
    os.environ["TMPDIR"] = path
    tempfile.tempdir = path


def configure_logging(settings: Settings) -> None:
    """Sends the lines of the logger "kforge" to stderr from `settings.log` on, each as `kforge: sentence`.

    Where the program has configured logging itself, its handlers get the lines and ours stays silent; where TORCH_LOGS names
    kforge, torch writes them.
    """
    if torch_logs.asked_for():
        return
    LOGGER.setLevel(_LEVELS[settings.log])
    if not any(isinstance(handler, torch_logs.Stderr) for handler in LOGGER.handlers):
        LOGGER.addHandler(torch_logs.Stderr())


def _check_inductor_name(name: Any) -> None:
    known = set(torch._inductor.list_options())
    if not isinstance(name, str):
        raise SettingsError(f"an option's name is text, found {name!r} of type {type(name).__name__}.")
    if name.replace("-", "_") in known:
        return
    nearest = difflib.get_close_matches(name, [*_BY_OPTION, *sorted(known)], n=1, cutoff=0.5)
    hint = f"the nearest name is {nearest[0]!r}" if nearest else f"kforge's own are {', '.join(_BY_OPTION)}"
    raise SettingsError(f"neither kforge nor Inductor has an option {name!r}; {hint}.")


def _value_of(row: Row, given: Mapping[str, Any]) -> Any:
    if row.option and row.name in given:
        return _read(row, given[row.name], f"option {row.name!r}")
    text = os.environ.get(row.env)
    if text is None or not text.strip():
        return row.default
    return _read(row, text, f"environment name {row.env}")


def _read(row: Row, value: Any, source: str) -> Any:
    try:
        return row.read(value)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise SettingsError(f"{source} has no value {value!r}: expected {row.domain}.") from error


def _default_text(row: Row) -> str:
    if row.default in (None, (), ""):
        return "-"
    return ("1" if row.default else "0") if isinstance(row.default, bool) else str(row.default)


def _one_of_several_ranks() -> bool:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size() > 1
    counts = [os.environ[name] for name in _RANK_COUNTS if name in os.environ]
    if counts:
        return any(count.strip() != "1" for count in counts)
    return any(name in os.environ for name in _RANKS)


def _after_fork() -> None:
    global _forked
    _forked = True


_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
