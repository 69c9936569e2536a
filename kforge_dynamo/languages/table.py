"""The languages by the name that a candidate gives."""

from kforge_dynamo.languages.base import Language
from kforge_dynamo.languages.cpp import LANGUAGE as CPP
from kforge_dynamo.languages.triton import LANGUAGE as TRITON

LANGUAGES: dict[str, Language] = {"cpp": CPP, "triton": TRITON}
"""One entry a programming model."""
