"""What the value of a setting may be: from text of the environment, or an object of a program, to a field of `Settings`.

Each function takes any value and raises ValueError, TypeError, KeyError or OverflowError for one outside its domain.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: `domain` is how people are told what is allowed, `read` turns a value into the field's.

    `option` is False where only the environment sets it. `default` is in the form that `read` returns.
    """

    name: str
    env: str
    type: str
    domain: str
    default: Any
    doc: str
    read: Callable[[Any], Any]
    option: bool = True


def one_of(*names: str) -> Callable[[Any], str]:
    """One of these words, in small letters."""

    def read(value: Any) -> str:
        text = str(value).strip().lower()
        if not isinstance(value, str) or text not in names:
            raise ValueError
        return text

    return read


def seconds(value: Any) -> float:
    """Seconds of a day."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    number = float(value)
    if not math.isfinite(number) or not 0.0 <= number <= DAY_S:
        raise ValueError
    return number


def absolute_path(value: Any) -> str | None:
    """A path made absolute; None stays None."""
    if value is None:
        return None
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError
    return os.path.abspath(os.path.expanduser(text))


def program(value: Any) -> str | None:
    """The name of a program, or a path to it; None stays None."""
    if value is None:
        return None
    text = os.fspath(value)
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise ValueError
    if os.sep not in text and len(text.split()) > 1:
        raise ValueError
    return text.strip()


def words(value: Any) -> tuple[str, ...]:
    """Words, each once; text is split at commas."""
    if isinstance(value, str):
        value = value.split(",")
    found = tuple(os.fspath(word).strip() for word in value)
    if any("\0" in word for word in found):
        raise ValueError
    return tuple(dict.fromkeys(word for word in found if word))


def layers(value: Any) -> tuple[str, ...]:
    """Places of layers; local ones are made absolute."""
    places = words([value] if isinstance(value, os.PathLike) else value)
    return tuple(word if "://" in word or "::" in word else os.path.abspath(os.path.expanduser(word)) for word in places)


def believed(value: Any) -> tuple[str, ...]:
    """Public keys, and the word digest."""
    found = words(value)
    if not all(word == "digest" or re.fullmatch(r"[0-9a-f]{64}", word) for word in found):
        raise ValueError
    return found


def mebibytes(value: Any) -> float:
    """A size of at least one MiB."""
    if isinstance(value, bool) or not 1.0 <= float(value) <= 1e9:
        raise ValueError
    return float(value)


def memory_bytes(value: Any) -> int | None:
    """A number of bytes; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise ValueError
    return int(value)


def some_of(*names: str) -> Callable[[Any], tuple[str, ...]]:
    """Some of these names, at least one, each once; text is split at commas and spaces."""

    def read(value: Any) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(value.replace(",", " ").split() if isinstance(value, str) else value))
        if not found or not set(found) <= set(names):
            raise ValueError
        return found

    return read


def switch(value: Any) -> bool:
    """Yes or no in the words people use."""
    if isinstance(value, bool):
        return value
    return {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False, "": False}[
        str(value).strip().lower()
    ]


def word(value: Any) -> str:
    """A text without blanks inside; it may be empty."""
    text = str(value).strip()
    if len(text.split()) > 1:
        raise ValueError
    return text
