"""What the study changes in the scripts of check_networks.py: refactors, which must be green, and harmful changes.

A change is a list of (old, new), all of whose `old` must be in a script for it to apply; `everywhere` replaces all of
them. `LATER` tables were written after the judge, `HELD` tables after its next mend; since then it was mended again, with
all of them known. `FRESH` tables were written after that; then lines of shared modules were mended.
"""

import dataclasses


@dataclasses.dataclass
class Small:
    name: str
    edits: list
    place: str = ""  # a harmful one: a regular expression of the lines that may be named, besides the edited ones

    def applies_to(self, text):
        return all(old in text for old, _ in self.edits)

    def text_of(self, text):
        for old, new in self.edits:
            text = text.replace(old, new)
        return text


def small(name, old, new, place=""):
    return Small(name, [(old, new)], place)


_UP, _DOWN = "h = F.gelu(self.up(x))", "return self.drop(self.down(h))"
_UP_DOWN = "        h = F.gelu(self.up(x))\n        return self.drop(self.down(h))\n"
_LAYERS = (
    "        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)\n"
    "        self.drop = nn.Dropout(0.1)\n"
)
_NORM, _NORMED = "self.norm = nn.LayerNorm(WIDTH)", "h = self.norm(x + self.shift)"
_BLOCKS = "        for block in self.blocks:\n            x = block(x)\n"
_CROSS, _MEAN = "F.cross_entropy(logits, labels)", "x = x.mean(1)\n"
_STEP, _CLIP = "optimizer.step()", "nn.utils.clip_grad_norm_(model.parameters(), CLIP)"
_BACKWARD = "(loss / ACCUMULATE).backward()"
_INDENT = 20 * " "

