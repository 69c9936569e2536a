"""The layer that ships: found in a source tree and in a wheel, every file checked, nothing used that is not what was shipped."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from store_records import KEY, MADE_WITH, standing, winner

from kforge_dynamo.records.outcome import State
from kforge_dynamo.store import Store, pinned
from kforge_dynamo.store.file_layer import NAME, read_manifest
from kforge_dynamo.store.folder import Folder
from kforge_dynamo.store.places import FolderFiles
from kforge_dynamo.store.ship import refresh, ship
from kforge_dynamo.store.shipped import Shipped, folder

ROOT = Path(__file__).resolve().parents[2]
TASK = '{"row_axes":["m"],"col_axes":[],"inputs":[],"nodes":[],"outputs":[]}'


@pytest.fixture
def home(tmp_path):
    """A layer with three winners, and the module with its digest."""
    (tmp_path / "kernel_cache").mkdir()
    records = [winner((1, 64), source="wide\r\n\tünïcode"), winner((8, 8), source="narrow")]
    records.append(dataclasses.replace(winner(source="gpu", key=dataclasses.replace(KEY, device="NVIDIA H200")), task=TASK))
    ship(records, tmp_path / "kernel_cache", tmp_path / "pinned.py")
    return tmp_path / "kernel_cache"


def digest_of(home):
    return re.search(r'"([0-9a-f]{64})"', (home.parent / "pinned.py").read_text())[1]


def opened(home):
    return Shipped(home, digest_of(home))


def files(home):
    return sorted(path for path in home.rglob("*") if path.is_file() and path.name != NAME)


def test_shipped_winner_is_found_as_it_was(home):
    layer = opened(home)
    assert layer.lookup(KEY, (3,), None).winner == winner((1, 64), source="wide\r\n\tünïcode")
    assert layer.lookup(KEY, (8,), None).winner == winner((8, 8), source="narrow")
    assert layer.lookup(KEY, (65,), None) is None
    assert layer.lookup(KEY, (3,), None).layer == "shipped" and layer.problem is None


def test_shipped_folders_are_named_for_people(home):
    folders = {path.parent.relative_to(home).as_posix() for path in files(home)}
    assert len(folders) == 3
    assert any(re.fullmatch(r"some-cpu-avx512-2-threads/[a-z0-9-]+-[0-9a-f]{16}", name) for name in folders)
    assert any(name.startswith("nvidia-h200/") for name in folders)
    assert {path.name for path in files(home)} == {"winner.json", "kernel.cpp"}


def test_shipped_winner_of_other_software_is_a_seed(home):
    found = opened(home).lookup(KEY, (8,), lambda language: dataclasses.replace(MADE_WITH, torch="newer"))
    assert found.state is State.STALE and "newer" in found.reason


@pytest.mark.parametrize("number", range(6))
def test_shipped_file_with_a_changed_byte_is_not_used(home, number, caplog):
    path = files(home)[number]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    layer = opened(home)
    with caplog.at_level(logging.WARNING, "kforge"):
        entries = list(layer.all())
        for key in {entry.key for entry in entries}:
            for size in (3, 8):
                found = layer.lookup(key, (size,), None)
                assert found is None or found.winner.trial.candidate.source in ("wide\r\n\tünïcode", "narrow", "gpu")
    assert sum(entry.problem is not None for entry in entries) == 1
    assert any("changed after it was shipped" in line for line in caplog.messages)


def test_changed_manifest_turns_the_whole_layer_off_with_one_line(home, caplog):
    digest = digest_of(home)
    path = home / NAME
    path.write_text(path.read_text().replace('"low": 1', '"low": 2'))
    with caplog.at_level(logging.WARNING, "kforge"):
        layer = Shipped(home, digest)
    assert layer.lookup(KEY, (8,), None) is None and list(layer.all()) == []
    assert len(caplog.messages) == 1 and "reinstall" in layer.problem


@pytest.mark.parametrize("harm", ["cut", "gone", "folder", "binary"])
def test_damaged_manifest_turns_the_layer_off(home, harm):
    digest = digest_of(home)
    path = home / NAME
    data = path.read_bytes()
    path.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm != "gone":
        path.write_bytes(data[:-20] if harm == "cut" else b"\xff\xfe" + data)
    layer = Shipped(home, digest)
    assert layer.problem is not None and layer.lookup(KEY, (8,), None) is None


def test_missing_layer_is_no_error():
    layer = Shipped(None)
    assert layer.lookup(KEY, (8,), None) is None and "reinstall" in layer.problem


def test_shipping_again_replaces_and_keeps_the_others(home):
    ship([winner((8, 8), source="better")], home, home.parent / "pinned.py")
    layer = opened(home)
    assert layer.lookup(KEY, (8,), None).winner.trial.candidate.source == "better"
    assert len(read_manifest(FolderFiles(home), digest_of(home)).entries) == 3


def test_manifest_of_the_same_files_is_the_same(home):
    assert refresh(home, home.parent / "pinned.py") == digest_of(home)


def test_user_s_winner_comes_before_a_shipped_one(home, tmp_path):
    place = Store(Folder(tmp_path / "cache", True, False, None), opened(home))
    assert place.lookup(KEY, (8,)).layer == "shipped"
    place.put_winner(winner((8, 8), source="mine"))
    assert place.lookup(KEY, (8,)).winner.trial.candidate.source == "mine"
    assert place.lookup(KEY, (3,)).layer == "shipped"


def test_no_winner_here_comes_before_a_stale_shipped_winner(home, tmp_path):
    def newer(language):
        return dataclasses.replace(MADE_WITH, torch="newer")

    place = Store(Folder(tmp_path / "cache", True, False, None), opened(home))
    assert place.lookup(KEY, (8,), newer).state is State.STALE
    place.put_standing(standing((8, 8), state=State.NOT_SEARCHED))
    assert place.lookup(KEY, (8,), newer).state is State.STALE
    place.put_standing(standing((8, 8)))
    assert place.lookup(KEY, (8,), newer).state is State.NO_WINNER


def test_repository_s_own_layer_is_whole():
    home = folder()
    assert home == ROOT / "kernel_cache"
    assert Shipped(home).problem is None
    assert all(entry.problem is None for entry in Shipped(home).all())
    listed = {
        f"{line.folder}/{name}"
        for line in read_manifest(FolderFiles(home), pinned.MANIFEST_SHA256).entries
        for name in ("winner.json", line.source)
    }
    there = {path.relative_to(home).as_posix() for path in files(home)} - {"README.md", ".gitattributes"}
    assert there == listed


PROGRAM = """
import pathlib, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import kforge_dynamo
from kforge_dynamo.store.shipped import Shipped, folder
from store_records import KEY
package = pathlib.Path(kforge_dynamo.__file__).parent
layer = Shipped(folder())
print(package.parent == pathlib.Path(sys.argv[1]), folder() == package / "kernel_cache", layer.problem)
print(layer.lookup(KEY, (8,), None).winner.trial.candidate.source)
"""


def test_wheel_carries_the_layer_and_finds_it(home, tmp_path):
    """A wheel of the repository with the winners of `home` in it, unpacked where an installer would put it."""
    pytest.importorskip("hatchling")
    tree = tmp_path / "tree"
    for name in ("kforge_dynamo", "kforge.py", "pyproject.toml", "README.md"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, tree / name)
    (tree / "README.md").touch()
    shutil.copytree(home, tree / "kernel_cache")
    (tree / "kforge_dynamo" / "store" / "pinned.py").write_text((home.parent / "pinned.py").read_text())
    build = [
        sys.executable,
        "-c",
        "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))",
        str(tmp_path),
    ]
    made = subprocess.run(build, cwd=tree, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr
    installed = tmp_path / "installed"
    shutil.unpack_archive(tmp_path / made.stdout.split()[-1], installed, "zip")
    assert (installed / "kforge_dynamo" / "kernel_cache" / NAME).read_bytes() == (home / NAME).read_bytes()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    arguments = [sys.executable, "-c", PROGRAM, str(installed), str(Path(__file__).parent)]
    ran = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert ran.stdout.split() == ["True", "True", "None", "narrow"], ran.stdout + ran.stderr


def test_entry_that_keeps_its_source_twice_is_refused(home):
    path = next(path for path in files(home) if path.name == "winner.json")
    data = json.loads(path.read_text())
    data["winner"]["trial"]["candidate"]["source"] = "another"
    path.write_text(json.dumps(data))
    with pytest.raises(Exception, match="source twice"):
        refresh(home, home.parent / "pinned.py")
