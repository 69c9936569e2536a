"""`kforge cache export|import|keygen`: from one cache to another, and what is said when it may not be."""

from __future__ import annotations

import json

import pytest
from test_cache import filled, home, run, standing, winner  # noqa: F401  fixtures

from kforge_dynamo.records.codec import digest
from kforge_dynamo.store import close_stores, open_store


def entries(place) -> list[str]:
    return sorted(row["entry"] for row in json.loads(run("list", "--json", "--cache-dir", str(place)).stdout))


@pytest.mark.parametrize("name", ["winners.zip", "layer"])
def test_export_and_import_bring_every_answer_to_another_cache(filled, tmp_path, name):  # noqa: F811
    key = tmp_path / "sign"
    public = json.loads(run("keygen", str(key), "--json").stdout)["public"]
    out = json.loads(run("export", str(tmp_path / name), "--sign", str(key), "--json").stdout)
    assert (out["winners"], out["no_winner"], out["signed"]) == (1, 1, True)
    other = ["--cache-dir", str(tmp_path / "other")]
    done = json.loads(run("import", str(tmp_path / name), "--trust", public, "--json", *other).stdout)
    assert (done["winners"], done["no_winner"], done["known"], done["problems"]) == (1, 1, 0, [])
    assert entries(tmp_path / "other") == sorted([digest(winner()), digest(standing())])
    assert "0 problems" in run("verify", *other).stdout
    again = json.loads(run("import", str(tmp_path / name), "--trust", public, "--json", *other).stdout)
    assert (again["winners"], again["known"]) == (0, 2)


def test_import_of_a_layer_that_is_not_believed_is_one_sentence_and_stores_nothing(filled, tmp_path):  # noqa: F811
    run("export", str(tmp_path / "w.zip"))
    done = run("import", str(tmp_path / "w.zip"), "--cache-dir", str(tmp_path / "other"), code=1)
    assert "signed by nobody" in done.stderr and "trust=digest" in done.stderr and done.stderr.count("\n") == 1
    assert entries(tmp_path / "other") == []


def test_import_of_a_damaged_entry_takes_the_others_and_ends_with_status_1(filled, tmp_path):  # noqa: F811
    open_store(str(filled)).put_winner(winner(200, 200, source="other"))
    run("export", str(tmp_path / "layer"))
    kernel = next(path for path in (tmp_path / "layer").rglob("kernel.cpp") if path.read_text() != "other")
    kernel.write_text("int changed;")
    done = run("import", str(tmp_path / "layer"), "--trust", "digest", "--cache-dir", str(tmp_path / "other"), code=1)
    assert "not imported" in done.stdout and "changed after it was shipped" in done.stdout
    assert entries(tmp_path / "other") == sorted([digest(winner(200, 200, source="other")), digest(standing())])


def test_import_leaves_own_winners_unless_told_otherwise(filled, tmp_path):  # noqa: F811
    run("export", str(tmp_path / "w.zip"))
    mine = winner(source="mine")
    open_store(str(tmp_path / "other")).put_winner(mine)
    close_stores()
    arguments = ["import", str(tmp_path / "w.zip"), "--trust", "digest", "--cache-dir", str(tmp_path / "other")]
    run(*arguments)
    assert digest(mine) in entries(tmp_path / "other")
    run(*arguments, "--replace")
    assert digest(winner()) in entries(tmp_path / "other") and digest(mine) not in entries(tmp_path / "other")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["export", "{}/none.zip", "--device", "no such device"], "nothing to export for a device"),
        (["export", "{}/none.zip", "--sign", "{}/no-key"], "keygen makes one"),
        (["export", "/dev/null/x.zip"], "cannot be written"),
        (["import", "{}/nothing", "--trust", "digest"], "not used"),
        (["import", "nosuch://there", "--trust", "digest"], "cannot be reached"),
        (["import", "{}/nothing", "--trust", "me"], "64 hexadecimal digits"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(filled, tmp_path, arguments, words):  # noqa: F811
    done = run(*(text.replace("{}", str(tmp_path)) for text in arguments), code=1)
    assert words in done.stderr and done.stderr.count("\n") == 1 and done.stdout == ""


def test_layer_in_the_settings_is_listed_and_verified(filled, tmp_path, monkeypatch):  # noqa: F811
    run("export", str(tmp_path / "layer"))
    run("clear", "--yes", "--json")
    monkeypatch.setenv("KFORGE_CACHE_LAYERS", f"{tmp_path / 'layer'}#trust=digest")
    rows = json.loads(run("list", "--json").stdout)
    assert {row["layer"] for row in rows} == {str(tmp_path / "layer")} and len(rows) == 2
    assert json.loads(run("verify", "--json").stdout)["checked"]["shared"] == 2
    assert "shared layer" in run("clear", digest(winner())[:12], code=1).stderr


def test_prune_removes_down_to_a_size_and_says_what_went(filled):  # noqa: F811
    assert "removed 0 entries" in run("prune").stdout
    done = json.loads(run("prune", "--max-mib", "0", "--json").stdout)
    assert (done["entries"], done["kernels"]) == (2, 0) and done["after_bytes"] < done["before_bytes"]
    assert done["in_use"] == 1, "the kernel that this process has built"
    assert entries(filled) == []
    assert "Usage" in run("prune", "--max-mib", "-1", code=2).stderr
