"""Where the cache lives: homes, strangers' folders, modes, and what takes their place."""

from __future__ import annotations

import os
import pwd
import stat
import sys
import tempfile
from pathlib import Path

import platformdirs
import pytest
from store_records import KEY, NOBODY, in_a_child, winner

from kforge_dynamo.store import locks, open_store
from kforge_dynamo.store.folder import find, refusal

posix = pytest.mark.skipif(sys.platform == "win32", reason="owners and modes are POSIX")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path, monkeypatch):
    base = tmp_path / "temporary"
    base.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(base))


def test_folder_asked_for_is_made_for_this_user_alone(tmp_path):
    found = find(str(tmp_path / "one" / "two"))
    assert found.path == tmp_path / "one" / "two" and found.writable and found.problem is None
    assert [stat.S_IMODE(path.stat().st_mode) for path in (found.path, found.path.parent)] == [0o700, 0o700]


def test_folder_of_the_platform_is_used_where_none_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *names, **options: tmp_path / "kforge")
    assert find(None).path == tmp_path / "kforge"


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_folder_that_others_can_write_is_refused_in_one_sentence(tmp_path, mode):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    found = find(str(folder))
    assert found.temporary and found.path != folder
    assert f"{mode:o}" in found.problem and "chmod 700" in found.problem and "\n" not in found.problem
    assert list(folder.iterdir()) == []


@posix
@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_folder_that_others_can_only_read_is_used(tmp_path, mode):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    assert find(str(folder)).path == folder


@posix
def test_folder_of_another_user_is_refused_and_nothing_of_it_is_used(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    assert open_store(str(folder)).put_winner(winner())
    monkeypatch.setattr(os, "getuid", lambda: NOBODY)
    assert "belongs to uid" in refusal(folder)
    monkeypatch.undo()
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)

        def work():
            place = open_store(str(folder))
            assert place.folder.path != folder and "belongs to uid" in place.folder.problem
            assert place.lookup(KEY, (8,)) is None

        assert in_a_child(work) == 0


@posix
def test_user_without_home_name_and_account_gets_a_private_folder_that_lasts(tmp_path, monkeypatch):
    def no_account(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", no_account)
    for name in ("HOME", "USER", "LOGNAME", "USERNAME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    first, second = find(None), find(None)
    assert first.path == second.path == tmp_path / "temporary" / f"kforge-{os.getuid()}"
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o700 and first.writable and first.temporary
    assert "home" in first.problem and "KFORGE_CACHE_DIR" in first.problem
    assert open_store(None).put_winner(winner())


@posix
@pytest.mark.parametrize("trap", ["link", "file", "open to all"])
def test_temporary_folder_that_was_prepared_by_somebody_is_not_used(tmp_path, trap):
    prepared = tmp_path / "temporary" / f"kforge-{os.getuid()}"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir()
        prepared.symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        prepared.write_text("")
    else:
        prepared.mkdir()
        prepared.chmod(0o777)
    found = find("/dev/null/cache")
    assert found.path is None or (found.path != prepared and found.path.parent == prepared.parent)
    assert found.problem is not None
    if trap == "link":
        assert list((tmp_path / "elsewhere").iterdir()) == []


def test_temporary_folder_of_one_process_goes_with_it(tmp_path):
    (tmp_path / "temporary" / f"kforge-{os.getuid()}").write_text("in the way")
    found = find("/dev/null/cache")
    assert found.path is None or found.path.is_dir()
    assert found.problem is not None and "/dev/null/cache" in found.problem


def test_no_folder_at_all_leaves_a_store_in_memory(monkeypatch):
    def nowhere():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    place = open_store("/dev/null/cache")
    assert place.folder.path is None
    assert not place.put_winner(winner())
    assert place.lookup(KEY, (8,)).winner == winner()
    assert place.health() is not None


@pytest.mark.parametrize("name", ["with $HOME in it", "${USER}"])
def test_folder_whose_name_the_database_would_replace_is_refused(tmp_path, name, monkeypatch):
    monkeypatch.setenv("HOME", "/elsewhere")
    monkeypatch.setenv("USER", "somebody")
    found = find(str(tmp_path / name))
    assert found.temporary and "$" in found.problem


@pytest.mark.parametrize("name", ["with space", "ünïcode", "100%", "a#b?c", "'quoted'"])
def test_folder_with_an_unusual_name_works(tmp_path, name):
    path = str(tmp_path / name)
    assert open_store(path).put_winner(winner())
    assert open_store(path).lookup(KEY, (8,)).winner == winner()
    assert Path(path, "v1", "index", "cache.db").is_file()


def test_link_to_a_folder_of_this_user_is_followed(tmp_path):
    (tmp_path / "scratch").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    assert open_store(str(tmp_path / "link")).put_winner(winner())
    assert (tmp_path / "scratch" / "v1" / "key").is_file()


MOUNTS = """\
21 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw
40 21 0:40 / {home} rw,relatime shared:1 - nfs4 server:/home rw
41 40 0:41 / {home}/local\\040disk rw,relatime - ext4 /dev/vdb1 rw
"""


def test_folder_on_a_network_file_system_is_not_written_and_a_local_one_takes_its_place(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (tmp_path / "mountinfo").write_text(MOUNTS.format(home=home))
    monkeypatch.setattr(locks, "_MOUNTS", tmp_path / "mountinfo")
    found = find(str(home / "cache"))
    assert found.temporary and "nfs4" in found.problem and "KFORGE_CACHE_LAYERS" in found.problem and "\n" not in found.problem
    place = open_store(str(home / "cache"))
    assert place.put_winner(winner()) and list((home / "cache").iterdir()) == []
    for name in ("local disk/cache", "../elsewhere"):
        assert find(str(home / name)).problem is None


@posix
def test_folder_on_a_file_system_without_locks_is_not_written(tmp_path, monkeypatch):
    def none(*words):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(locks.fcntl, "lockf", none)
    found = find(str(tmp_path / "cache"))
    assert found.temporary and "without locks" in found.problem


def test_what_linux_says_of_mounts_is_read_with_care(tmp_path, monkeypatch):
    for text in ("", "nonsense\n - \n", "1 2 3:4 / / rw - "):
        (tmp_path / "mountinfo").write_text(text)
        monkeypatch.setattr(locks, "_MOUNTS", tmp_path / "mountinfo")
        assert locks.lack(tmp_path) is None
    monkeypatch.setattr(locks, "_MOUNTS", tmp_path / "nothing")
    assert locks.lack(tmp_path) is None
