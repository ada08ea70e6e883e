"""Plain modules of different styles."""

import math

import torch
from torch import nn

V, D, N, H, F, L = 97, 48, 4, 12, 80, 2


def causal(T):
    return torch.ones(T, T).tril().bool()


class RopeInterleaved(nn.Module):
    def __init__(self, d, base=10000.0):
        super().__init__()
        self.register_buffer("freq", base ** (-torch.arange(0, d, 2).float() / d))

    def forward(self, x):  # [B,T,N,H]
        t = torch.arange(x.shape[1], device=x.device).float()
        a = t[:, None] * self.freq[None]
        c, sn = a.cos()[None, :, None], a.sin()[None, :, None]
        e, o = x[..., ::2], x[..., 1::2]
        return torch.stack((e * c - o * sn, e * sn + o * c), -1).flatten(-2)


class Norm(nn.Module):
    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.w = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps) * self.w


class BlockA(nn.Module):  # einsum attention, interleaved rope, relu squared, one head norm shared
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.hn = Norm(D), Norm(D), Norm(H)
        self.q, self.k, self.v, self.o = [nn.Linear(D, D, bias=False) for _ in range(4)]
        self.u, self.d = nn.Linear(D, F, bias=False), nn.Linear(F, D, bias=False)
        self.rope = RopeInterleaved(H)

    def forward(self, x):
        B, T, _ = x.shape
        h = self.n1(x)
        q, k, v = [f(h).view(B, T, N, H) for f in (self.q, self.k, self.v)]
        q, k = self.rope(self.hn(q)), self.rope(self.hn(k))
        w = torch.einsum("bqnh,bknh->bnqk", q, k) / math.sqrt(H)
        w = w.masked_fill(~causal(T), float("-inf")).softmax(-1)
        x = x + self.o(torch.einsum("bnqk,bknh->bqnh", w, v).reshape(B, T, D))
        return x + self.d(torch.relu(self.u(self.n2(x))) ** 2)


class BlockB(nn.Module):  # nanoGPT: fused qkv, layer norm, learned positions, gelu
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc, self.out = nn.Linear(D, F), nn.Linear(F, D)

    def forward(self, x):
        B, T, _ = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(D, dim=2)
        q, k, v = [t.view(B, T, N, H).transpose(1, 2) for t in (q, k, v)]
        y = (
            nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            .transpose(1, 2)
            .contiguous()
            .view(B, T, D)
        )
        x = x + self.proj(y)
        return x + self.out(nn.functional.gelu(self.fc(self.ln2(x))))


class BlockC(nn.Module):  # parallel residual, MQA, complex rope, silu by hand, post norm
    def __init__(self):
        super().__init__()
        self.n = Norm(D, 1e-6)
        self.pn = Norm(D, 1e-6)
        self.q, self.kv, self.o = (
            nn.Linear(D, D, bias=False),
            nn.Linear(D, 2 * H, bias=False),
            nn.Linear(D, D, bias=False),
        )
        self.gu, self.d = nn.Linear(D, 2 * F, bias=False), nn.Linear(F, D, bias=False)
        self.register_buffer("freq", 5000.0 ** (-torch.arange(0, H, 2).float() / H))

    def rot(self, x):
        a = torch.arange(x.shape[1]).float()[:, None] * self.freq
        z = torch.polar(torch.ones_like(a), a)[None, :, None]
        return torch.view_as_real(torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * z).flatten(3)

    def forward(self, x):
        B, T, _ = x.shape
        h = self.n(x)
        q = self.rot(self.q(h).view(B, T, N, H))
        k, v = self.kv(h).view(B, T, 2, H).unbind(2)
        k = self.rot(k[:, :, None])
        w = (q.transpose(1, 2) @ k.permute(0, 2, 3, 1)) * 0.25
        w = 30 * torch.tanh(w / 30)
        w = w + torch.zeros(T, T).masked_fill(~causal(T), -1e9)
        y = (w.softmax(-1) @ v[:, None]).transpose(1, 2).reshape(B, T, D)
        g, u = self.gu(h).chunk(2, -1)
        return x + self.pn(self.o(y)) + self.d(g * torch.sigmoid(g) * u)


