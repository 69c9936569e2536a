"""From a reply to candidates. Tolerant of form, strict about content: what is not understood is a sentence, not an exception.

A reply may hold: fenced code of one or several kernels, each with its launch plan in a `json` block (a C++ kernel of one entry
needs none); a JSON object with `source` and `plan`; a patch of the parent; and the lines `IDEA:` and `GAIN:`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kforge_dynamo.agents import patches
from kforge_dynamo.agents.blocks import Block, blocks
from kforge_dynamo.agents.screen import objection
from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.candidate import Buffer, Candidate, Launch, LaunchPlan
from kforge_dynamo.records.codec import digest
from kforge_dynamo.records.expression import compile_sizes

_WORDS = {"cpp": "cpp", "c++": "cpp", "c": "cpp", "cc": "cpp", "python": "triton", "py": "triton", "triton": "triton"}
_DATA = ("json", "json5", "jsonc")
_SOURCE_NAMES = ("source", "code", "kernel", "kernel_code")
CPP_PLAN = LaunchPlan((), (Launch("kforge_entry", ("1",), ()),))
"""The plan of a C++ kernel that comes without one."""

_MOST = 4
_IDEA_LETTERS = 160
SCHEMES = ("ieee", "tf32x3", "tf32", "fp16", "bf16", "native")


@dataclass(frozen=True, slots=True)
class Context:
    """What a reply is read against: the languages allowed (the first is the usual one), the scheme and the axes of the task, the
    parent, and who is asked."""

    languages: tuple[str, ...]
    scheme: str
    axes: tuple[str, ...]
    author: str
    parent: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a reply held. `refused` are kernels whose text is not acceptable, each with the reason; `objections` says what else
    was not taken and why; `idea` and `gain` are the model's words."""

    candidates: tuple[Candidate, ...]
    refused: tuple[tuple[Candidate, str], ...]
    objections: tuple[str, ...]
    idea: str
    gain: float | None
    mismatch: str = ""
    """Why the reference kernel does not compute the task, in the model's words; empty where it says nothing of the kind."""


def parse(reply: str, context: Context, known: Sequence[str] = ()) -> Proposal:
    """At most four candidates of `reply`, those with a digest in `known` left out."""
    found = _candidates(reply, context)
    taken: list[Candidate] = []
    refused: list[tuple[Candidate, str]] = []
    objections: list[str] = []
    seen = set(known)
    for item in found:
        if isinstance(item, str):
            objections.append(item)
            continue
        problem = objection(item)
        if problem is not None:
            refused.append((item, problem))
        elif digest(_bare(item)) in seen:
            objections.append("the same kernel was tried before")
        elif len(taken) < _MOST:
            seen.add(digest(_bare(item)))
            taken.append(item)
    if not found:
        objections.append(f"the reply holds no kernel: a fenced block of {' or '.join(context.languages)} is expected")
    return Proposal(
        tuple(taken),
        tuple(refused[:_MOST]),
        tuple(dict.fromkeys(objections)),
        _line(reply, "IDEA"),
        _gain(reply),
        _line(reply, "MISMATCH"),
    )


def identity(candidate: Candidate) -> str:
    """The digest by which a kernel counts as tried: its code and plan, whoever wrote it and from whatever parent."""
    return digest(_bare(candidate))


def _bare(candidate: Candidate) -> Candidate:
    source = "\n".join(line.rstrip() for line in candidate.source.strip().splitlines())
    return Candidate(candidate.language, source, candidate.plan, "", candidate.scheme, "")


def _candidates(reply: str, context: Context) -> list[Candidate | str]:
    found = blocks(reply)
    if not found:
        data = read_data(reply)
        return _of_data(data, context) if data is not None else _unfenced(reply, context)
    results: list[Candidate | str] = []
    for index, block in enumerate(found):
        if _is_patch(block):
            results.append(_patched(block.text, _plan_beside(found, index), context))
        elif block.word in _DATA:
            results.extend(_of_data(read_data(block.text), context))
        elif _language(block, context) is not None:
            results.append(_candidate(block.text, _language(block, context) or "", _plan_beside(found, index), context))
    return results


