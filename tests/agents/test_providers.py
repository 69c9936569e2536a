"""Real litellm against a real server on loopback: each way a provider fails is one sentence, within one time limit."""

import dataclasses
import os
import subprocess
import sys
import time
from importlib.util import find_spec

import pytest
from agent_scene import BUDGET, PLAN, PROBLEM, Ticking, evaluate, kernel
from stub_server import dripping, dropped, failed, half_json, malformed, said, serving

from kforge_dynamo.agents.loop import Loop, Means, Setup
from kforge_dynamo.agents.model import Ask
from kforge_dynamo.agents.providers import LitellmModel
from kforge_dynamo.agents.registry import ModelEntry
from kforge_dynamo.errors import ModelError

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # pydantic on the types of litellm
    pytest.mark.skipif(
        find_spec("litellm") is None, reason="needs litellm"
    ),  # whose import is the provider's, which keeps it offline
]
KEY = "KFORGE_STUB_API_KEY"
SECRET = "sk-stub-1234567890"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv(KEY, SECRET)


def model(server, **changes):
    entry = ModelEntry("openai/stub", KEY, server.address, reply_tokens=500, input_price=1.0, output_price=2.0, retries=0)
    return LitellmModel("stub", dataclasses.replace(entry, **changes))


def ask(model, timeout_s=20.0, **changes):
    return model.ask(dataclasses.replace(Ask(1, "generator", "rules", "task", 400), **changes), timeout_s)


def test_good_reply_has_its_text_tokens_and_money():
    with serving(said("a kernel", usage=(1000, 500))) as server:
        reply = ask(model(server))
    assert (reply.text, reply.prompt_tokens, reply.reply_tokens) == ("a kernel", 1000, 500)
    assert reply.money == pytest.approx((1000 * 1.0 + 500 * 2.0) / 1e6)
    (body,) = server.bodies
    assert [message["content"] for message in body["messages"]] == ["rules", "task"]
    assert body["max_tokens"] == 400
    assert server.keys == [f"Bearer {SECRET}"]


def test_reply_of_a_model_without_a_known_price_has_no_money():
    with serving("text") as server:
        assert ask(model(server, input_price=None)).money is None


def test_pictures_go_to_models_that_see_and_to_no_others():
    picture = "data:image/png;base64,AAAA"
    with serving("text") as server:
        ask(model(server, vision=True), images=(picture,))
        ask(model(server), images=(picture,))
    seen, blind = (body["messages"][1]["content"] for body in server.bodies)
    assert seen[1]["image_url"]["url"] == picture
    assert blind == "task"


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (failed(401, "bad key", "invalid_api_key"), "key", f"set {KEY}"),
        (failed(403, "not allowed", "permission_denied"), "key", "does not allow"),
        (failed(404, "no model", "model_not_found"), "unknown", "no such model"),
        (failed(429, "slow down", "rate_limit_exceeded"), "rate", "too many requests"),
        (failed(400, "nonsense", "invalid_request_error"), "refused", "did not accept"),
        (failed(500), "down", "failed"),
        (failed(503, "overloaded"), "down", "stub"),
        (dropped, "down", "closed the connection"),
        (malformed, "malformed", "no reply"),
        (half_json, "malformed", "no reply"),
        ({"id": "x", "choices": []}, "malformed", "stub"),
        (said(""), "empty", "empty reply"),
        (said(None, refusal="I will not"), "refused", "I will not"),
        (said("def k(", finish="length"), "truncated", "cut off at 400 tokens"),
        (said("", finish="content_filter"), "filtered", "content filter"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else None,
)
def test_failure_of_a_provider_is_one_sentence_that_names_the_model(answer, kind, words):
    with serving(answer) as server, pytest.raises(ModelError) as caught:
        ask(model(server))
    sentence = str(caught.value)
    assert caught.value.kind == kind, sentence
    assert "stub" in sentence
    assert words in sentence
    assert "\n" not in sentence and SECRET not in sentence


def test_server_that_is_not_there_is_down():
    with serving("text") as server:
        gone = model(server)
    with pytest.raises(ModelError, match="cannot be reached") as caught:
        ask(gone)
    assert caught.value.kind == "down"