class BlockD(nn.Module):  # ALiBi-like window attention with gated residual
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(D, eps=1e-5), nn.RMSNorm(D, eps=1e-5)
        self.q, self.k, self.v, self.o = [nn.Linear(D, D) for _ in range(4)]
        self.gate = nn.Parameter(torch.randn(D) * 0.1 + 0.5)
        self.u, self.d = nn.Linear(D, F), nn.Linear(F, D)

    def forward(self, x):
        B, T, _ = x.shape
        h = self.n1(x)
        q, k, v = [f(h).view(B, T, N, H).transpose(1, 2) for f in (self.q, self.k, self.v)]
        i = torch.arange(T)
        m = (i[:, None] >= i) & (i[:, None] - i < 6)
        y = (
            nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.2)
            .transpose(1, 2)
            .reshape(B, T, D)
        )
        x = x + self.gate * self.o(y)
        return x + self.d(nn.functional.silu(self.u(self.n2(x)))) * 0.7


class BlockE(nn.Module):  # learned temperature per head, gated residual by tokens
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = Norm(D), Norm(D)
        self.q, self.k, self.v, self.o = [nn.Linear(D, D, bias=False) for _ in range(4)]
        self.temp = nn.Parameter(torch.rand(N, 1) + 0.5)
        self.g = nn.Linear(D, D)
        self.u, self.d = nn.Linear(D, F, bias=False), nn.Linear(F, D, bias=False)
        self.rope = RopeInterleaved(H)

    def forward(self, x):
        B, T, _ = x.shape
        h = self.n1(x)
        q, k, v = [f(h).view(B, T, N, H) for f in (self.q, self.k, self.v)]
        q, k = self.rope(q) * self.temp, self.rope(k)
        y = (
            nn.functional.scaled_dot_product_attention(
                *[t.transpose(1, 2) for t in (q, k, v)], is_causal=True
            )
            .transpose(1, 2)
            .reshape(B, T, D)
        )
        x = x + torch.sigmoid(self.g(h)) * self.o(y)
        return x + self.d(nn.functional.gelu(self.u(self.n2(x)), approximate="tanh"))


class BlockF(nn.Module):  # a long window, positions in each layer, parameters that are computed
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.pos = nn.LayerNorm(D), nn.LayerNorm(D), nn.Embedding(64, D)
        self.q, self.k, self.v, self.o = [nn.Linear(D, D) for _ in range(4)]
        self.log_temp = nn.Parameter(torch.randn(N) * 0.3)
        self.u, self.d = nn.utils.parametrizations.weight_norm(nn.Linear(D, F)), nn.Linear(F, D)

    def forward(self, x):
        T = x.shape[1]
        h = self.n1(x) + self.pos(torch.arange(T))
        q, k, v = [f(h).view(1, T, N, H).transpose(1, 2) for f in (self.q, self.k, self.v)]
        seen = causal(T) & ~torch.ones(T, T).tril(-40).bool()
        q = q * self.log_temp.exp()[:, None, None]
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.o(y.transpose(1, 2).reshape(1, T, D))
        return x + self.d(nn.functional.silu(self.u(self.n2(x))))


class BlockG(BlockD):  # scores that far tokens lose
    def forward(self, x):
        T = x.shape[1]
        q, k, v = [f(self.n1(x)).view(1, T, N, H).transpose(1, 2) for f in (self.q, self.k, self.v)]
        apart = torch.arange(T)[:, None] - torch.arange(T)
        bias = torch.where(apart > 100, -1.0, 0.0).masked_fill(apart < 0, float("-inf"))
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.o(y.transpose(1, 2).reshape(1, T, D))


class BlockH(BlockE):  # Python that depends on the length of the text
    def forward(self, x):
        return super().forward(x) if x.shape[1] > 16 else x


