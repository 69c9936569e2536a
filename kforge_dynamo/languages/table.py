"""The programming models that kernels are written in; one file each."""

from kforge_dynamo.languages import cpp, triton
from kforge_dynamo.languages.base import Language

LANGUAGES: dict[str, Language] = {"cpp": cpp.LANGUAGE, "triton": triton.LANGUAGE}
"""By the name a candidate gives."""
