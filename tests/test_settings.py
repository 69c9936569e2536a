"""Options, environment names, their errors, and who may search."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import subprocess
import sys

import pytest
import torch._inductor

from kforge_dynamo import settings as module
from kforge_dynamo.errors import SettingsError
from kforge_dynamo.languages.table import LANGUAGES
from kforge_dynamo.records.codec import digest
from kforge_dynamo.settings import (
    ROWS,
    Settings,
    configure_logging,
    disabled,
    may_search_by_default,
    named_compiler,
    settings_table,
)

RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in (*(row.env for row in ROWS), *RANK_NAMES):
        monkeypatch.delenv(name, raising=False)


def parse(**options):
    return Settings.parse(options)[0]


def test_defaults_are_those_of_the_table():
    found = parse()
    assert found == Settings("auto", "search", 30.0, 10.0, (), None, False, "info")
    assert Settings.parse(None) == Settings.parse({}) == (found, {})


def test_settings_have_a_digest_and_cannot_be_changed():
    assert digest(parse()) == digest(parse()) != digest(parse(precision="mixed"))
    with pytest.raises(AttributeError):
        parse().precision = "mixed"


def test_no_option_has_a_name_of_inductor_s():
    taken = set(torch._inductor.list_options())
    assert not {row.name for row in ROWS} & taken
    assert not {row.name.replace("_", "-") for row in ROWS} & taken


def test_names_of_languages_are_those_that_exist():
    assert tuple(sorted(LANGUAGES)) == module.LANGUAGE_NAMES


def test_inductor_s_options_pass_through_unchanged_and_in_order():
    given = {
        "max_autotune": True,
        "precision": "mixed",
        "triton.cudagraphs": False,
        "max-autotune-gemm": True,
        "epilogue_fusion": 0,
    }
    found, rest = Settings.parse(given)
    assert found.precision == "mixed"
    assert list(rest.items()) == [item for item in given.items() if item[0] != "precision"]


def test_every_option_of_inductor_passes():
    names = torch._inductor.list_options()
    assert list(Settings.parse(dict.fromkeys(names))[1]) == names


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("precison", "precision"),
        ("budget", "budget_s"),
        ("on_mis", "on_miss"),
        ("max_autotun", "max_autotune"),
        ("triton.cudagraph", "triton.cudagraphs"),
        ("language", "languages"),
    ],
)
def test_unknown_option_is_one_sentence_with_the_nearest_name(name, nearest):
    with pytest.raises(SettingsError) as caught:
        Settings.parse({name: 1})
    text = str(caught.value)
    assert (
        name in text
        and repr(nearest) in text
        and "\n" not in text
        and text.count(".") <= 1 + name.count(".") + nearest.count(".")
    )


def test_unknown_option_like_nothing_names_what_there_is():
    with pytest.raises(SettingsError, match=r"precision, on_miss, budget_s"):
        Settings.parse({"qqqqqqqqqqqq": 1})


@pytest.mark.parametrize("name", [1, None, ("a",), b"precision"])
def test_option_whose_name_is_not_text_is_an_error(name):
    with pytest.raises(SettingsError, match="name is text"):
        Settings.parse({name: 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "highest"),
        ("precision", ""),
        ("precision", None),
        ("precision", 1),
        ("on_miss", "serach"),
        ("on_miss", True),
        ("budget_s", -1),
        ("budget_s", float("nan")),
        ("budget_s", float("inf")),
        ("budget_s", 86401),
        ("budget_s", "soon"),
        ("budget_s", True),
        ("budget_s", None),
        ("budget_s", [1]),
        ("budget_s", 10**400),
        ("region_budget_s", "1e9"),
        ("languages", "cuda"),
        ("languages", []),
        ("languages", ""),
        ("languages", 3),
        ("languages", ["cpp", 1]),
        ("languages", [["cpp"]]),
        ("cache_dir", ""),
        ("cache_dir", 3),
        ("cache_dir", b"/tmp/x"),
        ("cache_dir", "a\0b"),
    ],
)
def test_bad_value_is_one_sentence_with_what_is_expected(name, value):
    with pytest.raises(SettingsError) as caught:
        Settings.parse({name: value})
    text = str(caught.value)
    row = next(row for row in ROWS if row.name == name)
    assert name in text and row.domain in text and "\n" not in text


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("precision", "Mixed", "mixed"),
        ("budget_s", 5, 5.0),
        ("budget_s", "2.5", 2.5),
        ("budget_s", 0, 0.0),
        ("languages", "triton, cpp", ("triton", "cpp")),
        ("languages", ["cpp", "cpp"], ("cpp",)),
        ("on_miss", "error", "error"),
    ],
)
def test_value_is_read_into_the_field_s_type(name, value, field):
    found = getattr(parse(**{name: value}), name)
    assert found == field and type(found) is type(field)


def test_cache_dir_becomes_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert parse(cache_dir="here").cache_dir == str(tmp_path / "here")
    assert parse(cache_dir=tmp_path / "there").cache_dir == str(tmp_path / "there")
    assert parse(cache_dir="~/it").cache_dir == str(tmp_path / "home" / "it")
    assert parse(cache_dir=None).cache_dir is None


@pytest.mark.parametrize(
    ("env", "text", "name", "value"),
    [
        ("KFORGE_PRECISION", "strict", "precision", "strict"),
        ("KFORGE_ON_MISS", "error", "on_miss", "error"),
        ("KFORGE_BUDGET_S", "120", "budget_s", 120.0),
        ("KFORGE_REGION_BUDGET_S", "7.5", "region_budget_s", 7.5),
        ("KFORGE_LANGUAGES", "triton", "languages", ("triton",)),
        ("KFORGE_LOG", "debug", "log", "debug"),
        ("KFORGE_DISABLE", "1", "disabled", True),
        ("KFORGE_DISABLE", "0", "disabled", False),
        ("KFORGE_DISABLE", "true", "disabled", True),
        ("KFORGE_CXX", " clang++-19 ", "cxx", "clang++-19"),
        ("KFORGE_CXX", "/opt/my tools/g++", "cxx", "/opt/my tools/g++"),
        ("KFORGE_CXX", "", "cxx", None),
        ("KFORGE_BUDGET_S", "", "budget_s", 30.0),
        ("KFORGE_BUDGET_S", "  ", "budget_s", 30.0),
    ],
)
def test_environment_sets_the_field(monkeypatch, env, text, name, value):
    monkeypatch.setenv(env, text)
    assert getattr(parse(), name) == value


def test_option_wins_over_the_environment(monkeypatch):
    monkeypatch.setenv("KFORGE_BUDGET_S", "120")
    assert parse(budget_s=3).budget_s == 3.0


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_bad_environment_value_is_one_sentence_with_its_name(monkeypatch, row):
    if row.name in ("cache_dir", "cache_layers", "record"):
        pytest.skip("any text is a path")
    monkeypatch.setenv(row.env, "no such value")
    with pytest.raises(SettingsError) as caught:
        Settings.parse()
    assert row.env in str(caught.value) and row.domain in str(caught.value)


@pytest.mark.parametrize("name", ["disabled", "log", "cxx"])
def test_row_that_only_the_environment_sets_is_no_option(name):
    with pytest.raises(SettingsError):
        Settings.parse({name: "1"})


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("0", False), ("", False), (None, False), ("on", True)])
def test_disabled_reads_its_environment_name(monkeypatch, text, expected):
    if text is not None:
        monkeypatch.setenv("KFORGE_DISABLE", text)
    assert disabled() is expected


def test_compiler_is_named_by_our_name_before_the_common_one(monkeypatch):
    monkeypatch.delenv("KFORGE_CXX", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert named_compiler() is None
    monkeypatch.setenv("CXX", "ccache g++")
    assert named_compiler() == ("CXX", "ccache g++")
    monkeypatch.setenv("KFORGE_CXX", "clang++")
    assert named_compiler() == ("KFORGE_CXX", "clang++")


def test_table_is_complete():
    fields = set(Settings.__dataclass_fields__)
    assert {row.name for row in ROWS} == fields
    assert len({row.env for row in ROWS}) == len(ROWS) and all(row.env.startswith("KFORGE_") for row in ROWS)
    assert all(row.doc.endswith(".") and row.domain for row in ROWS)
    table = settings_table()
    assert [line[1] for line in table] == [row.env for row in ROWS]
    assert all(all(isinstance(cell, str) and cell for cell in line) for line in table)


def test_no_other_file_names_an_environment_name_that_the_table_lacks():
    package = os.path.dirname(module.__file__)
    known = {row.env for row in ROWS}
    for folder, _, names in os.walk(package):
        for name in names:
            if name.endswith(".py"):
                with open(os.path.join(folder, name), encoding="utf-8") as stream:
                    assert set(re.findall(r"\bKFORGE_[A-Z_]+\b", stream.read())) <= known, name


def test_main_process_alone_searches():
    assert may_search_by_default()
    assert parse().on_miss == "search" and parse().searching
    assert not parse(on_miss="fallback").searching and not parse(on_miss="error").searching
    assert parse(on_miss="background").searching


@pytest.mark.parametrize(
    ("names", "searches"),
    [
        ({"WORLD_SIZE": "8", "RANK": "0"}, False),
        ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, True),
        ({"LOCAL_RANK": "3"}, False),
        ({"RANK": "0"}, False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, False),
        ({"PMI_SIZE": "1"}, True),
        ({"WORLD_SIZE": "several"}, False),
    ],
)
def test_one_of_several_ranks_falls_back(monkeypatch, names, searches):
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert parse().on_miss == ("search" if searches else "fallback")
    assert parse(on_miss="search").on_miss == "search", "what was asked for is done"


def test_initialised_process_group_decides_before_the_environment(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert parse().on_miss == "fallback"
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert parse().on_miss == "search"


def report(queue):
    queue.put(Settings.parse()[0].on_miss)


def test_child_of_multiprocessing_falls_back():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=report, args=(queue,))
    process.start()
    assert queue.get(timeout=60) == "fallback"
    process.join()


def test_bare_fork_falls_back_and_its_parent_goes_on_searching():
    child = os.fork()
    if child == 0:
        os._exit(7 if Settings.parse()[0].on_miss == "fallback" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert parse().on_miss == "search"


def test_present_keys_are_names_without_values(monkeypatch):
    for name in module.KEY_NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "the-secret-value")
    assert module.present_keys() == ("OPENAI_API_KEY",)
    monkeypatch.setenv("KFORGE_LOG", "debug")
    assert module.present_names() == ("KFORGE_LOG",)


def test_log_line_is_one_line_on_stderr_from_its_level_on():
    program = (
        "import os, sys\n"
        "from kforge_dynamo.settings import Settings, configure_logging, LOGGER\n"
        "for level in ('', 'debug', 'warning', 'off'):\n"
        "    os.environ['KFORGE_LOG'] = level\n"
        "    configure_logging(Settings.parse()[0])\n"
        "    LOGGER.debug('fine'); LOGGER.info('searching\\n  two regions'); LOGGER.warning('%s', 'fell back')\n"
        "    sys.stderr.write('--\\n')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True, timeout=120
    )
    fell, searching, fine = "kforge: fell back\n", "kforge: searching two regions\n", "kforge: fine\n"
    assert done.stderr == f"{searching}{fell}--\n{fine}{searching}{fell}--\n{fell}--\n--\n"
    assert done.stdout == ""


def test_log_lines_go_to_the_program_s_handlers_where_it_has_some(caplog, capsys):
    configure_logging(parse())
    with caplog.at_level(logging.INFO, "kforge"):
        module.LOGGER.info("once")
    assert caplog.messages == ["once"] and capsys.readouterr().err == ""