class BlockI(nn.Module):  # rows of length 1, learned steps, tables of 300 positions, no norm with a weight
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = [nn.Linear(D, D, bias=False) for _ in range(4)]
        self.u, self.d = nn.Linear(D, F, bias=False), nn.Linear(F, D, bias=False)
        self.step, self.scale = nn.Parameter(torch.rand(D)), nn.Parameter(1 + torch.rand(H))
        angle = torch.outer(torch.arange(300).float(), 10000.0 ** (-torch.arange(0, H, 2).float() / H))
        for name, table in (("cos", angle.cos()), ("sin", angle.sin())):
            self.register_buffer(name, torch.cat([table, table], -1), persistent=False)

    def rot(self, x):
        T, (p, q) = x.shape[2], x.chunk(2, -1)
        return x * self.cos[:T] + torch.cat([-q, p], -1) * self.sin[:T]

    def forward(self, x):
        unit, T = nn.functional.normalize, x.shape[1]
        q, k, v = [f(x).view(1, T, N, H).transpose(1, 2) for f in (self.q, self.k, self.v)]
        q, k = unit(self.rot(q), dim=-1) * self.scale, unit(self.rot(k), dim=-1) * self.scale
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=H**0.5)
        a = unit(self.o(y.transpose(1, 2).reshape(1, T, D)), dim=-1)
        x = unit(x + self.step.abs() * (a - x), dim=-1)
        h = self.d(nn.functional.silu(self.u(x)))
        return unit(x + h / h.square().sum(-1, keepdim=True).sqrt(), dim=-1)


class BlockJ(BlockE):  # one more score of each head, which no value has; scores less their largest
    def __init__(self):
        super().__init__()
        self.sink = nn.Parameter(torch.randn(N))

    def forward(self, x):
        T, h = x.shape[1], self.n1(x)
        q, k, v = [f(h).view(1, T, N, H).transpose(1, 2) for f in (self.q, self.k, self.v)]
        s = (q @ k.transpose(2, 3) * H**-0.5).masked_fill(~causal(T), float("-inf"))
        s = torch.cat([s, self.sink.reshape(1, N, 1, 1).expand(1, N, T, 1)], -1)
        s = s - s.max(-1, keepdim=True).values
        y = s.softmax(-1)[..., :-1] @ v
        x = x + self.o(y.transpose(1, 2).reshape(1, T, D))
        return x + self.d(nn.functional.silu(self.u(self.n2(x))))


class BlockK(BlockE):  # scores that grow with the logarithm of the length (scalable softmax)
    def forward(self, x):
        T, h = x.shape[1], self.n1(x)
        q, k, v = [f(h).view(1, T, N, H) for f in (self.q, self.k, self.v)]
        n = torch.arange(1, T + 1).float().log()[:, None, None]
        q, k = self.rope(q) * self.temp * n, self.rope(k)
        q, k, v = [each.transpose(1, 2) for each in (q, k, v)]
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(1, T, D))
        return x + self.d(nn.functional.silu(self.u(self.n2(x)))) * torch.arange(T)[:, None] / 64


class BlockM(BlockE):  # all experts computed, those of the highest biased scores weighted; matrices [in, out]
    def __init__(self):
        super().__init__()
        self.r, self.bias = nn.Linear(D, 6, bias=False), nn.Parameter(torch.randn(6) * 0.3)
        self.wg, self.wu = (nn.Parameter(torch.randn(6, D, 20) * D**-0.5) for _ in range(2))
        self.wd = nn.Parameter(torch.randn(6, 20, D) * 20**-0.5)

    def forward(self, x):
        T, h = x.shape[1], self.n1(x)
        q, k, v = [f(h).view(1, T, N, H).transpose(1, 2) for f in (self.q, self.k, self.v)]
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(1, T, D))
        h = self.n2(x)
        p = torch.sigmoid(self.r(h))
        i = (p + self.bias).topk(2, -1).indices
        w = torch.zeros_like(p).scatter(-1, i, p.gather(-1, i))
        w = 1.5 * w / w.sum(-1, keepdim=True)
        g, u = (torch.einsum("btd,edf->btef", h, m) for m in (self.wg, self.wu))
        y = torch.einsum("btef,efd->bted", nn.functional.silu(g) * u, self.wd)
        return x + torch.einsum("bted,bte->btd", y, w)