def _is_patch(block: Block) -> bool:
    return block.word in ("diff", "patch", "udiff") or patches.is_patch(block.text)


def _language(block: Block, context: Context) -> str | None:
    """The language of a block of code, None for a block of something else."""
    language = _WORDS.get(block.word, block.word)
    if language in context.languages:
        return language
    if block.word in ("", "text", "plaintext") and _looks_like_kernel(block.text):
        return context.languages[0]
    return None


def _looks_like_kernel(text: str) -> bool:
    return "kforge_entry" in text or "@triton.jit" in text


def _unfenced(reply: str, context: Context) -> list[Candidate | str]:
    """A reply that is nothing but code, or a bare patch."""
    if patches.is_patch(reply):
        return [_patched(reply, None, context)]
    if not _looks_like_kernel(reply):
        return []
    start = re.search(r"^(#include|import |//|@triton|extern|from )", reply, re.MULTILINE)
    return [_candidate(reply[start.start() if start else 0 :], context.languages[0], None, context)]


def _plan_beside(found: Sequence[Block], index: int) -> Any:
    """The first data block after the code and before the next code, else the only one of the reply if it stands before."""
    for block in found[index + 1 :]:
        if block.word in _DATA:
            return _plan_of(read_data(block.text))
        if block.word:
            break
    plans = [number for number, block in enumerate(found) if block.word in _DATA]
    return _plan_of(read_data(found[plans[0]].text)) if len(plans) == 1 and plans[0] < index else None


def _plan_of(data: Any) -> Any:
    if isinstance(data, dict) and "source" not in data:
        return data.get("plan", data)
    return None


def _of_data(data: Any, context: Context) -> list[Candidate | str]:
    """Candidates of a JSON object or a list of such; an object without a source is a plan and gives none."""
    items = data if isinstance(data, list) else data.get("candidates", [data]) if isinstance(data, dict) else []
    results: list[Candidate | str] = []
    for item in items:
        source = (
            next((item[name] for name in _SOURCE_NAMES if isinstance(item.get(name), str)), None) if _is_object(item) else None
        )
        if source is not None:
            language = _WORDS.get(str(item.get("language", "")).lower(), context.languages[0])
            results.append(_candidate(source, language, item.get("plan"), context, item.get("scheme")))
    return results


def _is_object(item: Any) -> bool:
    return isinstance(item, dict)


def read_data(text: str) -> Any:
    """JSON, or what models write in its place: Python's literals, an object within words, a comma too many; None for neither."""
    body = text.strip()
    start, end = body.find("{"), body.rfind("}")
    inner = body[start : end + 1] if 0 <= start < end else body
    for attempt in (body, inner, re.sub(r",\s*([}\]])", r"\1", inner)):
        with contextlib.suppress(ValueError):
            return json.loads(attempt)
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return ast.literal_eval(attempt)
    return None


def _patched(patch: str, plan: Any, context: Context) -> Candidate | str:
    if context.parent is None:
        return "the reply is a patch, and there is no kernel to patch"
    source = patches.apply(patch, context.parent.source)
    if source is None:
        return "the patch does not fit the kernel it changes: its old lines must stand there exactly once"
    return _candidate(source, context.parent.language, plan, context)


def _candidate(source: str, language: str, plan: Any, context: Context, scheme: Any = None) -> Candidate | str:
    parent = context.parent if context.parent is not None and context.parent.language == language else None
    if language not in context.languages:
        return f"the kernel is in {language or 'no known language'}; allowed are {', '.join(context.languages)}"
    try:
        made = read_plan(plan, context.axes) if plan is not None else _plan_without(language, source, parent)
    except RecordError as error:
        return f"the launch plan is not understood: {error}"
    if made is None:
        return "the kernel comes without a launch plan: a json block with `buffers` and `launches` is expected"
    if isinstance(plan, dict) and scheme is None:
        scheme = plan.get("scheme")
    source = _visible(source) if language == "cpp" else source
    named = scheme if scheme in SCHEMES else parent.scheme if parent is not None else context.scheme
    return Candidate(language, source, made, "", named, context.author, digest(parent) if parent is not None else None)


