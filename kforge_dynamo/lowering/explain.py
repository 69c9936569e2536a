"""A partition as text: every region with its task and where its inputs come from, then why the rest stays with Inductor."""

from __future__ import annotations

from collections import Counter

from kforge_dynamo.lowering.regions import Feed, Partition, Region
from kforge_dynamo.records.region import Reason, Rejection
from kforge_dynamo.semantics.show import show

_EXAMPLES = 3
"""Sentences shown for one reason; the others are counted."""

_HEADINGS = {
    Reason.NO_ANCHOR: "not near a product",
    Reason.UNSUPPORTED_OP: "ops outside the op table",
    Reason.UNSUPPORTED_DTYPE: "dtypes",
    Reason.UNSUPPORTED_LAYOUT: "layouts",
    Reason.CROSSES_ROWS: "across rows of a product",
    Reason.NOT_CONVEX: "behind nodes that stay outside",
    Reason.SYMBOLIC_SIZE: "symbolic sizes",
    Reason.EMPTY: "no elements",
    Reason.RANDOM: "random numbers",
    Reason.MUTATION: "writes to memory",
    Reason.DEVICE: "other devices",
    Reason.NOT_EXPRESSIBLE: "no place in a region",
    Reason.INTERNAL: "errors of kforge",
}


def explain(partition: Partition) -> str:
    """Readable text, stable for equal graphs."""
    parts = [_region(number, region) for number, region in enumerate(partition.regions, start=1)]
    if not parts:
        parts.append("no region: the graph has no product that kforge takes\n")
    if partition.rejections:
        parts.append(_rejected(partition.rejections))
    return "\n".join(parts)


def _region(number: int, region: Region) -> str:
    lines = [f"region {number}: {region.title}"]
    lines += [f"    {line}" for line in show(region.task).splitlines()]
    lines += [f"    %{index} is {_source(feed)}" for index, feed in enumerate(region.binding.feeds)]
    lines += [f"    {axis.axis} = {axis.size}" for axis in region.binding.axes]
    names = ", ".join(node.name for node in region.outputs)
    lines.append(f"    replaces {len(region.nodes)} nodes from {region.anchor.name}, returns {names}")
    return "\n".join(lines) + "\n"


def _source(feed: Feed) -> str:
    kind = "graph input" if feed.node.op == "placeholder" else "constant" if feed.node.op == "get_attr" else "value"
    shape = "" if feed.view is None else f" viewed as ({', '.join(str(size) for size in feed.view)})"
    return f"the {kind} {feed.node.name}{shape}"


def _rejected(rejections: tuple[Rejection, ...]) -> str:
    lines = [f"left to Inductor: {len(rejections)} nodes"]
    for reason in Reason:
        found = [rejection for rejection in rejections if rejection.reason is reason]
        if not found:
            continue
        lines.append(f"  {_HEADINGS[reason]} ({reason.value}): {len(found)}")
        sentences = Counter(rejection.sentence for rejection in found)
        for sentence, count in sentences.most_common(_EXAMPLES):
            names = [rejection.node for rejection in found if rejection.sentence == sentence]
            shown = ", ".join(names[:_EXAMPLES]) + (f" and {count - _EXAMPLES} more" if count > _EXAMPLES else "")
            lines.append(f"    {shown}: {sentence}")
        if len(sentences) > _EXAMPLES:
            rest = sum(count for _, count in sentences.most_common()[_EXAMPLES:])
            lines.append(f"    and {rest} more for {len(sentences) - _EXAMPLES} other causes")
    return "\n".join(lines) + "\n"