class Model(nn.Module):
    def __init__(self, block, pos=False, norm=Norm, scale=1.0):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.pos = nn.Embedding(64, D) if pos else None
        self.blocks = nn.ModuleList(block() for _ in range(L))
        self.norm = norm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.scale = scale

    def forward(self, ids):
        x = self.tok(ids) * self.scale
        if self.pos is not None:
            x = x + self.pos(torch.arange(ids.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x))


class Lists(nn.Module):  # lists of parts, summed with the stream by the model itself
    def __init__(self):
        super().__init__()
        self.tok, self.head = nn.Embedding(V, D), nn.Linear(D, V, bias=False)
        self.n1, self.n2 = (nn.ModuleList(Norm(D) for _ in range(L)) for _ in range(2))
        self.qkv, self.o = (nn.ModuleList(nn.Linear(D, k * D, bias=False) for _ in range(L)) for k in (3, 1))
        self.u, self.d = (
            nn.ModuleList(nn.Linear(D, F) for _ in range(L)),
            nn.ModuleList(nn.Linear(F, D) for _ in range(L)),
        )
        self.rope, self.norm = RopeInterleaved(H), Norm(D)

    def forward(self, ids):
        x, T = self.tok(ids), ids.shape[1]
        for i in range(L):
            q, k, v = [t.view(1, T, N, H) for t in self.qkv[i](self.n1[i](x)).split(D, 2)]
            q, k, v = [t.transpose(1, 2) for t in (self.rope(q), self.rope(k), v)]
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o[i](y.transpose(1, 2).reshape(1, T, D))
            x = x + self.d[i](nn.functional.gelu(self.u[i](self.n2[i](x))))
        return self.head(self.norm(x))


class Shared(Lists):  # odd layers read the keys and values of the layer before (cross-layer attention)
    def __init__(self):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(D, (1 if i % 2 else 3) * D, bias=False) for i in range(L))

    def forward(self, ids):
        x, T = self.tok(ids), ids.shape[1]
        for i in range(L):
            h = self.qkv[i](self.n1[i](x))
            q = self.rope(h[..., :D].view(1, T, N, H)).transpose(1, 2)
            if i % 2 == 0:
                k, v = (t.view(1, T, N, H) for t in h[..., D:].split(D, 2))
                k, v = self.rope(k).transpose(1, 2), v.transpose(1, 2)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o[i](y.transpose(1, 2).reshape(1, T, D))
            x = x + self.d[i](nn.functional.gelu(self.u[i](self.n2[i](x))))
        return self.head(self.norm(x))


class Tables(Model):  # columns of a second table for each layer, gated; the embedding in every layer
    def __init__(self):
        super().__init__(BlockE)
        self.more = nn.Embedding(V, L * 8)
        self.gate, self.out = (
            nn.ModuleList(nn.Linear(a, b, bias=False) for _ in range(L)) for a, b in ((D, 8), (8, D))
        )

    def forward(self, ids):
        x = first = self.tok(ids)
        more = self.more(ids).unflatten(-1, (L, 8))
        for i, b in enumerate(self.blocks):
            x = b(x)
            x = x + self.out[i](nn.functional.gelu(self.gate[i](x)) * more[:, :, i]) + first
        return self.head(self.norm(x))


def make(*a, **k):
    torch.manual_seed(3)
    return Model(*a, **k)


def a():
    return make(BlockA)


def b():
    return make(BlockB, pos=True, norm=nn.LayerNorm)


def c():
    return make(BlockC, scale=D**0.5)


def d():
    return make(BlockD)


def e():
    return make(BlockE)


def f():
    return make(BlockF)


def g():
    return make(BlockG)


def h():
    return make(BlockH)


def i():
    return make(BlockI)


def j():
    return make(BlockJ)


def k():
    return make(BlockK)


def lists():
    torch.manual_seed(3)
    return Lists()


def shared():
    torch.manual_seed(3)
    return Shared()


def m():
    return make(BlockM)


def tables():
    torch.manual_seed(3)
    return Tables()


def in_bfloat16():
    return e().bfloat16()
