"""Built kernels: checked before use, built again when they are not what was built, never half."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from store_records import candidate, in_a_child

from kforge_dynamo.errors import BuildError, StoreError
from kforge_dynamo.records.codec import digest
from kforge_dynamo.store import close_stores, open_store
from kforge_dynamo.store.artifacts import ArtifactRecord
from kforge_dynamo.store.envelope import seal


class Builder:
    """Writes `text` and counts how often it was asked."""

    def __init__(self, text: bytes = b"machine code", file: str = "kernel.so") -> None:
        self.text, self.file, self.count = text, file, 0

    def __call__(self, folder):
        self.count += 1
        assert list(folder.iterdir()) == []
        (folder / "kernel.cpp").write_text("source")
        (folder / self.file).write_bytes(self.text)
        return folder / self.file


def homes(tmp_path):
    return [path for path in (tmp_path / "cache" / "v1" / "artifacts").iterdir() if not path.name.startswith(".")]


def test_artifact_is_built_once_for_a_candidate_and_context(store, reopen):
    build = Builder()
    first = store.artifact(candidate(), build, "g++ 12")
    assert first.read_bytes() == b"machine code" and build.count == 1
    assert reopen().artifact(candidate(), build, "g++ 12") == first and build.count == 1
    assert store.artifact(candidate("other"), build, "g++ 12") != first and build.count == 2
    assert store.artifact(candidate(), build, "g++ 13") != first and build.count == 3


def test_artifact_made_with_another_torch_is_not_taken(store, monkeypatch):
    build = Builder()
    first = store.artifact(candidate(), build)
    monkeypatch.setattr("kforge_dynamo.store.layers._machine", lambda: "another torch")
    assert store.artifact(candidate(), build) != first and build.count == 2


@pytest.mark.parametrize("file", ["kernel.so", "artifact.json"])
@pytest.mark.parametrize("place", range(0, 100, 7))
def test_artifact_with_a_changed_byte_is_built_again(store, tmp_path, file, place):
    build = Builder(b"machine code " * 30)
    path = store.artifact(candidate(), build).parent / file
    data = bytearray(path.read_bytes())
    at = place * len(data) // 100
    data[at] ^= 1
    path.write_bytes(data)
    assert store.artifact(candidate(), build).read_bytes() == b"machine code " * 30
    assert build.count == 2 and len(homes(tmp_path)) == 1


@pytest.mark.parametrize("harm", ["gone", "link", "folder", "record gone", "record cut", "record of another"])
def test_artifact_that_is_not_what_was_built_is_built_again(store, tmp_path, harm):
    build = Builder()
    path = store.artifact(candidate(), build)
    record = path.parent / "artifact.json"
    if harm in ("gone", "link", "folder"):
        path.rename(tmp_path / "moved")
    if harm == "link":
        path.symlink_to(tmp_path / "moved")
    if harm == "folder":
        path.mkdir()
    if harm == "record gone":
        record.unlink()
    if harm == "record cut":
        record.write_text(record.read_text()[:50])
    if harm == "record of another":
        other = store.artifact(candidate("other"), build).parent / "artifact.json"
        build.count = 1
        shutil.copy(other, record)
    assert store.artifact(candidate(), build).read_bytes() == b"machine code"
    assert build.count == 2


def test_record_that_names_a_file_elsewhere_is_refused(store, tmp_path):
    """Even with a right tag, which only a process of the same user can make."""
    build = Builder()
    path = store.artifact(candidate(), build)
    (tmp_path / "elsewhere.so").write_bytes(b"machine code")
    text = json.loads((path.parent / "artifact.json").read_text())["artifact"]
    record = ArtifactRecord(digest(candidate()), text["context"], "../../../../elsewhere.so", text["content"])
    (path.parent / "artifact.json").write_text(seal("artifact", record, store._secret))
    assert store.artifact(candidate(), build) == path and build.count == 2


def test_artifact_may_be_a_folder_and_each_file_of_it_counts(store):
    def build(folder):
        inner = folder / "kernel"
        (inner / "deep").mkdir(parents=True)
        (inner / "deep" / "a.cubin").write_bytes(b"one")
        (inner / "b.json").write_bytes(b"two")
        built.append(1)
        return inner

    built: list[int] = []
    path = store.artifact(candidate(), build)
    assert store.artifact(candidate(), build) == path and len(built) == 1
    (path / "deep" / "a.cubin").write_bytes(b"other")
    store.artifact(candidate(), build)
    (path / "more.json").write_bytes(b"added")
    store.artifact(candidate(), build)
    assert len(built) == 3


def test_build_that_fails_leaves_nothing_and_its_error_goes_through(store, tmp_path):
    def build(folder):
        (folder / "half.o").write_bytes(b"x")
        raise BuildError("no such register")

    with pytest.raises(BuildError, match="no such register"):
        store.artifact(candidate(), build)
    assert list((tmp_path / "cache" / "v1" / "artifacts").iterdir()) == []


def test_build_that_returns_a_file_it_did_not_make_is_an_error(store):
    with pytest.raises(StoreError, match="left nothing"):
        store.artifact(candidate(), lambda folder: folder / "missing.so")


def test_two_processes_that_build_the_same_share_one(store, tmp_path):
    def work():
        def slow(folder):
            time.sleep(0.2)
            return Builder(str(os.getpid()).encode())(folder)

        (tmp_path / f"got-{os.getpid()}").write_bytes(
            open_store(str(tmp_path / "cache")).artifact(candidate(), slow).read_bytes()
        )

    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                close_stores()
                work()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)
    assert len({path.read_bytes() for path in tmp_path.glob("got-*")}) == 1 and len(homes(tmp_path)) == 1


def test_build_that_is_killed_leaves_nothing_that_is_taken_for_an_artifact(store, tmp_path):
    def work():
        def killed(folder):
            (folder / "kernel.so").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

        open_store(str(tmp_path / "cache")).artifact(candidate(), killed)

    assert in_a_child(work) == -signal.SIGKILL
    assert homes(tmp_path) == []
    assert store.artifact(candidate(), Builder()).read_bytes() == b"machine code"
    left = [path for path in (tmp_path / "cache" / "v1" / "artifacts").iterdir() if path.name.startswith(".")]
    assert len(left) == 1
    os.utime(left[0], (0, 0))
    store.artifact(candidate("other"), Builder())
    assert not left[0].exists()


def test_scratch_folder_is_this_process_s_and_goes_with_it(store, tmp_path):
    def work():
        place = open_store(str(tmp_path / "cache"))
        root = place.artifacts_root
        assert root.is_dir() and root == place.artifacts_root
        (tmp_path / "name").write_text(str(root))
        atexit._run_exitfuncs()

    mine = store.artifacts_root
    assert in_a_child(work) == 0
    assert not Path((tmp_path / "name").read_text()).exists()
    assert mine.is_dir(), "a fork does not remove its parent's folder"


def test_verification_names_each_artifact_that_was_changed(store):
    good = store.artifact(candidate(), Builder())
    bad = store.artifact(candidate("other"), Builder())
    bad.write_bytes(b"other code")
    assert {home: problem is None for home, problem in store.artifacts().all()} == {good.parent: True, bad.parent: False}
    assert store.artifacts().size_bytes() > 0
    assert store.clear() == (0, 2) and list(store.artifacts().all()) == []