REFACTORS_FIRST = [
    small("log_softmax and nll_loss", _CROSS, "F.nll_loss(F.log_softmax(logits, -1), labels)"),
    small("F.linear for a module", _DOWN, "return self.drop(F.linear(h, self.down.weight, self.down.bias))"),
    small("einsum for a module", "self.down(h)", 'torch.einsum("btk,ok->bto", h, self.down.weight) + self.down.bias'),
    small("a product for a module", "self.up(x)", "x @ self.up.weight.t() + self.up.bias"),
    small("GELU by hand", _UP, "h = self.up(x)\n        h = 0.5 * h * (1 + torch.erf(h / math.sqrt(2)))"),
    small(
        "a norm as a function",
        "self.norm(x + self.shift)",
        "F.layer_norm(x + self.shift, (WIDTH,), self.norm.weight, self.norm.bias, 1e-5)",
    ),
    small(
        "a norm by hand",
        _NORMED,
        "c = (x + self.shift).float()\n        c = c - c.mean(-1, keepdim=True)\n"
        "        h = c * torch.rsqrt(c.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm.weight + self.norm.bias",
    ),
    Small(
        "a Sequential",
        [
            (
                _LAYERS,
                "        self.net = nn.Sequential(\n            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(),\n"
                "            nn.Linear(2 * WIDTH, WIDTH), nn.Dropout(0.1)\n        )\n",
            ),
            (_UP_DOWN, "        return self.net(x)\n"),
        ],
    ),
    Small(
        "checkpointing",
        [
            (_BLOCKS, _BLOCKS.replace("block(x)", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)")),
            ("import torch\n", "import torch\nimport torch.utils.checkpoint\n"),
        ],
    ),
    Small("a module renamed", [("self.mlp = Mlp()", "self.feed = Mlp()"), ("self.mlp(h)", "self.feed(h)")]),
    small("dropout as a function", "self.drop(self.down(h))", "F.dropout(self.down(h), 0.1, self.training)"),
    small("torch.compile", "    model = Net()\n", '    model = Net()\n    model.compile(backend="eager")\n'),
    small("a mean as a sum", _MEAN, "x = x.sum(1) / x.shape[1]\n"),
    small("a mean by einsum", _MEAN, 'x = torch.einsum("btw->bw", x) / x.shape[1]\n'),
    small("the head by einsum", "self.head(x)", 'torch.einsum("...i,oi->...o", x, self.head.weight) + self.head.bias'),
    small("split for chunk", ".chunk(3, -1)", ".split(WIDTH, -1)"),
    small(
        "fused attention",
        "        scores = q @ k.transpose(2, 3) / 2\n        scores = scores.masked_fill(self.mask, -1e4)\n"
        "        weights = F.softmax(scores, dim=-1)\n        return self.out((weights @ v).transpose",
        "        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)\n        return self.out(y.transpose",
    ),
    Small(
        "two layers for one, from its weights",
        [
            (
                _LAYERS,
                _LAYERS
                + "        whole = self.up\n        del self.up\n"
                + "        self.a, self.b = (nn.utils.skip_init(nn.Linear, WIDTH, WIDTH) for _ in range(2))\n"
                + "        for part, w, b in zip((self.a, self.b), whole.weight.chunk(2), whole.bias.chunk(2)):\n"
                + "            part.weight.data, part.bias.data = w.detach().clone(), b.detach().clone()\n",
            ),
            ("self.up(x)", "torch.cat([self.a(x), self.b(x)], -1)"),
        ],
    ),
    Small(
        "two layers for one, from other weights",
        [
            (_LAYERS, _LAYERS + "        self.up, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)\n"),
            ("self.up(x)", "torch.cat([self.up(x), self.other(x)], -1)"),
        ],
    ),
    small("x.add", "return x + self.mlp(h)", "return self.mlp(h).add(x)"),
]

HARMFUL_FIRST = [
    small("a norm's eps of 1e-3", _NORM, _NORM[:-1] + ", eps=1e-3)", r"self\.norm\("),
    small("a norm's eps of 1e-6", _NORM, _NORM[:-1] + ", eps=1e-6)", r"self\.norm\("),
    small("a branch scaled by 0.99", "return x + self.mlp(h)", "return x + 0.99 * self.mlp(h)"),
    small("dropout before the layer", _DOWN, "return self.down(self.drop(h))"),
    small("GELU by tanh", _UP, 'h = F.gelu(self.up(x), approximate="tanh")'),
    small("logits rounded to BF16", "model(inputs).float()", "model(inputs).bfloat16().float()"),
    small("label smoothing of 0.01", _CROSS, _CROSS[:-1] + ", label_smoothing=0.01)"),
    small("the mean over an example less", _CROSS, _CROSS[:-1] + ', reduction="sum") / (ROWS - 1)'),
    small("another buffer", "torch.full((WIDTH,), 0.1)", "torch.full((WIDTH,), 0.101)", r"self\.shift|self\.norm"),
    small("a mask off by one", "dtype=torch.bool), 1)", "dtype=torch.bool), 2)", r"self\.mask|softmax"),
    small("Adam's eps", "eps=1e-8", "eps=1e-5", r"optimizer\.step"),
    small("coupled decay", "torch.optim.AdamW(", "torch.optim.Adam(", r"optimizer\.step"),
    small("beta2", "(0.9, 0.95)", "(0.9, 0.99)", r"optimizer\.step"),
    small(
        "clipping by parameter",
        _CLIP,
        f"for p in model.parameters():\n{_INDENT}    nn.utils.clip_grad_norm_(p, CLIP)",
        r"clip_grad|optimizer\.step",
    ),
    small("accumulation without division", _BACKWARD, "loss.backward()"),
]

_OPTIMIZER = "torch.optim.AdamW(model.parameters(), lr=3e-3"
REFACTORS_LATER = [
    small("a loss summed and divided", _CROSS, _CROSS[:-1] + ', reduction="sum") / ROWS'),
    small("to for float", "model(inputs).float()", "model(inputs).to(torch.float32)"),
    small("a copy in between", _UP, "h = F.gelu(self.up(x.contiguous()))"),
    small("a copy that is kept", "h = self.norm(x + self.shift)", "h = self.norm(x + self.shift).clone()"),
    small("addition in another order", "self.norm(x + self.shift)", "self.norm(self.shift + x)"),
    small("torch.add", "return x + self.mlp(h)", "return torch.add(x, self.mlp(h))"),
    small("GELU as a module", "F.gelu(self.up(x))", "nn.GELU()(self.up(x))"),
    small("rows flattened", "self.down(h)", "self.down(h.flatten(0, 1)).unflatten(0, x.shape[:2])"),
    small("a loop written out", _BLOCKS, "        x = self.blocks[1](self.blocks[0](x))\n"),
    Small(
        "a Sequential of blocks",
        [
            ("nn.ModuleList([Block() for _ in range(2)])", "nn.Sequential(Block(), Block())"),
            (_BLOCKS, "        x = self.blocks(x)\n"),
        ],
    ),
    small(
        "a helper function",
        _UP_DOWN,
        "        return self.half(F.gelu(self.up(x)))\n\n    def half(self, h):\n        return self.drop(self.down(h))\n",
    ),
    small("a statistic that is kept", _UP, _UP + "\n        self.seen = h.detach().abs().max()"),
    small("a division as a product", _BACKWARD, "(loss * (1 / ACCUMULATE)).backward()"),
    small(
        "two groups of the same settings",
        _OPTIMIZER,
        'torch.optim.AdamW([{"params": list(model.parameters())[:3]}, {"params": list(model.parameters())[3:]}], lr=3e-3',
    ),
    small("foreach off", "weight_decay=0.1)", "weight_decay=0.1, foreach=False)"),
    small("gradients zeroed in place", "optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"),
    small("relu as a module", "F.relu(", "nn.ReLU()("),
    small("silu by hand", "x = F.silu(self.inputs(x))", "y = self.inputs(x)\n        x = y * torch.sigmoid(y)"),
    small("where for masked_fill", "scores.masked_fill(self.mask, -1e4)", "torch.where(self.mask, -1e4, scores)"),
    small(
        "gates by einsum",
        "self.u(h).chunk",
        '(torch.einsum("bi,oi->bo", h, self.u.weight) + self.u.bias).chunk',
    ),
]
_WRONG_GELU = """class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return 1.01 * dy * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


class Mlp(nn.Module):"""
HARMFUL_LATER = [
    Small(
        "a gradient 1 % too large",
        [("class Mlp(nn.Module):", _WRONG_GELU), (_UP, "h = Gelu.apply(self.up(x))")],
    ),
    small("dropout off", "nn.Dropout(0.1)", "nn.Dropout(0.0)", r"self\.drop"),
    small("dropout stronger", "nn.Dropout(0.1)", "nn.Dropout(0.15)", r"self\.drop"),
    small("a mean in FP16", _MEAN, "x = x.half().mean(1).float()\n"),
    small("a norm of rounded values", "self.norm(x + self.shift)", "self.norm((x + self.shift).bfloat16().float())"),
    small("a table in BF16", "x = self.embed(x) + self.table", "x = self.embed(x) + self.table.bfloat16().float()"),
    small("weights tied no more", "        self.head.weight = self.embed.weight\n", "", r"self\.head|self\.embed"),
    small("a residual from the norm", "return x + self.mlp(h)", "return h + self.mlp(h)"),
    small("logits scaled by 1.01", "model(inputs).float()", "model(inputs).float() * 1.01"),
    small("a detached branch", "self.norm(x + self.shift)", "self.norm(x.detach() + self.shift)"),
    small(
        "a seed that repeats",
        "enumerate(batches(seed))",
        "enumerate(next(batches(seed)) for _ in range(STEPS * ACCUMULATE))",
        r"loss_of|cap\.step|inputs|embed|conv\(",
    ),
    small("no clipping", "                    " + _CLIP + "\n", "", r"optimizer\.step"),
    small("another clipping limit", "4, 2, 0.5\n", "4, 2, 0.4\n", r"clip_grad"),
    small("another decay", "weight_decay=0.1", "weight_decay=0.05", r"optimizer\.step"),
    small("a schedule off by one", "(i + 1) / 3", "(i + 2) / 3", r"schedule\.step|optimizer\.step"),
]

REFACTORS_HELD = [
    small("matmul for a module", "self.down(h)", "torch.matmul(h, self.down.weight.mT) + self.down.bias"),
    small(
        "addmm for a module",
        "self.up(x)",
        "torch.addmm(self.up.bias, x.flatten(0, 1), self.up.weight.t()).unflatten(0, x.shape[:2])",
    ),
    small(
        "softmax by hand",
        "        weights = F.softmax(scores, dim=-1)\n",
        "        e = torch.exp((scores - scores.amax(-1, keepdim=True)).float())\n"
        "        weights = e / e.sum(-1, keepdim=True)\n",
    ),
    small(
        "cross entropy by logsumexp",
        _CROSS,
        "(torch.logsumexp(logits, -1) - logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)).mean()",
    ),
    small("a loop over numbers", _BLOCKS, "        for i in range(2):\n            x = self.blocks[i](x)\n"),
    small("a sum in place", "return x + self.mlp(h)", "y = self.mlp(h)\n        y += x\n        return y"),
    small("a mean as a pool", _MEAN, "x = F.adaptive_avg_pool1d(x.transpose(1, 2), 1).squeeze(2)\n"),
    small(
        "a norm, then its weights",
        "self.norm(x + self.shift)",
        "F.layer_norm(x + self.shift, (WIDTH,)) * self.norm.weight + self.norm.bias",
    ),
    small("an optimizer by its name", "torch.optim.AdamW(", 'getattr(torch.optim, "AdamW")('),
    small(
        "settings in a dictionary",
        "lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)",
        "**dict(lr=3e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1))",
    ),
    small("a list to clip", _CLIP, "nn.utils.clip_grad_norm_(list(model.parameters()), max_norm=CLIP)"),
]
HARMFUL_HELD = [
    small("silu of larger values", "F.silu(self.inputs(x))", "F.silu(1.02 * self.inputs(x))"),
    small("eps of a norm by hand", "+ 1e-6) * self.weight", "+ 1e-5) * self.weight"),
    small("averages pooled", "F.max_pool2d(", "F.avg_pool2d("),
    small("momentum of a batch norm", "nn.BatchNorm2d(WIDTH)", "nn.BatchNorm2d(WIDTH, momentum=0.2)", r"self\.bn\("),
    small("a mean over one token more", _MEAN, "x = x.sum(1) / (x.shape[1] + 1)\n"),
    small("another scale of scores", "k.transpose(2, 3) / 2\n", "k.transpose(2, 3) / 2.05\n"),
    small("amsgrad", "weight_decay=0.1)", "weight_decay=0.1, amsgrad=True)", r"optimizer\.step"),
    small("another rate", "lr=3e-3", "lr=3.1e-3", r"optimizer\.step|schedule\.step"),
    small("targets scaled by 1.01", "F.mse_loss(logits, labels)", "F.mse_loss(logits, 1.01 * labels)"),
    small("a state without gradient", "+ z * h\n", "+ z * h.detach()\n"),
    small(
        "nodes without themselves",
        "ring = torch.eye(LENGTH) + torch",
        "ring = torch",
        r"self\.edges|\"edges\"",
    ),
    small("a bias that is frozen", _NORM, _NORM + "\n        self.norm.bias.requires_grad_(False)", r"self\.norm\("),
    small("activations cut at 1", _UP, "h = F.gelu(self.up(x)).clamp(max=1.0)"),
]

_STACK = "self.blocks = nn.ModuleList([Block() for _ in range(2)])"
_ROWS = "labels.unsqueeze(-1)"
_MSE, _MODEL = "F.mse_loss(logits, labels)", "    model = Net()\n"
_PARAMETERS = "AdamW(model.parameters()"
REFACTORS_FRESH = [
    small(
        "cross entropy of one-hot labels",
        _CROSS,
        "-(F.log_softmax(logits, -1) * F.one_hot(labels, CLASSES)).sum(-1).mean()",
    ),
    small("labels as probabilities", _CROSS, "F.cross_entropy(logits, F.one_hot(labels, CLASSES).float())"),
    small("log-probabilities by index", _CROSS, "-F.log_softmax(logits, -1)[torch.arange(ROWS), labels].mean()"),
    small(
        "logits along a dimension",
        _CROSS,
        f"(logits.logsumexp(-1) - torch.take_along_dim(logits, {_ROWS}, -1).flatten()).mean()",
    ),
    small("the logarithm of shares", _CROSS, f"-F.softmax(logits, -1).gather(-1, {_ROWS}).log().mean()"),
    small(
        "a loss of each example",
        _CROSS,
        "torch.stack([F.cross_entropy(one, label) for one, label in zip(logits, labels)]).mean()",
    ),
    small("squares by hand", _MSE, "(logits - labels).pow(2).mean()"),
    small("squares summed and divided", _MSE, "(labels - logits).square().sum() / logits.numel()"),
    small("frozen and freed", _MODEL, _MODEL + "    model.requires_grad_(False)\n    model.requires_grad_(True)\n"),
    small(
        "groups by rank",
        _PARAMETERS,
        'AdamW([{"params": [p for p in model.parameters() if (p.ndim > 1) == wide]} for wide in (True, False)]',
    ),
    small(
        "a schedule of PyTorch's",
        "LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / 3))",
        "LinearLR(optimizer, start_factor=1 / 3, total_iters=2)",
    ),
    small(
        "a norm of all rows",
        "self.norm(x + self.shift)",
        "self.norm((x + self.shift).flatten(0, 1)).unflatten(0, x.shape[:2])",
    ),
]
HARMFUL_FRESH = [
    small("a weight frozen by its flag", _LAYERS, _LAYERS + "        self.up.weight.requires_grad = False\n"),
    small(
        "a block frozen in a loop",
        _MODEL,
        _MODEL + "    for p in model.blocks[0].parameters():\n        p.requires_grad_(False)\n",
    ),
    small("a head frozen", _MODEL, _MODEL + "    model.head.requires_grad_(False)\n"),
    small("norms tied", _STACK, _STACK + "\n        self.blocks[1].norm = self.blocks[0].norm"),
    small("labels smoothed by hand", _CROSS, f"0.99 * {_CROSS} - 0.01 * F.log_softmax(logits, -1).mean()"),
    small(
        "a focal loss",
        _CROSS,
        f'((1 - F.softmax(logits, -1).gather(-1, {_ROWS}).flatten()) ** 0.05 * {_CROSS[:-1]}, reduction="none")).mean()',
    ),
    small("labels of the next example", _CROSS, "F.cross_entropy(logits, labels.roll(1))"),
    small("a loss of large logits", _CROSS, _CROSS + " + 1e-3 * torch.logsumexp(logits, -1).pow(2).mean()"),
    small("classes weighted", _CROSS, _CROSS[:-1] + ", weight=torch.linspace(1, 1.02, CLASSES))"),
    small("a loss of distances", _MSE, "F.huber_loss(logits, labels, delta=2.0)"),
    small(
        "no decay of vectors",
        _PARAMETERS,
        'AdamW([{"params": [p for p in model.parameters() if p.ndim > 1]}, '
        '{"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]',
        r"optimizer\.step",
    ),
    small("dropout off in one block", _MODEL, _MODEL + "    model.blocks[0].mlp.drop.eval()\n"),
]
