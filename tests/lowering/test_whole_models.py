"""Whole models from transformers and timm with random weights: every region right, layers share tasks."""

import importlib

import pytest
import torch
from post_grad import capture, check

from kforge_dynamo.cli.libraries import why_missing
from kforge_dynamo.records.codec import digest

IDS = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))


def library(name):
    """The library, beside whatever torchvision is installed; the test is skipped where it is not there."""
    why_missing("torchvision")  # where it was built for another torch, this makes it importable; both libraries import it late
    reason = why_missing(name)
    if reason is not None:
        pytest.skip(reason)
    return importlib.import_module(name)


def transformer(name):
    transformers = library("transformers")
    common = {"vocab_size": 64, "attn_implementation": "eager"}
    if name == "bert":
        config = transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=32, **common
        )
        model = transformers.BertModel(config)
        return model, lambda ids: model(ids).last_hidden_state
    if name == "gpt2":
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, **common)
        model = transformers.GPT2LMHeadModel(config)
        return model, lambda ids: model(ids, use_cache=False).logits
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **common
    )
    model = transformers.LlamaForCausalLM(config)
    return model, lambda ids: model(ids, use_cache=False).logits


def judged(name, train=False, dynamic=(), dtype=torch.float32):
    torch.manual_seed(0)
    model, call = transformer(name)
    model.eval().to(dtype)
    return [check(graph) for graph in capture(call, IDS, train=train, dynamic=dynamic)]


@pytest.mark.parametrize(("name", "regions", "tasks"), [("bert", 12, 4), ("llama", 19, 10)])
def test_language_model_is_right_and_its_layers_share_tasks(name, regions, tasks):
    (found,) = judged(name)
    assert len(found.regions) == regions
    assert len({digest(region.task) for region in found.regions}) == tasks
    assert any("norm" in region.title for region in found.regions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("options", [{"train": True}, {"dynamic": ((0, 0),)}, {"dtype": torch.bfloat16}], ids=str)
def test_language_model_is_right_in_training_with_dynamic_batch_and_in_bf16(name, options):
    for found in judged(name, **options):
        assert len(found.regions) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
@pytest.mark.parametrize("train", [False, True])
def test_vision_model_is_right(name, train):
    timm = library("timm")
    small = {"img_size": 64, "pretrained": False}
    small |= (
        {"depth": 2} if name.startswith("vit") else {"depths": (2, 2), "num_heads": (2, 4), "embed_dim": 32, "window_size": 4}
    )
    torch.manual_seed(0)
    model = timm.create_model(name, **small)
    for graph in capture(lambda x: model(x), torch.randn(2, 3, 64, 64), train=train):
        assert len(check(graph).regions) >= 8
