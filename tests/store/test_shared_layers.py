"""Layers of others: found in order, used only where somebody was named who vouches for them, whatever was done to their files."""

from __future__ import annotations

import dataclasses
import functools
import http.server
import json
import logging
import resource
import signal
import threading
import zipfile

import pytest
from store_records import KEY, MADE_WITH, in_a_child, standing, winner

from kforge_dynamo.errors import StoreError
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.outcome import State
from kforge_dynamo.store import Access, close_stores, open_store, remote, state_text
from kforge_dynamo.store.bundle import TOP, layer_files, write_folder, write_zip
from kforge_dynamo.store.layers import UNVERIFIED
from kforge_dynamo.store.places import FolderFiles, ZipFiles, checked
from kforge_dynamo.store.shared import open_layer
from kforge_dynamo.store.trust import NOBODY, Trust, make_key, public_key, read_trust

DIGEST = Trust(True, ())
THEIRS = winner((1, 64), source="theirs")
RECORDS = [THEIRS, winner((100, 200), source="wide"), standing((500, 600)), standing((700, 700), state=State.NOT_SEARCHED)]


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "sign"
    make_key(path)
    return path


@pytest.fixture(scope="module")
def signed(key):
    """The files of a signed layer."""
    return layer_files(RECORDS, "0.1.0", "2026-01-01T00:00:00+00:00", key)


@pytest.fixture
def layer(tmp_path, signed):
    write_folder(tmp_path / "layer", signed)
    return tmp_path / "layer"


def opened(tmp_path, *layers, trust=(), verify_on_load=False):
    close_stores()
    return open_store(str(tmp_path / "cache"), Access(tuple(map(str, layers)), tuple(trust), verify_on_load))


def test_layer_of_a_named_key_answers_after_the_user_s_own(tmp_path, layer, key):
    place = opened(tmp_path, layer, trust=[public_key(key)])
    found = place.lookup(KEY, (8,))
    assert found.winner == THEIRS and found.layer == str(layer) and found.state is State.WINNER
    assert place.lookup(KEY, (550,)).state is State.NO_WINNER and place.lookup(KEY, (700,)) is None
    assert place.winner_of(KEY, digest(THEIRS.trial.candidate)) == THEIRS
    place.put_winner(winner((8, 8), source="mine"))
    assert place.lookup(KEY, (8,)).winner.trial.candidate.source == "mine"
    assert place.lookup(KEY, (9,)).winner == THEIRS


def test_layers_answer_in_their_order(tmp_path, layer):
    write_folder(tmp_path / "other", layer_files([winner((1, 64), source="other")], "0.1.0", "", None))
    for order in (["layer", "other"], ["other", "layer"]):
        place = opened(tmp_path, *(tmp_path / name for name in order), trust=["digest"])
        assert place.lookup(KEY, (8,)).winner.trial.candidate.source == {"layer": "theirs", "other": "other"}[order[0]]


@pytest.mark.parametrize("trust", [[], ["ab" * 32]])
def test_layer_of_a_key_that_was_not_named_is_not_used_and_one_line_says_so(tmp_path, layer, key, trust, caplog):
    with caplog.at_level(logging.WARNING, "kforge"):
        place = opened(tmp_path, layer, trust=trust)
        assert place.lookup(KEY, (8,)) is None and place.lookup(KEY, (9,)) is None
        assert place.winner_of(KEY, digest(THEIRS.trial.candidate)) is None
    assert len(caplog.messages) == 1
    assert public_key(key) in caplog.text and "KFORGE_TRUST" in caplog.text and "\n" not in caplog.messages[0]
    assert list(place.shared_problems) == caplog.messages


def test_layer_that_nobody_signed_needs_the_word_digest(tmp_path):
    write_folder(tmp_path / "layer", layer_files(RECORDS, "0.1.0", "", None))
    with pytest.raises(StoreError, match=r"signed by nobody.*trust=digest"):
        open_layer(str(tmp_path / "layer"), Trust(False, ("ab" * 32,)), None)
    assert open_layer(str(tmp_path / "layer"), DIGEST, None).lookup(KEY, (8,), None).winner == THEIRS


