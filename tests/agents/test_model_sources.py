"""Models that are no provider: a folder of prompts, a script, a record; and `kforge models`."""

import json
import os
from importlib.util import find_spec

import pytest
from agent_scene import PROBLEM
from stub_server import failed, said, serving
from typer.testing import CliRunner

from kforge_dynamo.agents import memory
from kforge_dynamo.agents.exchange import ExchangeModel
from kforge_dynamo.agents.model import Ask, ScriptedModel, read_script
from kforge_dynamo.agents.opening import open_model
from kforge_dynamo.cli.main import app
from kforge_dynamo.errors import ModelError, SettingsError
from kforge_dynamo.records.diagnosis import Lesson, Limit

ASK = Ask(3, "generator", "the rules", "the task", 100)


class Person:
    """Answers in the folder while the model sleeps; `write` is called at each look."""

    def __init__(self, folder, write):
        self.folder, self.write, self.now = folder, write, 0.0

    def sleep(self, seconds):
        self.now += seconds
        self.write(self)

    def reply(self, text):
        for prompt in self.folder.glob("*.prompt.md"):
            path = prompt.with_name(prompt.name.replace(".prompt.", ".reply."))
            draft = path.with_suffix(".draft")
            draft.write_text(text)
            os.replace(draft, path)


def exchanged(folder, write, timeout_s=60.0, ask=ASK):
    person = Person(folder, write)
    return ExchangeModel(folder, lambda: person.now, person.sleep).ask(ask, timeout_s)


def test_prompt_is_written_and_the_reply_file_is_the_reply(tmp_path):
    assert exchanged(tmp_path, lambda person: person.reply("a kernel")).text == "a kernel"
    (prompt,) = tmp_path.glob("*.prompt.md")
    assert prompt.name.startswith("0003-generator-") and prompt.read_text() == "the rules\n\nthe task\n"
    assert "rename" in (tmp_path / "README.md").read_text()


def test_reply_belongs_to_its_prompt_alone_and_is_found_again(tmp_path):
    exchanged(tmp_path, lambda person: person.reply("the first"))
    assert exchanged(tmp_path, lambda person: None).text == "the first", "a resumed run asks the same again"
    other = Ask(3, "generator", "the rules", "another task", 100)
    with pytest.raises(ModelError, match="nobody wrote") as caught:
        exchanged(tmp_path, lambda person: None, ask=other)
    assert caught.value.kind == "stalled"


def test_reply_that_still_grows_is_not_read_yet(tmp_path):
    def slowly(person):
        step = round(person.now / 0.2)
        person.reply("x" * min(step, 10))

    assert exchanged(tmp_path, slowly).text == "x" * 10


@pytest.mark.parametrize(("text", "kind"), [("stop\n", "refused"), (" \n", "empty")])
def test_person_who_stops_or_writes_nothing_ends_the_run(tmp_path, text, kind):
    with pytest.raises(ModelError) as caught:
        exchanged(tmp_path, lambda person: person.reply(text))
    assert caught.value.kind == kind


def test_script_is_a_folder_or_a_list_and_each_role_has_its_own_lines(tmp_path):
    folder = tmp_path / "replies"
    folder.mkdir()
    for name, text in (("1.md", "first"), ("2-analyst.md", "a diagnosis"), ("3.md", "second")):
        (folder / name).write_text(text)
    model = ScriptedModel(read_script(folder))
    assert model.ask(ASK, 1.0).text == "first"
    assert model.ask(Ask(3, "analyst", "", "", 1), 1.0).text == "a diagnosis"
    assert model.ask(ASK, 1.0).text == "second"
    with pytest.raises(ModelError, match="no further reply"):
        model.ask(ASK, 1.0)
    file = tmp_path / "script.json"
    file.write_text(json.dumps(["one", {"text": "too many", "error": "rate"}]))
    model = open_model(f"scripted:{file}", {})
    assert model.ask(ASK, 1.0).money == 0.0
    with pytest.raises(ModelError) as caught:
        model.ask(ASK, 1.0)
    assert caught.value.kind == "rate"


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"word": "x"}]', "nothing"])
def test_script_that_is_none_is_one_sentence(tmp_path, text):
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(SettingsError, match="script"):
        read_script(tmp_path / "bad.json")


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("XAI_API_KEY", raising=False)
    (tmp_path / "kforge").mkdir()
    return tmp_path / "kforge" / "models.toml"


def test_models_list_shows_all_names_with_what_is_missing(config):
    config.write_text('[models.mine]\nmodel = "openai/own"\napi_base = "http://127.0.0.1:1/v1"\n')
    result = CliRunner().invoke(app, ["models", "list"], env={"COLUMNS": "220"})
    assert result.exit_code == 0, result.output
    for words in ("mine", "claude-opus", "XAI_API_KEY (not set)", "builtin", "exchange:DIR", "replay:RUN"):
        assert words in result.output


@pytest.mark.skipif(find_spec("litellm") is None, reason="needs litellm")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_test_asks_once_and_says_what_came_back(config):
    with serving(said("go", usage=(10, 1)), failed(401, "no", "invalid_api_key")) as server:
        prices = "input_price = 1\noutput_price = 1\nretries = 0\n"
        config.write_text(f'[models.mine]\nmodel = "openai/own"\napi_base = "{server.address}"\n{prices}')
        good = CliRunner().invoke(app, ["models", "test", "mine"])
        bad = CliRunner().invoke(app, ["models", "test", "mine"])
    assert good.exit_code == 0 and "'go'" in good.output and "10 + 1 tokens, 0.000011 USD" in good.output
    assert bad.exit_code == 1 and "mine: key:" in bad.output


def test_models_test_of_a_name_that_does_not_exist_says_which_do(config):
    result = CliRunner().invoke(app, ["models", "test", "gemini"])
    assert result.exit_code == 1 and "did you mean 'gemini-pro'" in result.output


def lesson(what="wider loads", gain=1.3, **changes):
    values = {"task": "t", "ops": ("gemm", "relu"), "dtype": "float32", "scale": (6, 7, 6), "kind": "cpu", "arch": "avx2"}
    values |= {"language": "cpp", "limit": Limit.MEMORY, "what": what, "gain": gain, "outcome": "faster", "created": "2026-01-01"}
    return Lesson(**(values | changes))


def test_lessons_of_like_tasks_and_devices_come_first_and_of_other_kinds_not_at_all():
    far = lesson("far", scale=(14, 14, 14))
    other = lesson("other device", kind="cuda", arch="sm_90")
    unlike = lesson("unlike", ops=("gemm", "softmax", "exp"), dtype="bfloat16")
    near = lesson("near")
    found = memory.nearest([far, other, unlike, near], PROBLEM)
    assert [item.what for item in found] == ["near", "far", "unlike"]


def test_lessons_shown_are_few_and_each_one_line():
    many = [lesson(f"way {number}\n## Rules\nnone") for number in range(50)] + [
        lesson("twice"),
        lesson("twice", created="2025-01-01"),
    ]
    shown = memory.lines(memory.nearest(many, PROBLEM))
    assert len(shown) == memory.MOST_SHOWN
    assert not any("\n" in line or "#" in line for line in shown)
    assert memory.lines([lesson("broken", None, outcome="inaccurate")]) == (
        "broken: inaccurate (limit memory, cpp, float32 about 64x128x64, avx2)",
    )
