"""Language models behind litellm: the only file of the agents that reaches the network.

litellm is imported at the first request, not before: it takes seconds and 200 MB. One request has one time limit, kept by a
thread that is given up when it is over (a server that sends a byte now and then would outlive any limit on a single read),
and one retry policy, litellm's `max_retries`; nothing here repeats a request on top of that.
"""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

from kforge_dynamo.agents.model import Ask, Reply
from kforge_dynamo.agents.registry import ModelEntry
from kforge_dynamo.errors import ModelError
from kforge_dynamo.settings import keep_litellm_offline, model_key

_WORDS = 240
_UNFINISHED = {"length": "truncated", "max_tokens": "truncated", "content_filter": "filtered"}
_NO_KEY_NEEDED = "none"  # local servers want some text in the header

_NO_PROTOCOL = ("Received response", "invalid response from LLM", "Expecting value", "JSONDecodeError")
_UNREACHED = ("Connection error", "Server disconnected", "Connection reset", "peer closed")
"""Words of litellm's InternalServerError for what other classes would say better. Read in litellm 1.110.2."""

_KINDS = (
    ("Timeout", "stalled", "gave no reply in time; the server is slow or the connection stalls (timeout_s in models.toml)"),
    ("words:protocol", "malformed", "sent something that is no reply of the protocol; check `api_base`"),
    ("words:unreached", "down", "cannot be reached, or closed the connection; is it running, is the network up?"),
    ("AuthenticationError", "key", "refused the key; set {key} to a valid one"),
    ("status:403", "key", "does not allow this key to use the model; choose another model or key ({key})"),
    ("PermissionDeniedError", "key", "does not allow this key to use the model; choose another model or key ({key})"),
    ("ContentPolicyViolationError", "filtered", "withheld the reply by its content filter"),
    ("ContextWindowExceededError", "refused", "says the prompt is too long; set context_tokens in models.toml"),
    ("NotFoundError", "unknown", "has no such model; check `model` and `api_base`"),
    ("RateLimitError", "rate", "says there were too many requests, or the quota is used up; try again later"),
    ("PaymentRequiredError", "refused", "asks for payment"),
    ("BadRequestError", "refused", "did not accept the request"),
    ("UnprocessableEntityError", "refused", "did not accept the request"),
    ("APIConnectionError", "down", "cannot be reached, or closed the connection; is it running, is the network up?"),
    ("InternalServerError", "down", "failed"),
    ("ServiceUnavailableError", "down", "is not available"),
    ("APIResponseValidationError", "malformed", "sent something that is no reply of the protocol"),
    ("APIError", "down", "failed"),
)
"""Name of the exception (its class or a parent, its HTTP status), kind of the ModelError, what is said; the first that fits."""


