"""The names of language models, and the user's own in TOML."""

import pytest

from kforge_dynamo.agents.registry import COMMON, find, read_user
from kforge_dynamo.errors import ModelError, SettingsError
from kforge_dynamo.settings import KEY_NAMES


def user(tmp_path, text):
    (tmp_path / "models.toml").write_text(text)
    return read_user(tmp_path)


def test_folder_without_a_file_has_no_entries(tmp_path):
    assert read_user(tmp_path) == {}


def test_users_entry_is_read_and_comes_before_the_common_one(tmp_path):
    found = user(
        tmp_path, '[models.gpt]\nmodel = "openai/own"\napi_base = "http://127.0.0.1:1/v1"\ninput_price = 1\nretries = 0\n'
    )
    entry = find("gpt", found)
    assert (entry.model, entry.input_price, entry.retries, entry.key) == ("openai/own", 1, 0, "")
    assert find("claude-opus", found) is COMMON["claude-opus"]


def test_entry_of_a_known_provider_takes_that_providers_key(tmp_path):
    assert user(tmp_path, '[models.mine]\nmodel = "mistral/other"\n')["mine"].key == "MISTRAL_API_KEY"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models.a]\n", "expected at least model"),
        ('[models.a]\nmodel = "x/y"\napi_key = "sk-1"\n', "a key comes from the environment"),
        ('[models.a]\nmodel = "x/y"\nretries = -1\n', "retries = -1"),
        ('[models.a]\nmodel = "x/y"\nvision = 1\n', "expected bool"),
        ('[models.a]\nmodel = "x/y"\nkey = "sk-live/123"\n', "NAME of an environment variable"),
        ("[other]\n", "models.NAME"),
        ("[models", "cannot be read as TOML"),
    ],
)
def test_file_that_is_wrong_is_one_sentence_with_its_place(tmp_path, text, words):
    with pytest.raises(SettingsError, match=words) as caught:
        user(tmp_path, text)
    assert "models.toml" in str(caught.value)


def test_name_that_does_not_exist_says_which_do():
    with pytest.raises(ModelError, match="did you mean 'claude-opus'") as caught:
        find("claud-opus", {})
    assert "builtin" in str(caught.value) and "gemini-pro" in str(caught.value)


def test_litellms_own_names_are_taken_as_they_are():
    assert find("groq/some-model", {}).key == "GROQ_API_KEY"


def test_keys_of_all_common_models_are_kept_from_the_worker():
    assert {entry.key for entry in COMMON.values()} - {""} <= set(KEY_NAMES)
