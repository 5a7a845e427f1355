"""Refactors of the users' scripts: other code for the same mathematics. `lockstep check` must not call them a regression.

The first tables were written before the judge knew of refactors, those called LATER after it was done.
"""

from mutants import Change, edit

_SCORES = (
    "        scores = q @ k.transpose(2, 3)\n"
    "        scores = scores / math.sqrt(width // HEADS)\n"
    "        scores = scores.masked_fill(self.mask, -1e4)\n"
    "        weights = F.softmax(scores, dim=-1)\n"
)
_QKV = "q, k, v = (t.view(rows, length, HEADS, width // HEADS).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))"
_QKV_MODULE = "self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)"
_HAND_NORM = (
    "class Norm(nn.Module):\n"
    "    def __init__(self, width):\n"
    "        super().__init__()\n"
    "        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))\n\n"
    "    def forward(self, x):\n"
    "        centred = x - x.mean(-1, keepdim=True)\n"
    "        return centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias\n\n\n"
)
_BLOCKS = "        for block in self.blocks:\n            x = block(x)\n"
_EXPERTS = "logits = torch.stack([x @ self.experts[e] for e in range(EXPERTS)], 1)"

TEXT = [
    edit(
        "torch.where with a number for masked_fill",
        "scores = scores.masked_fill(self.mask, -1e4)",
        "scores = torch.where(self.mask, -1e4, scores)",
    ),
    edit("a mask that is added", "scores = scores.masked_fill(self.mask, -1e4)", "scores = scores + self.mask * -1e4"),
    edit(
        "fused attention, causal",
        _SCORES + "        return self.out((weights @ v).transpose",
        "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n        return self.out(y.transpose",
    ),
    edit(
        "log_softmax and nll_loss",
        'F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())',
        'F.nll_loss(F.log_softmax(logits.flatten(0, 1), -1), batch["next"].flatten())',
    ),
    edit(
        "log-probabilities by logsumexp",
        'F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())',
        '(torch.logsumexp(logits, -1) - logits.gather(-1, batch["next"].unsqueeze(-1)).squeeze(-1)).mean()',
    ),
    edit("einsum for matmul", "q @ k.transpose(2, 3)", 'torch.einsum("bhqd,bhkd->bhqk", q, k)'),
    Change(
        "norms by hand",
        [
            ("class Block(nn.Module):", _HAND_NORM + "class Block(nn.Module):"),
            ("self.norm1 = nn.LayerNorm(WIDTH)", "self.norm1 = Norm(WIDTH)"),
            ("self.norm2 = nn.LayerNorm(WIDTH)", "self.norm2 = Norm(WIDTH)"),
        ],
    ),
    Change(
        "one projection as three, from its weights",
        [
            (
                _QKV_MODULE,
                _QKV_MODULE
                + "\n        whole = self.qkv\n        del self.qkv\n"
                + "        self.q, self.k, self.v = (nn.utils.skip_init(nn.Linear, WIDTH, WIDTH) for _ in range(3))\n"
                + "        for part, w, b in zip((self.q, self.k, self.v), whole.weight.chunk(3), whole.bias.chunk(3)):\n"
                + "            part.weight.data, part.bias.data = w.detach().clone(), b.detach().clone()",
            ),
            ("for t in self.qkv(x).chunk(3, -1))", "for t in (self.q(x), self.k(x), self.v(x)))"),
        ],
    ),
    Change(
        "one projection as three, from other weights",
        [
            (
                _QKV_MODULE,
                "self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))",
            ),
            ("for t in self.qkv(x).chunk(3, -1))", "for t in (self.q(x), self.k(x), self.v(x)))"),
        ],
        codes=(3,),
    ),
    Change(
        "checkpointing",
        [
            (_BLOCKS, _BLOCKS.replace("block(x)", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)")),
            ("import torch\n", "import torch\nimport torch.utils.checkpoint\n"),
        ],
    ),
]

IMAGE = [
    edit("flatten as a view", "x.flatten(1)", "x.view(ROWS, 12 * 9)"),
    edit(
        "channels_last",
        "    model = Net()\n",
        "    model = Net().to(memory_format=torch.channels_last)\n",
    ),
    edit(
        "a convolution as unfold and matmul",
        "y = self.bn(self.conv(x))",
        "w = self.conv.weight\n"
        "        y = (w.flatten(1) @ F.unfold(x, 3, padding=1)).view(x.shape[0], -1, *x.shape[2:])\n"
        "        y = self.bn(y)",
    ),
    edit(
        "a pool as a mean",
        "return F.avg_pool2d(y, 2)",
        "return y.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).mean((3, 5))",
    ),
]

MLP = [
    Change(
        "norms by hand",
        [
            ("class Block(nn.Module):", _HAND_NORM + "class Block(nn.Module):"),
            ("self.norm, self.rms = nn.LayerNorm(WIDTH)", "self.norm, self.rms = Norm(WIDTH)"),
        ],
    ),
    edit("experts in a batch", _EXPERTS, "logits = torch.matmul(x, self.experts).transpose(0, 1)"),
    edit("silu by hand", "h = F.silu(self.rms(h))", "h = self.rms(h)\n        h = h * torch.sigmoid(h)"),
    Change(
        "modules moved and renamed",
        [
            (
                "self.norm, self.rms = nn.LayerNorm(WIDTH), Rms(2 * WIDTH)",
                "self.norm, self.middle = nn.LayerNorm(WIDTH), nn.Module()\n        self.middle.scale = Rms(2 * WIDTH)",
            ),
            ("self.rms(h)", "self.middle.scale(h)"),
        ],
    ),
]

_HEADS = (
    "        heads = []\n"
    "        for h in range(HEADS):\n"
    "            scores = q[:, h] @ k[:, h].transpose(1, 2)\n"
    "            scores = scores / math.sqrt(width // HEADS)\n"
    "            scores = scores.masked_fill(self.mask, -1e4)\n"
    "            heads.append(F.softmax(scores, dim=-1) @ v[:, h])\n"
    "        return self.out(torch.cat(heads, -1))\n"
)

TEXT_LATER = [
    edit("split for chunk", "self.qkv(x).chunk(3, -1)", "self.qkv(x).split(WIDTH, -1)"),
    edit(
        "softmax by hand",
        "weights = F.softmax(scores, dim=-1)",
        "weights = torch.exp(scores - scores.amax(-1, keepdim=True))\n"
        "        weights = weights / weights.sum(-1, keepdim=True)",
    ),
    edit(
        "heads in a loop",
        _SCORES + "        return self.out((weights @ v).transpose(1, 2).reshape(rows, length, width))\n",
        _HEADS,
    ),
    Change(
        "a Sequential for modules",
        [
            (
                "        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)\n"
                "        self.drop = nn.Dropout(0.1)\n",
                "        self.net = nn.Sequential(\n"
                "            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)\n"
                "        )\n",
            ),
            (
                "        h = F.gelu(self.up(x))\n        return self.drop(self.down(h))\n",
                "        return self.net(x)\n",
            ),
        ],
    ),
    edit(
        "GELU by hand",
        "h = F.gelu(self.up(x))",
        "h = self.up(x)\n        h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))",
    ),
    edit("positions without a look-up", "self.place(torch.arange(LENGTH))", "self.place.weight"),
]

IMAGE_LATER = [
    edit(
        "batch norm as a function",
        "y = self.bn(self.conv(x))",
        "bn = self.bn\n"
        "        y = F.batch_norm(self.conv(x), bn.running_mean, bn.running_var, bn.weight, bn.bias, True, 0.1, 1e-5)",
    ),
    edit("clamp for relu", "y = F.relu(y)", "y = y.clamp(min=0)"),
    edit(
        "einsum for a module",
        "return self.fc2(h)",
        'return torch.einsum("bi,oi->bo", h, self.fc2.weight) + self.fc2.bias',
    ),
]

MLP_LATER = [
    edit(
        "a norm of PyTorch's",
        "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight",
        "return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-6)",
    ),
    edit("experts by einsum", _EXPERTS, 'logits = torch.einsum("bw,ewc->bec", x, self.experts)'),
    edit("torch.compile", "    model = Net()\n", '    model = Net()\n    model.compile(backend="eager")\n'),
    Change(
        "checkpointing",
        [
            (_BLOCKS, _BLOCKS.replace("block(x)", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)")),
            ("import torch\n", "import torch\nimport torch.utils.checkpoint\n"),
        ],
    ),
    edit(
        "the sum of shares as a product",
        "return (shares.unsqueeze(-1) * logits).sum(1)",
        "return (shares.unsqueeze(1) @ logits).squeeze(1)",
    ),
    edit("a sum in another order", "return x + self.down(h)", "return self.down(h) + x"),
]
