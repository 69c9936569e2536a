"""What a worker inherits, what its compilers may read and write, and how layers are left out."""

import os

import pytest

from kforge_dynamo.settings import Settings, SettingsError, sandbox_without, worker_environment
from kforge_dynamo.surroundings import SANDBOX_LAYERS, compiler_folders, inherited, layers_left_out


def test_inherited_is_a_list_of_names_without_secrets():
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "TORCHINDUCTOR_CACHE_DIR": "/c", "LC_ALL": "C", "OMP_PLACES": "cores"}
    dropped = {
        "AWS_SESSION_NAME": "x", "OPENAI_API_KEY": "x", "HF_TOKEN": "x", "GIT_ASKPASS": "x", "SSH_AUTH_SOCK": "x",
        "TORCH_HUB_TOKEN": "x", "KFORGE_SIGNING_KEY": "x", "CUDA_SECRET": "x", "http_proxy": "x", "TORCHINDUCTOR_AUTH": "x",
    }  # fmt: skip
    assert inherited(kept | dropped) == kept


def test_worker_environment_turns_kforge_off(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("SOME_PASSWORD", "secret")
    found = worker_environment()
    assert found["KFORGE_DISABLE"] == "1"
    assert "secret" not in found.values()
    assert found["PATH"] == os.environ["PATH"]


def test_compiler_folders_hold_neither_the_root_nor_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "tools" / "bin"
    tool.mkdir(parents=True)
    read, write = compiler_folders({"PATH": f"/bin:{tmp_path}/bin:{tool}::", "TRITON_HOME": "/t", "CUDA_HOME": "/cuda"})
    assert {"/", str(tmp_path), ""}.isdisjoint(read)
    assert {str(tool), str(tool.parent), "/cuda"} <= set(read)
    assert "/t/.triton" in write


@pytest.mark.parametrize(
    ("text", "names"),
    [("on", ()), ("off", SANDBOX_LAYERS), ("-landlock,-seccomp", ("landlock", "seccomp")), ("-runner -runner", ("runner",))],
)
def test_layers_left_out_by_name(text, names, monkeypatch):
    assert layers_left_out(text) == names
    monkeypatch.setenv("KFORGE_SANDBOX", text)
    assert sandbox_without() == frozenset(names)


@pytest.mark.parametrize("text", ["landlock", "-landlok", "on off", "-"])
def test_layers_of_another_name_are_one_sentence(text, monkeypatch):
    monkeypatch.setenv("KFORGE_SANDBOX", text)
    with pytest.raises(SettingsError, match="KFORGE_SANDBOX has no value"):
        Settings.parse()
