"""The form of an entry on disk: `{"schema": 1, "winner": {...}, "authentication": {...}}`.

The tag covers schema, kind, method, key and every field of the record, in the canonical text of `records.codec`. What fails
is `Refused` and never becomes a record. An old entry put back in the place of a newer one is not noticed: it was true once.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any, TypeVar

from kforge_dynamo.errors import RecordError, StoreError
from kforge_dynamo.records.codec import from_plain, plain
from kforge_dynamo.records.outcome import Authentication
from kforge_dynamo.store.secret import Secret

R = TypeVar("R")

SCHEMA = 1
"""Number of the form of keys, records and folders. Another number is another cache."""

HMAC = "hmac-sha256"
MANIFEST = "manifest"


class Refused(StoreError):
    """An entry is damaged, or nobody vouches for it."""


class Foreign(Refused):
    """An entry was made with another key: by another user, on another machine, or before the key was lost."""


def seal(kind: str, record: Any, secret: Secret) -> str:
    """The entry that holds `record` under the name `kind`, vouched for by `secret`."""
    data = plain(record)
    authentication = Authentication(HMAC, secret.key_id, secret.tag(_covered(kind, HMAC, secret.key_id, canonical(data))))
    return canonical({"schema": SCHEMA, kind: data, "authentication": plain(authentication)})


def unseal(kind: str, record_type: type[R], text: str, secret: Secret, name: str | None = None) -> R:
    """The record in `text`, with the digest `name` if one is given.

    Raises: Refused, in a sentence without a subject ("was made with another key").
    """
    envelope = parse(text)
    if not isinstance(envelope, dict) or set(envelope) != {"schema", kind, "authentication"}:
        raise Refused("is damaged: it has not the fields of an entry")
    if envelope["schema"] != SCHEMA or type(envelope["schema"]) is not int:
        raise Refused(f"has the schema {envelope['schema']!r}, not {SCHEMA}")
    try:
        authentication: Authentication = from_plain(Authentication, envelope["authentication"])
    except RecordError as error:
        raise Refused(f"is damaged: {error}") from error
    if authentication.method != HMAC or authentication.key_id != secret.key_id:
        raise Foreign("was made with another key")
    content = canonical(envelope[kind])
    covered = _covered(kind, authentication.method, authentication.key_id, content)
    if not hmac.compare_digest(secret.tag(covered).encode(), authentication.tag.encode()):
        raise Refused("was changed after it was stored")
    if name is not None and named(record_type, content) != name:
        raise Refused("stands in the place of another entry")
    return record_of(record_type, envelope[kind])


def believed(kind: str, record_type: type[R], text: str, name: str) -> R:
    """The record in `text`, which has the digest `name`, whoever made it. Raises: Refused."""
    envelope = parse(text)
    if not isinstance(envelope, dict) or set(envelope) != {"schema", kind, "authentication"}:
        raise Refused("is damaged: it has not the fields of an entry")
    if envelope["schema"] != SCHEMA or type(envelope["schema"]) is not int:
        raise Refused(f"has the schema {envelope['schema']!r}, not {SCHEMA}")
    if named(record_type, canonical(envelope[kind])) != name:
        raise Refused("was changed after it was stored")
    return record_of(record_type, envelope[kind])


def record_of(record_type: type[R], data: Any) -> R:
    """`data` as a record. Raises: Refused."""
    try:
        record: R = from_plain(record_type, data)
    except RecordError as error:
        raise Refused(f"does not hold a {record_type.__name__}: {error}") from error
    return record


def canonical(data: Any) -> str:
    """JSON data as one line with sorted keys, as `records.codec.to_text` writes it."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)


def parse(text: str) -> Any:
    """JSON data. Raises: Refused."""
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refused(f"is damaged: not JSON ({error})") from error


def named(record_type: type[Any], content: str) -> str:
    """The digest of a record, from its canonical text; see `records.codec.digest`."""
    return hashlib.sha256(f"{record_type.__name__}:{content}".encode()).hexdigest()


def _covered(kind: str, method: str, key_id: str, text: str) -> str:
    return f"kforge {SCHEMA} {kind} {method} {key_id}\n{text}"


def _no_constant(word: str) -> Any:
    raise ValueError(f"the number {word} is not written as records write numbers")
