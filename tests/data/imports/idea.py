import torch
from torch import nn
from torch.nn import functional

D, HEADS, HIDDEN, LAYERS, VOCABULARY = 512, 8, 1536, 8, 8192


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(D))

    def forward(self, x):
        return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.gain


def rotate(x):  # [1, T, heads, width]
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = Norm(), Norm()
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.temperature = nn.Parameter(torch.rand(HEADS, 1) + 0.5)  # the idea: one for each head,
        self.trust = nn.Linear(D, D)  # and a gate on what is added to the stream
        self.gate = nn.Linear(D, HIDDEN, bias=False)
        self.up = nn.Linear(D, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, D, bias=False)

    def forward(self, x):
        h = self.before(x)
        q, k, v = self.qkv(h).view(1, -1, 3, HEADS, D // HEADS).unbind(2)
        q, k = rotate(q) * self.temperature, rotate(k)
        y = functional.scaled_dot_product_attention(
            *(one.transpose(1, 2) for one in (q, k, v)), is_causal=True
        )
        x = x + torch.sigmoid(self.trust(h)) * self.out(y.transpose(1, 2).reshape(1, -1, D))
        h = self.between(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Tempered(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, D)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last, self.head = Norm(), nn.Linear(D, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def make():
    torch.manual_seed(1)
    return Tempered()