@pytest.mark.alone
@pytest.mark.parametrize("answer", [dripping, lambda handler: handler.server.closing.wait(10)], ids=["dripping", "silent"])
def test_connection_that_stalls_ends_at_the_time_limit(answer):
    with serving(answer) as server:
        started = time.monotonic()
        with pytest.raises(ModelError) as caught:
            ask(model(server), timeout_s=1.0)
        assert time.monotonic() - started < 5.0
    assert caught.value.kind == "stalled"


def test_failing_server_is_asked_again_as_often_as_the_entry_says_and_not_more():
    with serving(failed(500), failed(500), "third time") as server:
        assert ask(model(server, retries=2)).text == "third time"
        assert len(server.bodies) == 3
    with serving(failed(500)) as server:
        with pytest.raises(ModelError):
            ask(model(server, retries=1))
        assert len(server.bodies) == 2, "no second policy on top of the first"


def test_refused_request_is_not_repeated():
    with serving(failed(401, "bad", "invalid_api_key")) as server:
        with pytest.raises(ModelError):
            ask(model(server, retries=3))
        assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("value", "words"), [(None, f"set the environment variable {KEY}"), (" ", "is empty"), ("a b", "is no key")]
)
def test_key_that_is_missing_or_none_is_said_before_the_first_request(monkeypatch, value, words):
    monkeypatch.delenv(KEY) if value is None else monkeypatch.setenv(KEY, value)
    with serving("text") as server:
        with pytest.raises(ModelError, match=words) as caught:
            model(server)
        assert not server.bodies
    assert caught.value.kind == "key"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (failed(429, "slow down", "rate_limit_exceeded"), "too many requests"),
        (failed(503, "overloaded"), "is not available"),
        (dropped, "closed the connection"),
        (malformed, "no reply"),
        (said(""), "empty reply"),
        (said("def k(", finish="length"), "cut off"),
        (said("", finish="content_filter"), "content filter"),
    ],
    ids=["rate", "down", "dropped", "malformed", "empty", "truncated", "filtered"],
)
def test_run_over_the_wire_ends_with_the_best_so_far_and_one_sentence(answer, words):
    events = []
    with serving(kernel("us 60"), answer) as server:
        setup = Setup(PLAN, BUDGET, ("cpp",), "ieee", 20_000, 400, 60.0)
        means = Means(
            model(server), None, evaluate, lambda event, step, **data: events.append(event), lambda text: None, Ticking(0.0)
        )
        loop = Loop(PROBLEM, setup, means)
        result = loop.run(())
        assert len(server.bodies) == 2, "no further request after the failure"
    assert "us 60" in result.best.candidate.source
    assert words in loop.reason and "stub" in loop.reason and "\n" not in loop.reason
    assert events[-1] == "end" and "failure" in events
    assert loop.spent.money > 0.0 and loop.spent.requests == 1


def test_neither_importing_the_program_nor_a_compile_imports_litellm(tmp_path):
    program = (
        "import sys, torch, kforge_dynamo.cli.main, kforge_dynamo.agents.providers\n"
        "model = torch.compile(torch.nn.Linear(8, 8), backend='kforge', options={'on_miss': 'fallback'})\n"
        "with torch.no_grad(): model(torch.randn(2, 8))\n"
        "import kforge_dynamo; print(kforge_dynamo.stats()['regions'], 'litellm' in sys.modules)"
    )
    environment = os.environ | {"KFORGE_CACHE_DIR": str(tmp_path), "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "1 False", done.stderr


def test_litellm_is_told_to_stay_offline_before_it_is_imported():
    program = (
        "import os, sys\n"
        "from kforge_dynamo.agents.providers import LitellmModel\n"
        "from kforge_dynamo.agents.registry import ModelEntry\n"
        "seen = []\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name != 'litellm': return\n"
        "        seen.append(os.environ.get('LITELLM_LOCAL_MODEL_COST_MAP')); raise ImportError('not now')\n"
        "sys.meta_path.insert(0, Watch())\n"
        "try: LitellmModel('m', ModelEntry('openai/m')).ask(None, 1.0)\n"
        "except Exception as error: print(seen, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("['True']") and "pip install" in done.stdout, done.stderr
