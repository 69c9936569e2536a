"""Whether a folder's file system has locks that a database may rely on.

SQLite's write-ahead log needs byte-range locks and shared memory between all that write; over a network file system it has
neither across machines (Source: sqlite.org, "Write-Ahead Logging"), and two machines that write would damage each other's
entries. So a cache there is not written at all: a local folder takes its place, and what is to be shared is a layer.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: its locks are part of opening a file
    fcntl = None  # type: ignore[assignment]

_MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = (
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cifs", "smb3", "smbfs", "ceph", "afs", "panfs", "pvfs2", "orangefs"),
    *("wekafs", "glusterfs", "fuse.sshfs", "fuse.glusterfs"),
)


def lack(folder: Path) -> str | None:
    """Why the existing `folder` cannot hold a database, as a part of a sentence; None where it can."""
    kind = _kind_of(folder)
    if kind in _NETWORK:
        return f"is on {kind}, a network file system without locks between machines"
    return None if fcntl is None or _locks(folder) else "is on a file system without locks"


def _kind_of(folder: Path) -> str | None:
    """The type of the file system that `folder` is on, as Linux names it; None where that is not known."""
    try:
        lines = _MOUNTS.read_text(errors="replace").splitlines()
        place = folder.resolve()
    except OSError:
        return None
    best: tuple[int, str] | None = None
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right.split():
            continue
        mount = Path(fields[4].replace("\\040", " "))
        if (place == mount or mount in place.parents) and (best is None or len(mount.parts) >= best[0]):
            best = (len(mount.parts), right.split()[0])
    return best[1] if best is not None else None


def _locks(folder: Path) -> bool:
    """Whether a byte-range lock can be taken in `folder`; True where that cannot be tried."""
    try:
        stream = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  its failure means something else than the lock's
    except OSError:
        return True
    with stream:
        try:
            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True
