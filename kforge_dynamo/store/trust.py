"""Whom the user believes beside himself: ed25519 public keys by name, or anybody whose digests fit.

A signature covers the facts in `layer.json`, which hold the digests of everything else in a layer. The key that signs is 32
random bytes in a file that only its owner can read; the public key is 64 hexadecimal digits that may be told to everybody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kforge_dynamo.errors import StoreError
from kforge_dynamo.store import secret
from kforge_dynamo.store.envelope import SCHEMA, Refused

DIGEST = "digest"
"""The word for: believe a layer whose files have the digests that it states. Whoever can write there runs code here."""

METHOD = "ed25519"
_HEX = re.compile(r"[0-9a-f]{64}")
_NEEDED = "signatures need the package cryptography; pip install 'kforge-dynamo[remote]'"


@dataclass(frozen=True, slots=True)
class Trust:
    """`digest`: layers without a signature of a named key are believed too. `keys`: public keys as hexadecimal digits."""

    digest: bool
    keys: tuple[str, ...]


NOBODY = Trust(False, ())


def read_trust(words: Sequence[str]) -> Trust:
    """From "digest" and public keys. Raises: StoreError for another word."""
    for word in words:
        if word != DIGEST and not _HEX.fullmatch(word):
            raise StoreError(f"trust {word!r}: expected the word digest, or a public key of 64 hexadecimal digits")
    return Trust(DIGEST in words, tuple(dict.fromkeys(word for word in words if word != DIGEST)))


def make_key(path: Path) -> str:
    """Makes a key in the new file `path` and returns its public key. Raises: StoreError where there is a file already."""
    if path.exists():
        raise StoreError(f"{path} exists already; name another file, or remove it if nothing is signed with it any more")
    try:
        secret.make(path)
    except OSError as error:
        raise StoreError(f"no key can be written to {path} ({error.strerror or error}); name a folder that can") from error
    return public_key(path)


def public_key(path: Path) -> str:
    """The public key of the key in `path`. Raises: StoreError."""
    return _public_text(_private(path).public_key())


def sign(content: bytes, path: Path) -> dict[str, str]:
    """The signature of `content` by the key in `path`, as JSON data. Raises: StoreError."""
    key = _private(path)
    return {"method": METHOD, "key": _public_text(key.public_key()), "signature": key.sign(_covered(content)).hex()}


def signer(data: Any, content: bytes) -> str:
    """The public key whose signature of `content` the JSON data is. Raises: Refused where it is none, or of something else."""
    wanted = {"method": str, "key": str, "signature": str}
    if not isinstance(data, dict) or {name: type(value) for name, value in data.items()} != wanted:
        raise Refused("has a signature that is damaged")
    if data["method"] != METHOD or not _HEX.fullmatch(data["key"]):
        raise Refused(f"has a signature that is not {METHOD}")
    public, wrong = _public(data["key"])
    try:
        public.verify(bytes.fromhex(data["signature"]), _covered(content))
    except (wrong, ValueError) as error:
        raise Refused("has a signature that does not fit its content: it was changed after it was signed") from error
    return str(data["key"])


def _covered(content: bytes) -> bytes:
    return f"kforge {SCHEMA} layer {METHOD}\n".encode() + content


def _private(path: Path) -> Any:
    """Raises: StoreError."""
    material, problem = secret.read(path)
    if material is None:
        raise StoreError(f"the key {path} {problem or 'does not exist'}; kforge cache keygen makes one")
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise StoreError(_NEEDED) from error
    return Ed25519PrivateKey.from_private_bytes(material)


def _public(text: str) -> tuple[Any, type[Exception]]:
    """The key, and what its `verify` raises. Raises: Refused."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise Refused(f"cannot be checked: {_NEEDED}") from error
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text)), InvalidSignature
    except ValueError as error:
        raise Refused("has a signature of something that is no key") from error


def _public_text(key: Any) -> str:
    raw: bytes = key.public_bytes_raw()
    return raw.hex()
