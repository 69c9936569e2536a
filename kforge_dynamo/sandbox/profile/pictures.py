"""Pictures of instruments that only show a screen, for a model that can see."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.profile import Picture

MOST_BYTES = 5 << 20
"""What providers of vision models commonly take as one picture."""
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


def picture(path: Path) -> Picture:
    """The picture at `path`; its kind is read from its bytes, whatever its name says. The file is not copied.

    Raises: RecordError when it cannot be read, is no PNG, JPEG, GIF or WebP, or is larger than 5 MB.
    """
    try:
        size = path.stat().st_size
        if size > MOST_BYTES:
            raise RecordError(f"the picture {path} has {size} bytes, at most {MOST_BYTES} are taken; make it smaller")
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"the picture {path} cannot be read: {error.strerror}") from error
    mime = next((kind for head, kind in _KINDS if data.startswith(head)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        mime = "image/webp"
    if mime is None:
        raise RecordError(
            f"{path} is no picture: expected PNG, JPEG, GIF or WebP, found the bytes {data[:8].hex() or 'of an empty file'}"
        )
    return Picture(str(path.resolve()), mime, len(data), hashlib.sha256(data).hexdigest())
