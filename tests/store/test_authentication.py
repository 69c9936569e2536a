"""Nothing that was changed, copied from elsewhere or made with another key is ever returned."""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from typing import Any

import pytest
from store_records import KEY, in_a_child, standing, winner

from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import Standing, Winner
from kforge_dynamo.store import secret
from kforge_dynamo.store.envelope import Foreign, Refused, canonical, seal, unseal
from kforge_dynamo.store.secret import Secret

SECRET = Secret(b"k" * 32)


def paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every leaf of JSON data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    if not items:
        yield at
    for name, value in items:
        yield from paths(value, (*at, name))


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"
    return "x" if value is None else [value]


def with_leaf(data: Any, path: tuple[Any, ...]) -> Any:
    copy = json.loads(json.dumps(data))
    place = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = changed(place[path[-1]])
    return copy


@pytest.mark.parametrize(("kind", "record"), [("winner", winner()), ("standing", standing())])
def test_entry_with_any_field_changed_is_refused(kind, record):
    data = json.loads(seal(kind, record, SECRET))
    leaves = list(paths(data))
    assert len(leaves) > 15
    for path in leaves:
        with pytest.raises(Refused):
            unseal(kind, type(record), canonical(with_leaf(data, path)), SECRET)


def test_entry_with_any_byte_changed_is_refused_or_the_same_record():
    text = seal("winner", winner(), SECRET)
    refused = 0
    for place in range(len(text)):
        broken = text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]
        try:
            assert unseal("winner", Winner, broken, SECRET) == winner()
        except Refused:
            refused += 1
    assert refused >= len(text) - 2


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_entry_cut_short_is_refused(cut):
    with pytest.raises(Refused):
        unseal("winner", Winner, seal("winner", winner(), SECRET)[:cut], SECRET)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "1e5", "NaN", "{}", "[" * 100_000, '{"schema":1,"winner":{},"authentication":{}}', '"\\ud800"']
)
def test_text_that_is_no_entry_is_refused(text):
    with pytest.raises(Refused):
        unseal("winner", Winner, text, SECRET)


def test_entry_of_one_kind_is_not_taken_for_the_other():
    data = json.loads(seal("winner", standing(), SECRET))
    with pytest.raises(Refused):
        unseal("standing", Standing, canonical({"standing": data.pop("winner"), **data}), SECRET)


def test_entry_made_with_another_key_is_refused():
    with pytest.raises(Foreign):
        unseal("winner", Winner, seal("winner", winner(), Secret(b"o" * 32)), SECRET)


def test_refusals_are_store_errors():
    assert issubclass(Refused, StoreError)


def test_tampered_entry_is_put_aside_with_one_line_and_a_new_one_is_used(store, reopen, caplog):
    record = winner()
    store.put_winner(record)
    name = f"entry:{digest(record)}"
    text = store._index.get(name).replace("void kforge_entry() {}", "void kforge_entry() {;}")
    store._index.edit(lambda rows: rows.set(name, text))
    place = reopen()
    with caplog.at_level(logging.WARNING, "kforge"):
        assert place.lookup(KEY, (8,)) is None
        assert place.lookup(KEY, (8,)) is None
    assert [line for line in caplog.messages if "changed after it was stored" in line] == caplog.messages
    assert len(caplog.messages) == 1
    assert place._index.names("aside:") == [f"aside:{digest(record)}"] and place._index.names("entry:") == []
    place.put_winner(record)
    assert reopen().lookup(KEY, (8,)).winner == record


def test_authentic_entry_in_the_place_of_another_is_not_returned(store, reopen):
    """The narrow kernel's own entry, moved to where the wide one was listed."""
    narrow, wide = winner((1, 2), source="narrow"), winner((1, 64), source="wide")
    for record in (narrow, wide):
        store.put_winner(record)
    text = store._index.get(f"entry:{digest(narrow)}")
    store._index.edit(lambda rows: rows.set(f"entry:{digest(wide)}", text))
    assert reopen().lookup(KEY, (50,)) is None


