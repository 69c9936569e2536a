"""Records to text and back, and the digest of a record.

Identity comes from the fields: the digest walks `dataclasses.fields`, so a new field changes it and an unknown
type raises instead of being left out. A field that carries `LATER` is left out where it has its default, so that records
written before it existed keep their text and digest. Floats travel as hexadecimal text, so that no bit is lost.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from kforge_dynamo.errors import RecordError

R = TypeVar("R")

LATER: Mapping[str, Any] = types.MappingProxyType({"later": True})
"""Metadata of a field that was added to a record after entries had been stored; the field has a default."""


def plain(value: Any) -> Any:
    """`value` as JSON data: records become objects, tuples lists, floats `{"f": hex}`.

    Raises: RecordError for a type that no record may hold.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return {"f": value.hex() if math.isfinite(value) else repr(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field for field in dataclasses.fields(value) if not _left_out(field, getattr(value, field.name))]
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    raise RecordError(f"a record holds a {type(value).__name__}, which has no text form")


def _left_out(field: dataclasses.Field[Any], value: Any) -> bool:
    return "later" in field.metadata and value == field.default


def to_text(record: Any) -> str:
    """One line of JSON with sorted keys; equal records give equal text."""
    return json.dumps(plain(record), sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(record: Any) -> str:
    """SHA-256 of the record's type name and text, as 64 hexadecimal digits."""
    return hashlib.sha256(f"{type(record).__name__}:{to_text(record)}".encode()).hexdigest()


def from_text(kind: type[R], text: str) -> R:
    """The record of type `kind` that `text` describes.

    Raises: RecordError when the text is not JSON, lacks a field, has one too many, or a field has another type.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{kind.__name__}: the text is not JSON ({error})") from error
    return typing.cast(R, from_plain(kind, data))


def from_plain(kind: Any, data: Any) -> Any:
    """`plain` undone for the type `kind`. Raises: RecordError."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _from_union(kind, data)
    if origin is tuple:
        return _from_tuple(kind, data)
    if dataclasses.is_dataclass(kind):
        return _from_object(kind, data)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError as error:
            raise RecordError(f"{kind.__name__}: no such value: {data!r}") from error
    return _from_scalar(kind, data)


def _from_scalar(kind: Any, data: Any) -> Any:
    if kind is type(None) and data is None:
        return None
    if kind is float:
        return _float(data)
    if kind in (bool, int, str) and type(data) is kind:
        return data
    raise RecordError(f"expected {getattr(kind, '__name__', kind)}, found {type(data).__name__}: {str(data)[:60]!r}")


def _float(data: Any) -> float:
    if type(data) is not dict or len(data) != 1 or type(data.get("f")) is not str:
        raise RecordError(f"expected float, found {type(data).__name__}: {str(data)[:60]!r}")
    try:
        return float.fromhex(data["f"])
    except (ValueError, OverflowError) as error:
        raise RecordError(f"not a hexadecimal float: {data['f']!r}") from error


def _from_union(kind: Any, data: Any) -> Any:
    for member in typing.get_args(kind):
        try:
            return from_plain(member, data)
        except RecordError:
            continue
    raise RecordError(f"expected one of {kind}, found {str(data)[:60]!r}")


def _from_tuple(kind: Any, data: Any) -> Any:
    if not isinstance(data, list):
        raise RecordError(f"expected a list, found {type(data).__name__}")
    members = typing.get_args(kind)
    if len(members) == 2 and members[1] is Ellipsis:
        if members[0] is float:  # samples: most of what a stored winner holds
            return tuple(_float(item) for item in data)
        return tuple(from_plain(members[0], item) for item in data)
    if len(members) != len(data):
        raise RecordError(f"expected {len(members)} items, found {len(data)}")
    return tuple(from_plain(member, item) for member, item in zip(members, data, strict=True))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a record's fields; asked once a type, because asking takes as long as reading a record."""
    return typing.get_type_hints(kind)


def _from_object(kind: Any, data: Any) -> Any:
    fields = dataclasses.fields(kind)
    names = {field.name for field in fields}
    needed = {field.name for field in fields if "later" not in field.metadata}
    if not isinstance(data, dict) or not needed <= set(data) <= names:
        found = sorted(data) if isinstance(data, dict) else type(data).__name__
        raise RecordError(f"{kind.__name__}: expected the fields {sorted(names)}, found {found}")
    hints = _hints(kind)
    try:
        return kind(**{name: from_plain(hints[name], data[name]) for name in data})
    except (TypeError, ValueError) as error:
        raise RecordError(f"{kind.__name__}: {error}") from error