def test_word_behind_a_layer_s_name_counts_for_that_layer_alone(tmp_path, layer, key):
    write_folder(tmp_path / "other", layer_files([winner((70, 70))], "0.1.0", "", None))
    place = opened(tmp_path, f"{layer}#trust={public_key(key)}", tmp_path / "other")
    assert place.lookup(KEY, (8,)).winner == THEIRS and place.lookup(KEY, (70,)) is None
    assert len(place.shared_problems) == 1


def test_word_that_is_neither_a_key_nor_digest_is_refused():
    with pytest.raises(StoreError, match="64 hexadecimal digits"):
        read_trust(["diggest"])


def positions(data: bytes) -> range:
    """Every region of a file: a place every few bytes, so that each field of each line is met."""
    return range(0, len(data), max(1, min(11, len(data) // 40)))


@pytest.mark.parametrize("trust", ["signed", "digest"])
def test_layer_with_any_byte_changed_gives_the_true_record_or_nothing(layer, signed, key, trust, caplog):
    """Each file of the layer, each field in it. A changed byte that is read as the same facts (a blank) may pass."""
    caplog.set_level(logging.ERROR, "kforge")
    believed = Trust(False, (public_key(key),)) if trust == "signed" else DIGEST
    refused, tried = dict.fromkeys(signed, 0), dict.fromkeys(signed, 0)
    for name, data in signed.items():
        for at in positions(data):
            (layer / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            tried[name] += 1
            try:
                found = open_layer(str(layer), believed, None)
            except StoreError as error:
                refused[name] += 1
                assert "\n" not in str(error)
                continue
            for sizes in ((8,), (150,), (550,)):
                answer = found.lookup(KEY, sizes, None)
                assert answer is None or (answer.winner or answer.standing) in RECORDS
            if any(entry.problem for entry in found.all()):
                refused[name] += 1
        (layer / name).write_bytes(data)
    assert all(tried[name] > 20 or len(signed[name]) <= 20 for name in signed)
    content = [name for name in signed if name != TOP]
    assert all(refused[name] == tried[name] for name in content)
    assert refused[TOP] > (0.7 if trust == "signed" else 0.3) * tried[TOP]


def test_layer_signed_again_by_somebody_else_is_not_the_named_one_s(tmp_path, layer, key):
    other = tmp_path / "other-key"
    make_key(other)
    write_folder(layer, layer_files([winner((1, 64), source="evil")], "0.1.0", "", other))
    with pytest.raises(StoreError, match="have not named"):
        open_layer(str(layer), Trust(False, (public_key(key),)), None)


def test_signature_of_another_layer_does_not_fit(layer, signed, key):
    evil = json.loads(layer_files([winner((1, 64), source="evil")], "0.1.0", "", None)[TOP])
    evil["signature"] = json.loads(signed[TOP])["signature"]
    (layer / TOP).write_text(json.dumps(evil))
    with pytest.raises(StoreError, match="changed after it was signed"):
        open_layer(str(layer), Trust(False, (public_key(key),)), None)


def test_zip_file_is_a_layer_and_holds_text_alone(tmp_path, signed):
    write_zip(tmp_path / "layer.zip", signed)
    place = opened(tmp_path, tmp_path / "layer.zip", trust=["digest"])
    assert place.lookup(KEY, (8,)).winner == THEIRS
    with zipfile.ZipFile(tmp_path / "layer.zip") as archive:
        assert {name.rpartition(".")[2] for name in archive.namelist()} == {"json", "cpp"}
    again = tmp_path / "again.zip"
    write_zip(again, signed)
    assert again.read_bytes() == (tmp_path / "layer.zip").read_bytes()


@pytest.mark.parametrize("harm", ["cut", "garbage", "empty"])
def test_damaged_zip_file_is_one_sentence(tmp_path, signed, harm):
    path = tmp_path / "layer.zip"
    write_zip(path, signed)
    data = path.read_bytes()
    path.write_bytes({"cut": data[: len(data) // 2], "garbage": b"x" * 500, "empty": b""}[harm])
    with pytest.raises(StoreError, match=r"layer.zip cannot be read .* not used"):
        open_layer(str(path), DIGEST, None)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a\\b", "", ".", "c:x", "a/../../b"])
def test_names_that_lead_out_of_a_layer_are_refused(name):
    with pytest.raises(StoreError, match="outside"):
        checked(name)


def test_layer_of_another_schema_is_one_sentence_and_stays_as_it_is(layer, signed):
    text = signed[TOP].decode().replace('"schema": 1', '"schema": 2')
    (layer / TOP).write_text(text)
    with pytest.raises(StoreError, match=r"has the schema 2, not 1: export it again .* nothing in it was changed"):
        open_layer(str(layer), DIGEST, None)
    assert (layer / TOP).read_text() == text


def test_layer_that_is_not_there_is_one_sentence(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "kforge"):
        place = opened(tmp_path, tmp_path / "nowhere", trust=["digest"])
        assert place.lookup(KEY, (8,)) is None
    assert len(caplog.messages) == 1 and "nowhere" in caplog.text and "not used" in caplog.text


def test_layer_published_anew_is_whole_for_old_and_new_readers(layer, signed):
    before = open_layer(str(layer), DIGEST, None)
    write_folder(layer, layer_files([winner((1, 64), source="newer")], "0.1.0", "", None))
    assert before.lookup(KEY, (8,), None).winner == THEIRS
    assert open_layer(str(layer), DIGEST, None).lookup(KEY, (8,), None).winner.trial.candidate.source == "newer"


def test_winner_of_a_layer_under_other_software_is_a_seed(layer):
    found = open_layer(str(layer), DIGEST, None).lookup(KEY, (8,), lambda name: dataclasses.replace(MADE_WITH, torch="newer"))
    assert found.state is State.STALE and "newer" in found.reason


def test_verify_on_load_makes_a_layer_s_winner_a_seed_until_it_was_verified(tmp_path, layer):
    place = opened(tmp_path, layer, trust=["digest"], verify_on_load=True)
    found = place.lookup(KEY, (8,))
    assert found.state is State.STALE and found.winner == THEIRS and found.reason == UNVERIFIED
    assert place.winner_of(KEY, digest(THEIRS.trial.candidate)) is None, "a cached graph must not run it either"
    assert place.lookup(KEY, (550,)).state is State.NO_WINNER, "an answer without code needs no check"
    place.put_winner(THEIRS)
    assert state_text(place.lookup(KEY, (8,))).startswith("winner:")
    assert place.winner_of(KEY, digest(THEIRS.trial.candidate)) == THEIRS


def test_winner_that_was_refused_here_stays_refused(tmp_path, layer):
    opened(tmp_path, layer, trust=["digest"]).refuse(THEIRS, "inaccurate")
    place = opened(tmp_path, layer, trust=["digest"])
    assert place.lookup(KEY, (8,)) is None and place.lookup(KEY, (150,)) is not None


def test_copied_cache_is_read_under_the_word_digest_only(tmp_path, caplog):
    """As if built by root in an image: the folder's key is not this user's."""
    theirs = open_store(str(tmp_path / "theirs"))
    theirs.put_winner(THEIRS)
    theirs.put_winner(winner((100, 100), source="other"))
    (tmp_path / "theirs" / "v1" / "key").unlink()
    with caplog.at_level(logging.WARNING, "kforge"):
        assert opened(tmp_path, tmp_path / "theirs").lookup(KEY, (8,)) is None
    assert len(caplog.messages) == 1 and "#trust=digest" in caplog.text
    assert opened(tmp_path, f"{tmp_path / 'theirs'}#trust=digest").lookup(KEY, (8,)).winner == THEIRS
    theirs._index.edit(lambda rows: _exchange(rows, "theirs", "evil"))
    place = opened(tmp_path, f"{tmp_path / 'theirs'}#trust=digest")
    assert place.lookup(KEY, (8,)) is None and place.lookup(KEY, (100,)).winner.trial.candidate.source == "other"


def _exchange(rows, old, new):
    name = f"entry:{digest(THEIRS)}"
    rows.set(name, rows.get(name).replace(old, new))


class Quiet(http.server.SimpleHTTPRequestHandler):
    requests: list[str]

    def log_message(self, *words):
        self.requests.append(self.path)


@pytest.fixture
def server(tmp_path, layer):
    """An HTTP server of the layer's parent folder, and the paths that were asked for."""
    pytest.importorskip("aiohttp")
    Quiet.requests = []
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def test_layer_behind_a_url_is_read_once_and_lasts_without_the_server(tmp_path, server, key, caplog, monkeypatch):
    url = f"http://127.0.0.1:{server.server_port}/layer"
    trust = [public_key(key)]
    assert opened(tmp_path, url, trust=trust).lookup(KEY, (8,)).winner == THEIRS
    asked = len(Quiet.requests)
    assert opened(tmp_path, url, trust=trust).lookup(KEY, (8,)).winner == THEIRS
    assert len(Quiet.requests) == asked + 1, "only what names the rest is asked for again"
    server.shutdown()
    server.server_close()
    with caplog.at_level(logging.WARNING, "kforge"):
        place = opened(tmp_path, url, trust=trust)
        assert place.lookup(KEY, (8,)).winner == THEIRS, "copies on disk answer"
        assert place.lookup(KEY, (150,)) is None, "this one was never fetched"
    assert any("cannot be reached" in line and "last seen" in line for line in caplog.messages)


def test_copies_of_a_remote_layer_are_believed_no_more_than_the_network(tmp_path, layer, key):
    pytest.importorskip("fsspec")
    url, trust = f"file://{layer}", [public_key(key)]
    assert opened(tmp_path, url, trust=trust).lookup(KEY, (8,)).winner == THEIRS
    kept = list((tmp_path / "cache" / "v1" / "remote").iterdir())
    assert len(kept) >= 5
    for path in kept:
        path.write_bytes(path.read_bytes().replace(b"theirs", b"hacked"))
    assert opened(tmp_path, url, trust=trust).lookup(KEY, (8,)).winner == THEIRS


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/layer", "nosuch://bucket/layer"])
def test_url_that_cannot_be_reached_is_one_sentence_and_asked_once(tmp_path, url, caplog, monkeypatch):
    pytest.importorskip("aiohttp")
    tries = []
    cat = remote.RemoteFiles._cat
    monkeypatch.setattr(remote.RemoteFiles, "_cat", lambda self, name: tries.append(name) or cat(self, name))
    with caplog.at_level(logging.WARNING, "kforge"):
        place = opened(tmp_path, url, trust=["digest"])
        assert all(place.lookup(KEY, (size,)) is None for size in (8, 9, 10))
    assert len(tries) == 1 and len(caplog.messages) == 1 and "cannot be reached" in caplog.text and url in caplog.text
    assert place.put_winner(winner()) and place.lookup(KEY, (8,)) is not None


def test_files_of_a_layer_are_read_by_any_way_the_same(tmp_path, layer, signed):
    pytest.importorskip("fsspec")
    write_zip(tmp_path / "layer.zip", signed)
    for files in (FolderFiles(layer), ZipFiles(tmp_path / "layer.zip"), remote.RemoteFiles(f"file://{layer}", None)):
        assert {name: files.read(name) for name in signed} == signed
        with pytest.raises(StoreError):
            files.read("nothing.json")


def test_key_that_signs_is_its_owner_s_alone(tmp_path, key):
    assert key.stat().st_mode & 0o777 == 0o600 and len(public_key(key)) == 64
    with pytest.raises(StoreError, match="exists already"):
        make_key(key)
    with pytest.raises(StoreError, match="keygen"):
        public_key(tmp_path / "nothing")
    exposed = tmp_path / "exposed"
    exposed.write_bytes(key.read_bytes())
    exposed.chmod(0o644)
    with pytest.raises(StoreError, match="not this user's alone"):
        layer_files(RECORDS, "0.1.0", "", exposed)
    assert Trust(False, ()) == NOBODY


@pytest.mark.parametrize("name", ["layer.zip", "layer"])
def test_export_onto_a_full_disk_leaves_what_was_there(tmp_path, signed, name):
    """The limit on file sizes stands for a full disk."""
    place, write = tmp_path / name, (write_zip if name.endswith(".zip") else write_folder)
    write(place, signed)
    before = open_layer(str(place), DIGEST, None).lookup(KEY, (8,), None).winner
    big = layer_files([winner((1, 64), source="".join(map(chr, range(33, 127))) * 4000)], "0.1.0", "", None)

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        with pytest.raises(StoreError, match="cannot be written"):
            write(place, big)

    assert in_a_child(work) == 0
    assert open_layer(str(place), DIGEST, None).lookup(KEY, (8,), None).winner == before == THEIRS
    assert [path for path in tmp_path.rglob(".*") if path.is_file()] == []