def test_authentic_entry_under_another_key_is_not_returned(store, reopen):
    store.put_winner(winner())
    head = store._index.get(f"head:{digest(KEY)}")
    other = type(KEY)("c" * 64, KEY.device, KEY.numerics, 1)
    store._index.edit(lambda rows: rows.set(f"head:{digest(other)}", head.replace(KEY.task, other.task)))
    assert reopen().lookup(other, (8,)) is None


def test_key_is_made_for_this_user_alone(store, tmp_path):
    facts = (tmp_path / "cache" / "v1" / "key").stat()
    assert stat.S_IMODE(facts.st_mode) == 0o600 and facts.st_size == 32
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "cache" / "v1").stat().st_mode) == 0o700


@pytest.mark.parametrize("harm", ["cut", "empty", "long", "readable", "folder", "link", "gone"])
def test_damaged_or_exposed_key_is_replaced_and_its_entries_are_misses(store, reopen, tmp_path, harm):
    store.put_winner(winner())
    path = tmp_path / "cache" / "v1" / "key"
    old = path.read_bytes()
    if harm in ("cut", "empty", "long"):
        path.write_bytes({"cut": old[:16], "empty": b"", "long": old + b"x"}[harm])
    elif harm == "readable":
        path.chmod(0o644)
    else:
        path.rename(tmp_path / "elsewhere")
        if harm == "folder":
            path.mkdir()
        if harm == "link":
            path.symlink_to(tmp_path / "elsewhere")
    place = reopen()
    assert place.lookup(KEY, (8,)) is None
    assert path.read_bytes() != old and len(path.read_bytes()) == 32
    assert place.put_winner(winner()) and reopen().lookup(KEY, (8,)) is not None


def test_cache_copied_from_another_user_is_one_line_and_misses(store, reopen, tmp_path, caplog):
    for size in range(5):
        store.put_winner(winner((size + 1, size + 1)))
    (tmp_path / "cache" / "v1" / "key").write_bytes(os.urandom(32))
    place = reopen()
    with caplog.at_level(logging.WARNING, "kforge"):
        assert all(place.lookup(KEY, (size + 1,)) is None for size in range(5))
    assert len(caplog.messages) == 1 and "another key" in caplog.messages[0]


def test_key_raced_for_by_many_processes_is_one_key(tmp_path):
    """Eight processes start at one moment in a folder without a key; each reports the key it got."""
    folder = tmp_path / "v1"
    folder.mkdir(mode=0o700)
    ready, go = os.pipe()

    def work(number: int) -> None:
        os.read(ready, 1)
        (tmp_path / f"got-{number}").write_text(secret.load_or_make(folder).key_id)

    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:
                work(number)
            finally:
                os._exit(0)
        children.append(child)
    os.write(go, b"x" * 8)
    for child in children:
        os.waitpid(child, 0)
    assert len({path.read_text() for path in tmp_path.glob("got-*")}) == 1
    assert len(list(tmp_path.glob("got-*"))) == 8
    assert [path.name for path in folder.iterdir()] == ["key"]


def test_key_is_made_without_hard_links(tmp_path, monkeypatch):
    def refused(*names: object) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", refused)
    made = secret.load_or_make(tmp_path)
    assert secret.load_or_make(tmp_path) == made and [path.name for path in tmp_path.iterdir()] == ["key"]


def test_key_does_not_show_in_its_text():
    assert "kkkk" not in repr(SECRET) + str(SECRET) and SECRET.key_id not in SECRET.material.hex()


def test_key_of_another_user_is_not_used(tmp_path):
    if os.getuid() != 0:
        pytest.skip("only root can give a file to another user")
    made = secret.load_or_make(tmp_path)
    os.chown(tmp_path / "key", 65534, 65534)
    assert secret.load(tmp_path) is None
    assert secret.load_or_make(tmp_path) != made
    assert in_a_child(lambda: None) == 0
