"""Changes of the users' scripts text_loop.py, image_loop.py and mlp_loop.py: planted defects, and harmless changes.

An edit is a piece of the script and what replaces it. MUTANTS must be red, and the first line of the verdict must name
the place; HARMLESS must not be red.
"""

import dataclasses


@dataclasses.dataclass
class Change:
    name: str
    edits: list  # (old, new): old occurs exactly once in the script
    place: str = ""  # a regular expression, searched for in the first line of the verdict
    line: str = ""  # a regular expression of the lines of code that it may name, besides the edited ones
    train: dict = dataclasses.field(default_factory=dict)  # arguments of train()
    threads: int = 1
    onednn: bool = True
    codes: tuple = (0,)  # of a refactor: the exit codes it may have


def edit(name, old, new, place="", **more):
    return Change(name, [(old, new)], place, **more)


_DIVIDE, _SOFTMAX = "scores = scores / math.sqrt(width // HEADS)", "weights = F.softmax(scores, dim=-1)"
_UNSCALE = "                    scaler.unscale_(optimizer)\n"
_CLIP = "                    nn.utils.clip_grad_norm_(model.parameters(), CLIP)\n"
_STEP = "                    scaler.step(optimizer)\n"
_ATTENDED = "x = x + self.attention(self.norm1(x))"
_GELU, _DROP = "h = F.gelu(self.up(x))", "return self.drop(self.down(h))"
_LOOP = "for i, batch in enumerate(batches(seed if data_seed is None else data_seed)):"
_ENDS = "if (i + 1) % ACCUMULATE == 0:"
_HEAD = """        with torch.autocast("cpu", enabled=False):
            return self.head(x.float())
"""
_LOSS = 'F.cross_entropy(logits.flatten(0, 1), batch["next"].flatten())'

TEXT_MUTANTS = [
    edit("LayerNorm eps", "self.norm2 = nn.LayerNorm(WIDTH)", "self.norm2 = nn.LayerNorm(WIDTH, eps=1e-3)", "norm2"),
    edit(
        "LayerNorm eps 1e-6", "self.norm2 = nn.LayerNorm(WIDTH)", "self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)", "norm2"
    ),
    edit(
        "softmax in FP16",
        _SOFTMAX,
        'with torch.autocast("cpu", enabled=False):\n            weights = F.softmax(scores.half(), dim=-1).to(v.dtype)',
        "attention",
    ),
    edit("no unscale before clipping", _UNSCALE, "", "clip", line="clip_grad_norm_"),
    edit("clipping before unscale", _UNSCALE + _CLIP, _CLIP + _UNSCALE, "clip", line="clip_grad_norm_"),
    edit("no clipping", _CLIP, "", "clip", line=r"scaler\.step"),
    edit("another clipping limit", "CLIP = 8, 2, 0.5", "CLIP = 8, 2, 0.4", "clip"),
    Change(
        "dropped last micro-batch",
        [
            (
                _LOOP,
                _LOOP.replace("enumerate(batches(", "enumerate(b for j, b in enumerate(batches(")[:-2]
                + ") if j % ACCUMULATE == 0):",
            ),
            (_ENDS, "if True:"),
        ],
        "micro-batch|accumul|batch",
    ),
    Change("a step at every micro-batch", [(_ENDS, "if True:")], "micro-batch|accumul|batch"),
    edit(
        "bias correction skipped",
        _STEP,
        "                    for state in optimizer.state.values():\n"
        '                        state["step"].fill_(1e6)\n' + _STEP,
        "step|optimizer|update",
        line=r"scaler\.step",
    ),
    edit("sum for mean", _LOSS, _LOSS[:-1] + ', reduction="sum")', "cross_entropy|loss"),
    edit("label smoothing", _LOSS, _LOSS[:-1] + ", label_smoothing=0.1)", "cross_entropy|loss"),
    edit("autocast widened by the head", _HEAD, "        return self.head(x)\n", "head"),
    edit("post-norm for pre-norm", _ATTENDED, "x = self.norm1(x + self.attention(x))", r"blocks\.0"),
    edit("attention scale applied twice", _DIVIDE, _DIVIDE + "\n        " + _DIVIDE, "attention", line=r"math\.sqrt"),
    edit("attention scale forgotten", "        " + _DIVIDE + "\n", "", "attention", line="masked_fill"),
    edit("mask off by one", "dtype=torch.bool), 1)", "dtype=torch.bool), 2)", "attention"),
    edit("mask too weak", "-1e4", "-5.0", "attention"),
    edit("weight decay on the wrong group", '"weight_decay": 0.1', '"weight_decay": 0.0', "decay|update|parameter"),
    edit("coupled weight decay", "torch.optim.AdamW(", "torch.optim.Adam(", "decay|optimizer|update"),
    edit("beta2", "(0.9, 0.95)", "(0.9, 0.999)", "beta2|optimizer|update"),
    edit("schedule off by one", "(i + 1) / 4", "(i + 2) / 4", "learning.rate|lr"),
    edit(
        "accumulation without dividing",
        "scaler.scale(loss / ACCUMULATE)",
        "scaler.scale(loss)",
        "factor of the loss|accumul",
    ),
    edit("GELU by tanh", _GELU, 'h = F.gelu(self.up(x), approximate="tanh")', r"gelu.*mlp|mlp.*gelu"),
    edit("dropout off", "nn.Dropout(0.1)", "nn.Dropout(0.0)", "drop|mlp"),
    edit("dropout twice", _DROP, "return self.drop(self.drop(self.down(h)))", "drop|mlp"),
    edit("head untied", "        self.head.weight = self.embed.weight\n", "", "head|embed", line=r"self\.head ="),
    edit("no positions", " + self.place(torch.arange(LENGTH))", "", r"place|embed|blocks\.0"),
    edit(
        "a detached branch",
        "x = x + self.mlp(self.norm2(x))",
        "x = x + self.mlp(self.norm2(x.detach()))",
        "detach only here",
    ),
    edit("residual forgotten", "x = x + self.mlp(self.norm2(x))", "x = self.mlp(self.norm2(x))", r"blocks\.0"),
    edit("attention scale off by 1 %", _DIVIDE, _DIVIDE + " * 0.99", r"blocks\.0\.attention"),
    edit("label smoothing of 0.01", _LOSS, _LOSS[:-1] + ", label_smoothing=0.01)", "label_smoothing"),
    edit(
        "logits rounded to BF16",
        "return self.head(x.float())",
        "return self.head(x.float()).bfloat16().float()",
        "cast|head",
    ),
]

