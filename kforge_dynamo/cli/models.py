"""Small models of real architectures with random weights, for `kforge demo`: nothing is downloaded.

Three come from timm and transformers where those are installed and import; the built-in ones need torch alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kforge_dynamo.cli import blocks
from kforge_dynamo.cli.libraries import why_missing


@dataclass(frozen=True, slots=True)
class Built:
    """A model in eval mode with inputs for one call."""

    module: nn.Module
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """`library` is None for the built-in models; `build` raises what the library raises where it does not import."""

    name: str
    about: str
    library: str | None
    build: Callable[[], Built]


class Logits(nn.Module):
    """A transformers model as a function from token ids to one tensor."""

    def __init__(self, model: nn.Module, field: str, **arguments: Any) -> None:
        super().__init__()
        self.model, self.field, self.arguments = model, field, arguments

    def forward(self, ids: Tensor) -> Tensor:
        """The field of the model's answer that is compared."""
        result: Tensor = getattr(self.model(input_ids=ids, **self.arguments), self.field)
        return result


def _ids(batch: int, length: int, words: int) -> Tensor:
    return torch.randint(0, words, (batch, length))


def _timm_vit() -> Built:
    timm: Any = importlib.import_module("timm")
    model = timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, img_size=64, patch_size=8, depth=2, embed_dim=64, num_heads=4, num_classes=100
    )
    return Built(model, (torch.randn(1, 3, 64, 64),))


def _transformers_bert() -> Built:
    library: Any = importlib.import_module("transformers")
    config = library.BertConfig(vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    return Built(Logits(library.BertModel(config), "last_hidden_state"), (_ids(1, 32, 512),))


def _transformers_llama() -> Built:
    library: Any = importlib.import_module("transformers")
    config = library.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=176,
        max_position_embeddings=128,
    )
    return Built(Logits(library.LlamaForCausalLM(config), "logits", use_cache=False), (_ids(1, 32, 512),))


def _vit() -> Built:
    return Built(
        blocks.VisionTransformer(side=32, patch=8, width=64, depth=2, heads=4, classes=100), (torch.randn(1, 3, 32, 32),)
    )


def _bert() -> Built:
    return Built(blocks.TextEncoder(words=512, length=32, width=64, depth=2, heads=4), (_ids(1, 32, 512),))


def _llama() -> Built:
    return Built(blocks.TextDecoder(words=512, width=64, depth=2, heads=4, hidden=176), (_ids(1, 32, 512),))


def _mixer() -> Built:
    return Built(blocks.Mixer(side=32, patch=8, width=64, depth=2, classes=100), (torch.randn(2, 3, 32, 32),))


def _recommender() -> Built:
    model = blocks.Recommender(dense=13, tables=8, rows=1000, width=16)
    return Built(model, (torch.rand(64, 13), torch.randint(0, 1000, (64, 8))))


def _diffusion() -> Built:
    return Built(blocks.DiffusionBlock(width=96, heads=4, hidden=192), (torch.randn(1, 64, 96), torch.rand(1)))


def _autoencoder() -> Built:
    return Built(blocks.AutoEncoder(width=256, hidden=128, code=32, groups=8), (torch.rand(32, 256),))


def _tabular() -> Built:
    return Built(blocks.TabularClassifier(features=64, hidden=128, depth=3, classes=10), (torch.randn(64, 64),))


def _audio() -> Built:
    return Built(blocks.AudioTagger(mels=40, width=64, depth=2, tags=50), (torch.randn(1, 64, 40),))


BUILT_IN = (
    Entry("vit", "vision transformer, 2 blocks", None, _vit),
    Entry("bert", "text encoder, 2 layers", None, _bert),
    Entry("llama", "text decoder, 2 layers", None, _llama),
    Entry("mixer", "MLP-Mixer, 2 blocks", None, _mixer),
    Entry("recommender", "DLRM: two towers and their products", None, _recommender),
    Entry("diffusion", "diffusion transformer block with GEGLU", None, _diffusion),
    Entry("autoencoder", "dense autoencoder with GroupNorm", None, _autoencoder),
    Entry("tabular", "classifier with BatchNorm", None, _tabular),
    Entry("audio", "conformer-like tagger with gated linear units", None, _audio),
)

FROM_LIBRARIES = (
    Entry("vit", "timm: vit_tiny, 2 blocks", "timm", _timm_vit),
    Entry("bert", "transformers: BertModel, 2 layers", "transformers", _transformers_bert),
    Entry("llama", "transformers: LlamaForCausalLM, 2 layers", "transformers", _transformers_llama),
)


def choose(everything: bool) -> tuple[list[Entry], list[str]]:
    """The three models of the demo, or all of them, and a sentence for each library that is not used."""
    missing = {library: why_missing(library) for library in ("timm", "transformers")}
    libraries = {entry.name: entry for entry in FROM_LIBRARIES if entry.library and missing[entry.library] is None}
    notes = [f"{reason}: built-in models instead" for reason in missing.values() if reason]
    if everything:
        return [*libraries.values(), *BUILT_IN], notes
    return [libraries.get(entry.name, entry) for entry in BUILT_IN[:3]], notes
