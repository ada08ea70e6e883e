"""Plain modules of ideas that read earlier tokens, several softmax maps, or values of the first layer."""

import torch
from torch import einsum, nn
from torch.nn import functional

V, D, N, H, L = 61, 32, 4, 8, 2


def heads(x, n=N):
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


class Past(nn.Module):
    """Short convolutions, shifts, and a smear of all but the first token."""

    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(D, 1e-6)
        self.deep = nn.Conv1d(D, D, 3, groups=D, padding=4, dilation=2)
        self.full = nn.Conv1d(D, D, 2, bias=False)
        self.taps, self.mu = nn.Parameter(torch.rand(D, 3)), nn.Parameter(torch.rand(D))
        self.gate, self.qkv, self.o = nn.Linear(D, 1), nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)

    def forward(self, x):
        length = x.shape[1]
        h = self.norm(x)
        h = h + functional.silu(self.deep(h.mT))[..., :length].mT
        h = h + self.full(functional.pad(h.mT, (1, 0))).mT
        h = h + self.mu * (functional.pad(h, (0, 0, 1, -1)) - h)
        past = [torch.cat([h.new_zeros(1, i, D), h[:, : length - i]], 1) for i in range(3)]
        h = (torch.stack(past, -1) * self.taps).sum(-1)
        late = h[:, 1:] + torch.sigmoid(self.gate(h[:, 1:])) * h[:, :-1]
        h = torch.cat([h[:, :1], late], 1)
        q, k, v = map(heads, self.qkv(h).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Maps(nn.Module):
    """The difference of two softmax maps, by a weight of each head; a number of each layer."""

    def __init__(self, i):
        super().__init__()
        self.norm, self.sub = nn.RMSNorm(D, 1e-6), nn.RMSNorm(2 * H, 1e-6)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
        self.weight, self.scale = nn.Parameter(torch.rand(N // 2, 1, 1)), 0.7 - 0.2 * i

    def forward(self, x):
        length = x.shape[1]
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = einsum("bnqh,bnkh->bnqk", heads(q), heads(k)) * H**-0.5
        scores = scores + torch.full((length, length), float("-inf")).triu(1)
        first, second = scores.softmax(-1).unflatten(1, (N // 2, 2)).unbind(2)
        y = einsum("bnqk,bknh->bqnh", first - self.weight * second, v.unflatten(-1, (N // 2, 2 * H)))
        return x + self.o((self.sub(y) * self.scale).flatten(2))


class First(nn.Module):
    """Values of the first layer in all others; matrices of each head by einsum."""

    def __init__(self, i):
        super().__init__()
        self.norm, self.w = nn.RMSNorm(D, 1e-6), nn.Parameter(torch.randn(4, N, D, H) * D**-0.5)
        if i:
            self.mix = nn.Parameter(torch.rand(2))

    def forward(self, x, first):
        h = self.norm(x)
        q, k, v = (einsum("btd,ndh->bnth", h, self.w[i]) for i in range(3))
        first = v if first is None else first
        v = v if first is v else self.mix[0] * v + self.mix[1] * first
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + einsum("bnth,ndh->btd", y, self.w[3]), first


def rotated(x):
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


class Latent(nn.Module):
    """Latent attention with one rotated key for all heads; experts by a softmax of the best scores."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2, self.norm_k = nn.RMSNorm(D, 1e-6), nn.RMSNorm(D, 1e-6), nn.RMSNorm(12, 1e-6)
        self.q, self.down = nn.Linear(D, N * 2 * H, bias=False), nn.Linear(D, 12 + H, bias=False)
        self.up, self.o = nn.Linear(12, N * 2 * H, bias=False), nn.Linear(N * H, D, bias=False)
        self.router = nn.Linear(D, 6)
        self.gates, self.ups = nn.Parameter(torch.randn(6, 16, D)), nn.Parameter(torch.randn(6, 16, D))
        self.outs = nn.Parameter(torch.randn(6, D, 16))

    def forward(self, x):
        h = self.norm(x)
        q, rotary = heads(self.q(h)).split([H, H], -1)
        latent, shared = self.down(h).split([12, H], -1)
        k, v = heads(self.up(self.norm_k(latent))).split([H, H], -1)
        shared = rotated(shared[:, None]).expand(-1, N, -1, -1)
        q, k = torch.cat([q, rotated(rotary)], -1), torch.cat([k, shared], -1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.norm2(x).flatten(0, 1)
        scores, chosen = self.router(h).topk(2, -1)
        gate, up = (einsum("td,tkfd->tkf", h, each[chosen]) for each in (self.gates, self.ups))
        y = einsum("tkf,tkdf->tkd", functional.silu(gate) * up, self.outs[chosen])
        return x + (y * scores.softmax(-1)[..., None]).sum(1).view_as(x)


class Net(nn.Module):
    def __init__(self, blocks, table=0):
        super().__init__()
        self.tok, self.blocks, self.norm = nn.Embedding(V, D), nn.ModuleList(blocks), nn.RMSNorm(D, 1e-6)
        self.head, self.pairs = nn.Linear(D, V, bias=False), nn.Embedding(table, D) if table else None

    def forward(self, ids):
        x = start = self.tok(ids)
        if self.pairs is not None:
            x = x + self.pairs((ids * 31 + functional.pad(ids, (1, 0))[:, :-1] * 17) % 127)
        first = None
        for i, block in enumerate(self.blocks):
            if isinstance(block, First):
                x, first = block(x + start if i else x, first)
            else:
                x = block(x)
        return self.head(self.norm(x))


def past():
    torch.manual_seed(0)
    return Net([Past() for _ in range(L)], 127)


def maps():
    torch.manual_seed(0)
    return Net([Maps(i) for i in range(L)])


def first():
    torch.manual_seed(0)
    return Net([First(i) for i in range(3)])


def latent():
    torch.manual_seed(0)
    return Net([Latent() for _ in range(L)])


class Linear(nn.Module):
    """Linear attention: constant decays of heads, then decays of tokens; divided by its weights' sums."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(D, 1e-6), nn.RMSNorm(D, 1e-6)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
        self.dt, self.rate, self.out = nn.Linear(D, N), nn.Parameter(torch.rand(N)), nn.Linear(D, D)
        self.register_buffer("fading", 1 - 2.0 ** (-2 - torch.arange(N).float()), persistent=False)

    def forward(self, x):
        length = x.shape[1]
        q, k, v = map(heads, self.qkv(self.norm(x)).chunk(3, -1))
        at = torch.arange(length)
        apart = at[:, None] - at
        decay = torch.where(apart >= 0, self.fading[:, None, None] ** apart.clamp(min=0), 0.0)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        weights = einsum("bnqh,bnkh->bnqk", q, k) * decay
        y = einsum("bnqk,bnkh->bqnh", weights / weights.sum(-1, keepdim=True), v)
        x = x + self.o(y.flatten(2))
        h = self.norm2(x)
        dt = functional.softplus(self.dt(h)).transpose(1, 2)
        total = (-self.rate.exp()[:, None] * dt).cumsum(-1)
        between = (total[..., :, None] - total[..., None, :]).masked_fill(apart < 0, float("-inf"))
        y = (q @ k.mT * H**-0.5 * between.exp() * dt[..., None, :]) @ v
        return x + self.out(y.transpose(1, 2).flatten(2)) + h.cumsum(1) / (at + 1)[:, None]


class Streams(nn.Module):
    """Two residual streams that are mixed; keys and queries as products of factors; matrices of parts."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(D, 1e-6), nn.RMSNorm(D, 1e-6)
        self.mix, self.add, self.dynamic = (
            nn.Parameter(torch.rand(2, 2)),
            nn.Parameter(torch.rand(2)),
            nn.Linear(D, 2),
        )
        self.a, self.b, self.v = nn.Linear(D, 4 * N), nn.Linear(D, 4 * H), nn.Linear(D, D)
        self.o, self.up, self.down = (nn.Linear(D, D), nn.Parameter(torch.randn(N, H, 12) / 4),
                                      nn.Parameter(torch.randn(N, 12, H) / 4))  # fmt: skip

    def forward(self, x):
        rates = torch.tanh(self.dynamic(x))
        h = self.norm(einsum("btsd,bts->btd", x, rates[..., 0]))
        shape = h.shape[:2]
        factors = self.a(h).view(*shape, 2, 2, N), self.b(h).view(*shape, 2, 2, H)
        q, k = ((factors[0][:, :, i].mT @ factors[1][:, :, i] / 2).transpose(1, 2) for i in range(2))
        y = functional.scaled_dot_product_attention(q, k, heads(self.v(h)), is_causal=True)
        y = self.o(y.transpose(1, 2).flatten(2))
        x = einsum("btsr,btsd->btrd", self.mix + rates / 8, x) + y[:, :, None] * self.add[:, None]
        h = heads(self.norm2(x.mean(2)))
        h = functional.gelu(h @ self.up)
        y = einsum("bnth,nhd->btnd", h, self.down).flatten(2)
        return x + y[:, :, None] * (rates[..., 1:] + 1)


class Wide(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.tok, self.blocks, self.norm = nn.Embedding(V, D), nn.ModuleList(blocks), nn.RMSNorm(D, 1e-6)
        self.head = nn.Linear(D, V, bias=False)

    def forward(self, ids):
        x = self.tok(ids)[:, :, None].repeat(1, 1, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.amax(2)))


def linear():
    torch.manual_seed(0)
    return Net([Linear() for _ in range(L)])


def streams():
    torch.manual_seed(0)
    return Wide([Streams() for _ in range(L)])


class Looped(Net):
    """The same blocks again and again, with the embedding and a row of the round put in."""

    def __init__(self, blocks):
        super().__init__(blocks)
        self.inject, self.ended = nn.Linear(2 * D, D, bias=False), nn.RMSNorm(D, 1e-6)
        self.round = nn.Parameter(torch.randn(3, D))

    def forward(self, ids):
        x = start = self.tok(ids)
        for i in range(3):
            x = self.inject(torch.cat([x, start], -1)) + self.round[i]
            for block in self.blocks:
                x = block(x)
            x = self.ended(x)
        return self.head(self.norm(x))


def looped():
    torch.manual_seed(0)
    return Looped([Latent() for _ in range(L)])


class Powers(nn.Module):
    """Experts that a ReLU chooses, in one sum of three operands; normed powers as an activation."""

    def __init__(self):
        super().__init__()
        self.norm, self.norm2 = nn.RMSNorm(D, 1e-6), nn.RMSNorm(D, 1e-6)
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D)
        self.router, self.mix = nn.Linear(D, 3), nn.Parameter(torch.rand(3))
        self.up, self.down = nn.Parameter(torch.randn(3, D, 12) / 6), nn.Parameter(torch.randn(3, 12, D) / 3)

    def forward(self, x):
        q, k, v = map(heads, self.qkv(self.norm(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        inner = einsum("btd,edf->btef", h, self.up)
        normed = [p * torch.rsqrt(p.square().mean(-1, keepdim=True) + 1e-5) for p in (inner**3, inner**6)]
        inner = self.mix[0] * normed[0] + self.mix[1] * normed[1] + self.mix[2] * torch.tanh(inner) ** 5
        return x + einsum("btef,efd,bte->btd", inner, self.down, functional.relu(self.router(h)))


def powers():
    torch.manual_seed(0)
    return Net([Powers() for _ in range(L)])