def _visible(source: str) -> str:
    """The entry made visible where it is not: symbols are hidden by the flags, and models write it plainly."""
    if re.search(r"visibility\s*\(\s*\"default", source):
        return source
    visible = r'extern "C" __attribute__((visibility("default"))) void \1'
    return re.sub(r'extern\s+"C"\s+void\s+(kforge_entry)\b', visible, source, count=1)


def _plan_without(language: str, source: str, parent: Candidate | None) -> LaunchPlan | None:
    """The parent's plan where the source still has its kernels, C++'s usual one else."""
    if parent is not None and all(launch.kernel in source for launch in parent.plan.launches):
        return parent.plan
    return CPP_PLAN if language == "cpp" else None


def read_plan(data: Any, axes: Sequence[str]) -> LaunchPlan:
    """A plan from the JSON of a reply. Raises: RecordError in one sentence."""
    if not isinstance(data, dict) or not isinstance(data.get("launches"), list) or not data["launches"]:
        raise RecordError("expected an object with a list `launches` of at least one launch")
    buffers = tuple(_buffer(item) for item in data.get("buffers") or ())
    launches = tuple(_launch(item) for item in data["launches"])
    expressions = [buffer.elements for buffer in buffers] + [text for launch in launches for text in launch.grid]
    expressions += [arg[5:] for launch in launches for arg in launch.args if arg.startswith("size:")]
    compile_sizes(expressions, axes)
    return LaunchPlan(buffers, launches, atomics=data.get("atomics") is True, library=data.get("library") is True)


def _buffer(item: Any) -> Buffer:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or "elements" not in item:
        raise RecordError("a buffer has `name`, `dtype` and `elements`")
    return Buffer(item["name"], str(item.get("dtype", "float32")), str(item["elements"]), item.get("zeroed") is True)


def _launch(item: Any) -> Launch:
    if not isinstance(item, dict) or not isinstance(item.get("kernel"), str):
        raise RecordError("a launch has at least `kernel`")
    constants = item.get("constants") or {}
    pairs = constants.items() if isinstance(constants, dict) else [tuple(pair) for pair in constants if len(pair) == 2]
    if not all(isinstance(value, bool | int | float | str) for _, value in pairs):
        raise RecordError("`constants` holds numbers, texts and booleans by name")
    numbers = [item.get("num_warps", 4), item.get("num_stages", 2)]
    if not all(type(number) is int and 0 < number <= 32 for number in numbers):
        raise RecordError("`num_warps` and `num_stages` are integers from 1 to 32")
    grid, args = item.get("grid", ["1"]), item.get("args", [])
    if not isinstance(grid, list | tuple) or not isinstance(args, list | tuple):
        raise RecordError("`grid` and `args` are lists of texts")
    sorted_pairs = tuple(sorted((str(name), value) for name, value in pairs))
    return Launch(item["kernel"], tuple(map(str, grid)), tuple(map(str, args)), sorted_pairs, numbers[0], numbers[1])


def _line(reply: str, name: str) -> str:
    """The rest of the line that begins with `name:`, shortened, without what could pass for structure."""
    match = re.search(rf"^[\s*#>-]*{name}[*]*\s*:[*]*\s*(.+)$", reply, re.MULTILINE | re.IGNORECASE)
    return plain_line(match[1], _IDEA_LETTERS) if match else ""


def plain_line(text: str, letters: int) -> str:
    """`text` as one short line of ordinary letters: a model's words may stand in a later prompt, not command it."""
    bare = re.sub(r"[^\w .,;:%()/+*=<>^'-]", "", " ".join(text.split()))
    return bare[:letters].strip()


def _gain(reply: str) -> float | None:
    match = re.search(r"([0-9]+(?:\.[0-9]+)?)", _line(reply, "GAIN"))
    value = float(match[1]) if match else math.nan
    return value if 0.1 <= value <= 100.0 else None
