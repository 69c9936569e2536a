"""The built-in models of `kforge demo`: common architectures in a few lines each, sized by their arguments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Self-attention over `(batch, tokens, width)`."""

    def __init__(self, width: int, heads: int, causal: bool = False, rotary: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.rotary = heads, causal, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        if self.rotary:
            q, k = rotate(q), rotate(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        mixed: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return mixed


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding of `(batch, heads, tokens, size)`."""
    tokens, half = x.shape[-2], x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=x.dtype) / half)
    angles = torch.arange(tokens, device=x.device, dtype=x.dtype)[:, None] * rates
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Block(nn.Module):
    """A pre-norm transformer block with a GELU network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.network(self.norm2(x))
        return y


class VisionTransformer(nn.Module):
    """Images `(batch, 3, side, side)` to class scores."""

    def __init__(self, side: int, patch: int, width: int, depth: int, heads: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """`(batch, classes)`."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        scores: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return scores


class PostNormBlock(nn.Module):
    """A transformer layer that normalises after each residual, as BERT does."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads), nn.LayerNorm(width)
        self.up, self.down, self.norm2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = self.norm1(x + self.attention(x))
        y: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return y


class TextEncoder(nn.Module):
    """Token ids `(batch, length)` to hidden states and a pooled state."""

    def __init__(self, words: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.Sequential(*(PostNormBlock(width, heads) for _ in range(depth)))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """`(batch, length, width)` and `(batch, width)`."""
        x = self.blocks(self.norm(self.words(ids) + self.positions))
        return x, torch.tanh(self.pooler(x[:, 0]))


class DecoderBlock(nn.Module):
    """RMSNorm, causal attention with rotary positions, and a SwiGLU network."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.attention = Attention(width, heads, causal=True, rotary=True)
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        z: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return z


class TextDecoder(nn.Module):
    """Token ids `(batch, length)` to the next token's scores."""

    def __init__(self, words: int, width: int, depth: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(DecoderBlock(width, heads, hidden) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """`(batch, length, words)`."""
        scores: Tensor = self.head(self.norm(self.blocks(self.words(ids))))
        return scores


class MixerBlock(nn.Module):
    """A network over the tokens, then one over the channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 4 * tokens), nn.GELU(), nn.Linear(4 * tokens, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        y: Tensor = x + self.channels(self.norm2(x))
        return y


class Mixer(nn.Module):
    """Images `(batch, 3, side, side)` to class scores."""

    def __init__(self, side: int, patch: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.blocks = nn.Sequential(*(MixerBlock((side // patch) ** 2, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """`(batch, classes)`."""
        x = self.blocks(self.patches(images).flatten(2).transpose(1, 2))
        scores: Tensor = self.head(self.norm(x).mean(1))
        return scores


class Recommender(nn.Module):
    """DLRM: dense features and embeddings, their pairwise products, and a tower to a probability."""

    def __init__(self, dense: int, tables: int, rows: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        self.left, self.right = torch.tril_indices(tables + 1, tables + 1, -1).tolist()

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """`(batch, 1)`."""
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(ids[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(rows, rows.transpose(1, 2))[:, self.left, self.right]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


class DiffusionBlock(nn.Module):
    """A transformer block modulated by the time step, with a GEGLU network."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.geglu, self.down = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """`(batch, tokens, width)` at `time` `(batch,)`."""
        s1, b1, g1, s2, b2, g2 = self.time(time[:, None])[:, None].chunk(6, -1)
        x = x + g1 * self.attention(self.norm1(x) * (1 + s1) + b1)
        value, gate = self.geglu(self.norm2(x) * (1 + s2) + b2).chunk(2, -1)
        result: Tensor = x + g2 * self.down(value * F.gelu(gate))
        return result


class AutoEncoder(nn.Module):
    """Dense layers with GroupNorm down to a code and back."""

    def __init__(self, width: int, hidden: int, code: int, groups: int) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(width, hidden), nn.GroupNorm(groups, hidden), nn.SiLU(), nn.Linear(hidden, code))
        self.decode = nn.Sequential(nn.Linear(code, hidden), nn.GroupNorm(groups, hidden), nn.SiLU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, width)`."""
        return torch.sigmoid(self.decode(torch.tanh(self.encode(x))))


class TabularClassifier(nn.Module):
    """Dense layers with BatchNorm and residuals, to class probabilities."""

    def __init__(self, features: int, hidden: int, depth: int, classes: int) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(features, hidden), nn.Linear(hidden, classes)
        self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(depth))
        for name, statistic in self.norms.named_buffers():
            if name.endswith("running_mean"):
                statistic.normal_(0.0, 0.2)
            elif name.endswith("running_var"):
                statistic.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        """`(batch, classes)`."""
        x = F.relu(self.first(x))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.relu(norm(layer(x)))
        chances: Tensor = self.head(x).softmax(-1)
        return chances


class AudioTagger(nn.Module):
    """Frames `(batch, time, mels)` through gated convolution modules to tag probabilities."""

    def __init__(self, mels: int, width: int, depth: int, tags: int) -> None:
        super().__init__()
        self.first = nn.Linear(mels, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.gates = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.convolutions = nn.ModuleList(nn.Conv1d(width, width, 7, padding=3, groups=width) for _ in range(depth))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, tags)

    def forward(self, frames: Tensor) -> Tensor:
        """`(batch, tags)`."""
        x = self.first(frames)
        for norm, gate, convolution, out in zip(self.norms, self.gates, self.convolutions, self.outs, strict=True):
            y = F.glu(gate(norm(x)), -1)
            y = F.silu(convolution(y.transpose(1, 2)).transpose(1, 2))
            x = x + out(y)
        return torch.sigmoid(self.head(x.logsumexp(1)))