class LitellmModel:
    """A model of the registry. Making one neither imports litellm nor reaches the network. Raises: ModelError without a key."""

    def __init__(self, name: str, entry: ModelEntry) -> None:
        self.name = name
        self.entry = entry
        problem = key_problem(name, entry)
        if problem is not None:
            raise ModelError("key", problem)

    def ask(self, ask: Ask, timeout_s: float) -> Reply:
        """The reply of one request. Raises: ModelError."""
        limit_s = min(timeout_s, self.entry.timeout_s)
        litellm = self._library()  # not in the thread, and not counted: an import that is given up half-way stays half done
        common = importlib.import_module("openai").OpenAIError  # the base of litellm's exceptions too
        started = time.monotonic()
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(litellm.completion(**self._arguments(ask, limit_s)))
            except (common, *_MALFORMED) as error:
                outcome.append(error)

        thread = threading.Thread(target=work, name="kforge-model", daemon=True)
        thread.start()
        thread.join(limit_s)
        seconds = time.monotonic() - started
        if not outcome:
            raise ModelError("stalled", f"model {self.name!r} gave no reply within {limit_s:.0f} s; raise timeout_s or try later")
        if isinstance(outcome[0], BaseException):
            raise self._explained(outcome[0]) from outcome[0]
        return self._reply(litellm, outcome[0], seconds, ask.reply_tokens)

    def _library(self) -> Any:
        keep_litellm_offline()
        try:
            litellm: Any = importlib.import_module("litellm")
        except ImportError as error:
            raise ModelError(
                "down", f"model {self.name!r} needs litellm: pip install 'kforge-dynamo[agents]' ({error})"
            ) from error
        litellm.suppress_debug_info = True
        litellm.telemetry = False
        litellm.drop_params = True  # a parameter that a provider does not know is left out
        return litellm

    def _arguments(self, ask: Ask, limit_s: float) -> dict[str, Any]:
        entry = self.entry
        user: Any = ask.user
        if ask.images and entry.vision:
            pictures = [{"type": "image_url", "image_url": {"url": address}} for address in ask.images]
            user = [{"type": "text", "text": ask.user}, *pictures]
        arguments: dict[str, Any] = {
            "model": entry.model,
            "messages": [{"role": "system", "content": ask.system}, {"role": "user", "content": user}],
            "max_tokens": min(ask.reply_tokens, entry.reply_tokens),
            "timeout": limit_s,
            "max_retries": entry.retries,
            "api_key": (model_key(entry.key) if entry.key else None) or _NO_KEY_NEEDED,
        }
        if entry.api_base:
            arguments["api_base"] = entry.api_base
        if entry.effort:
            arguments["reasoning_effort"] = entry.effort
        return arguments

    def _explained(self, error: BaseException) -> ModelError:
        words = " ".join(str(error).split())
        names = [kind.__name__ for kind in type(error).__mro__] + [f"status:{getattr(error, 'status_code', None)}"]
        names += ["words:protocol"] * any(text in words for text in _NO_PROTOCOL)
        names += ["words:unreached"] * any(text in words for text in _UNREACHED)
        secret = model_key(self.entry.key) if self.entry.key else None
        words = (words.replace(secret, "***") if secret else words)[:_WORDS]
        for name, kind, sentence in _KINDS:
            if name in names:
                key = self.entry.key or "its key"
                return ModelError(kind, f"model {self.name!r} {sentence.format(key=key)}: {words}")
        return ModelError("malformed", f"model {self.name!r} sent something that is no reply of the protocol: {words}")

    def _reply(self, litellm: Any, response: Any, seconds: float, asked_tokens: int) -> Reply:
        try:
            choice = response.choices[0]
            text, finish = choice.message.content, str(choice.finish_reason)
            refusal = getattr(choice.message, "refusal", None)
        except (AttributeError, IndexError, TypeError) as error:
            raise ModelError("malformed", f"model {self.name!r} sent a reply without a message") from error
        kind = _UNFINISHED.get(finish)
        if kind == "truncated":
            limit = min(asked_tokens, self.entry.reply_tokens)
            raise ModelError(kind, f"the reply of model {self.name!r} was cut off at {limit} tokens; raise reply_tokens")
        if kind == "filtered":
            raise ModelError(kind, f"a content filter withheld the reply of model {self.name!r}")
        if refusal:
            raise ModelError("refused", f"model {self.name!r} refused: {' '.join(str(refusal).split())[:_WORDS]}")
        if not isinstance(text, str) or not text.strip():
            raise ModelError("empty", f"model {self.name!r} sent an empty reply (it ended with {finish!r})")
        usage = getattr(response, "usage", None)
        sent, received = (_count(usage, name) for name in ("prompt_tokens", "completion_tokens"))
        return Reply(text, sent, received, self._money(response, sent, received), seconds)

    def _money(self, response: Any, sent: int | None, received: int | None) -> float | None:
        """By the registry's prices, else what litellm makes of it."""
        entry = self.entry
        if entry.input_price is not None and entry.output_price is not None and sent is not None and received is not None:
            return (sent * entry.input_price + received * entry.output_price) / 1e6
        cost = getattr(response, "_hidden_params", {}).get("response_cost")
        return float(cost) if isinstance(cost, int | float) else None


_MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, OSError, RuntimeError)
"""What litellm raises where a server's answer has not the form it expects."""


def key_problem(name: str, entry: ModelEntry) -> str | None:
    """What is wrong with the key before it is ever sent, in one sentence; None where nothing is seen."""
    if not entry.key:
        return None
    value = model_key(entry.key)
    if value is None:
        return f"model {name!r} needs a key: set the environment variable {entry.key}, or choose another of `kforge models list`"
    if not value.strip():
        return f"model {name!r} needs a key, and {entry.key} is empty"
    if any(letter.isspace() or not letter.isprintable() or ord(letter) > 126 for letter in value) or value[0] in "\"'":
        return f"{entry.key} is no key: it holds spaces, quotes or characters outside ASCII"
    return None


def _count(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None