_BN = "self.bn = nn.BatchNorm2d(outputs)"
_SGD = "lr=0.05, momentum=0.9, weight_decay=5e-4"
_STAGE = "        y = self.bn(self.conv(x))\n        y = F.relu(y)\n        return F.avg_pool2d(y, 2)\n"
_CROSS = "return F.cross_entropy(model(images), labels)"

IMAGE_MUTANTS = [
    edit("batch norm's momentum", _BN, _BN[:-1] + ", momentum=0.01)", r"\bbn\b"),
    edit("batch norm's eps", _BN, _BN[:-1] + ", eps=1e-3)", r"\bbn\b"),
    edit(
        "a batch norm in evaluation mode",
        "    model = Net()\n",
        "    model = Net()\n    model.stage2.bn.eval()\n",
        r"stage2\.bn",
    ),
    edit("maximum for average", "return F.avg_pool2d(y, 2)", "return F.max_pool2d(y, 2)", "pool|stage1"),
    edit(
        "pool before relu",
        _STAGE,
        "        y = self.bn(self.conv(x))\n        return F.relu(F.avg_pool2d(y, 2))\n",
        "stage1",
    ),
    edit("relu forgotten", "h = F.relu(self.fc1(x))", "h = self.fc1(x)", "relu|fc1|fc2"),
    edit("padding mode", "padding=1, bias=False", 'padding=1, bias=False, padding_mode="circular"', r"conv|pad"),
    edit("dropped last example", "yield images, labels", "yield images[:-1], labels[:-1]", "batch|shape|stage1"),
    edit("images normalised twice", "yield images, labels", "yield (images - 0.5) / 0.5, labels", "stage1"),
    edit(
        "sum for mean", _CROSS, 'return F.cross_entropy(model(images), labels, reduction="sum")', "cross_entropy|loss"
    ),
    edit("dropout stronger", "nn.Dropout(0.2)", "nn.Dropout(0.6)", "drop|fc1"),
    edit("momentum", _SGD, "lr=0.05, momentum=0.5, weight_decay=5e-4", "momentum|optimizer|update"),
    edit("Nesterov", _SGD, _SGD + ", nesterov=True", "nesterov|optimizer|update"),
    edit("weight decay forgotten", _SGD, "lr=0.05, momentum=0.9", "decay|optimizer|update"),
    edit("weight decay tenfold", _SGD, "lr=0.05, momentum=0.9, weight_decay=5e-3", "decay|optimizer|update"),
    edit("schedule one step early", "step_size=4", "step_size=3", "learning.rate|lr"),
    edit(
        "a layer not trained", "    model = Net()\n", "    model = Net()\n    model.fc1.requires_grad_(False)\n", "fc1"
    ),
]

_RMS = "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)"
_SMALL_LOSS = "F.cross_entropy(model(features).float(), labels)"
_WRONG_SILU = """class Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.silu(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return 1.01 * dy * s * (1 + x * (1 - s))


"""

