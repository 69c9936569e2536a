"""Size expressions of launch plans."""

import pytest

from kforge_dynamo.errors import RecordError
from kforge_dynamo.records.expression import compile_sizes


@pytest.mark.parametrize(
    ("expression", "sizes", "value"),
    [
        ("m", (7, 3), 7),
        ("cdiv(m, 4) * k", (7, 3), 6),
        ("cdiv(m, 4)", (8, 3), 2),
        ("max(m, k) - min(m, k)", (7, 3), 4),
        ("m // 2 + m % 2", (7, 3), 4),
        ("12", (7, 3), 12),
    ],
)
def test_expression_inside_the_language_has_its_value(expression, sizes, value):
    assert compile_sizes([expression], ["m", "k"])(*sizes) == (value,)


def test_no_expression_gives_an_empty_tuple():
    assert compile_sizes([], ["m"])(5) == ()


@pytest.mark.parametrize(
    "expression",
    ["n", "m.real", "m if k else 1", "__import__('os')", "m ** 9", "1.5", "'a'", "lambda: 1", "(m := 2)", "cdiv(*m)",
     "min(m, key=k)", "True", "m / 2", "f'{m}'", "-m", "m)(", ""],
)  # fmt: skip
def test_expression_outside_the_language_is_refused(expression):
    with pytest.raises(RecordError, match="size expression"):
        compile_sizes([expression], ["m", "k"])