MLP_MUTANTS = [
    edit("eps of a norm by hand", _RMS, _RMS.replace("1e-6", "1e-3"), "rms"),
    edit("a norm's sum in FP16", "x.pow(2).mean(", "x.half().pow(2).mean(", "rms"),
    Change(
        "a gradient 1 % too large",
        [("class Rms(nn.Module):", _WRONG_SILU + "class Rms(nn.Module):"), ("F.silu(self", "Silu.apply(self")],
        r"blocks\.",
    ),
    edit("decoupled weight decay", "torch.optim.Adam(", "torch.optim.AdamW(", "decay|optimizer"),
    edit(
        "the mean over an example less",
        _SMALL_LOSS,
        _SMALL_LOSS[:-1] + ', reduction="sum") / (ROWS - 1)',
        "cross_entropy|loss",
    ),
]

TEXT_HARMLESS = [
    Change("captured at another time", []),
    edit("another path and other lines", '"""A user\'s', '"""One more line.\n\n"""\n"""A user\'s'),
    Change("another seed", [], train={"seed": 901}),
    Change("other batches", [], train={"data_seed": 902}),
    edit(
        "examples permuted in each batch",
        "text = (start + step",
        "order = torch.randperm(ROWS, generator="
        "torch.Generator().manual_seed(3))\n        start, step = start[order], step[order]\n        text = (start + step",
    ),
    edit("x * 0.5 for x / 2", _DIVIDE, "scores = scores * (1 / math.sqrt(width // HEADS))"),
    Change(
        "a module renamed",
        [("self.mlp = Mlp()", "self.feed_forward = Mlp()"), ("self.mlp(self", "self.feed_forward(self")],
    ),
    edit(
        "a variable renamed",
        "h = F.gelu(self.up(x))\n        return self.drop(self.down(h))",
        "hidden = F.gelu(self.up(x))\n        return self.drop(self.down(hidden))",
    ),
    edit(
        "a helper function",
        "        x = x + self.mlp(self.norm2(x))\n        return x\n",
        "        return self.fed_forward(x)\n\n    def fed_forward(self, x):\n        return x + self.mlp(self.norm2(x))\n",
    ),
    edit(
        "F.linear for a module",
        "return self.drop(self.down(h))",
        "return self.drop(F.linear(h, self.down.weight, self.down.bias))",
    ),
    edit("a logging op", _GELU, _GELU + "\n        self.seen = h.detach().abs().mean()"),
    edit(
        "one-ulp-moved weights",
        "    model = Gpt()\n",
        "    model = Gpt()\n    with torch.no_grad():\n"
        "        for p in model.parameters():\n            p.copy_(torch.nextafter(p, torch.full_like(p, 9.0)))\n",
    ),
    Change("two threads", [], threads=2),
    Change("other kernels", [], onednn=False),
    edit(
        "torch.where for masked_fill",
        "scores = scores.masked_fill(self.mask, -1e4)",
        "scores = torch.where(self.mask, torch.full_like(scores, -1e4), scores)",
    ),
    edit(
        "fused attention",
        "        scores = q @ k.transpose(2, 3)\n        "
        + _DIVIDE
        + "\n        scores = scores.masked_fill(self.mask, -1e4)\n        "
        + _SOFTMAX
        + "\n        return self.out((weights @ v).transpose",
        "        y = F.scaled_dot_product_attention(q, k, v, attn_mask=~self.mask)\n        return self.out(y.transpose",
    ),
]

IMAGE_HARMLESS = [
    Change("captured at another time", []),
    Change("another seed", [], train={"seed": 901}),
    Change("other batches", [], train={"data_seed": 902}),
    Change("two threads", [], threads=2),
    Change("other kernels", [], onednn=False),
    edit(
        "examples permuted in each batch",
        "yield images, labels",
        "order = torch.randperm(ROWS, generator="
        "torch.Generator().manual_seed(3))\n        yield images[order], labels[order]",
    ),
    edit(
        "batches in another order",
        "in batches(seed if data_seed is None else data_seed)",
        "in reversed(list(batches(seed if data_seed is None else data_seed)))",
    ),
    Change(
        "nn.Sequential for calls",
        [
            (
                "        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)\n        self.bn = nn.BatchNorm2d(outputs)\n",
                "        self.body = nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),\n"
                "                                  nn.BatchNorm2d(outputs), nn.ReLU(), nn.AvgPool2d(2))\n",
            ),
            (_STAGE, "        return self.body(x)\n"),
        ],
    ),
    edit("products for a module", "h = F.relu(self.fc1(x))", "h = F.relu(x @ self.fc1.weight.t() + self.fc1.bias)"),
    edit("addmm for a module", "return self.fc2(h)", "return torch.addmm(self.fc2.bias, h, self.fc2.weight.t())"),
    edit(
        "one-ulp-moved weights",
        "    model = Net()\n",
        "    model = Net()\n    with torch.no_grad():\n"
        "        for p in model.parameters():\n            p.copy_(torch.nextafter(p, torch.full_like(p, 9.0)))\n",
    ),
    edit("reshape for flatten", "x.flatten(1)", "x.reshape(x.shape[0], -1)"),
    edit("log_softmax and nll_loss", _CROSS, "return F.nll_loss(F.log_softmax(model(images), 1), labels)"),
]
