"""The lines of a user's script in a capture (docs/capture-file.md, /lines): where the loop sets what no op has."""

import json
import linecache
import types

import h5py
import pytest

HEAD = """
import argparse
import dataclasses

import torch
import torch.nn.functional as F
from lockstep_capture import Capture
from torch import nn

LIMIT, ACCUMULATE = 0.5, 2
EPS = 1e-7


@dataclasses.dataclass
class Config:
    decay: float = 0.03


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--first-beta", type=float, default=0.8)
    return parser.parse_args([])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        self.register_buffer("shift", torch.full((4,), 0.1))
        self.scale = nn.Parameter(torch.ones(4))
        self.norm.bias.requires_grad_(True)

    def forward(self, x):
        return self.norm(self.fc(x) * self.scale + self.shift)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4, 4)
        self.blocks = nn.Sequential(Block(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 4, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.3)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)))


def batches():
    g = torch.Generator().manual_seed(3)
    while True:
        words = torch.randint(0, 4, (5,), generator=g)
        yield words, words


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


"""

PLAIN = """
def train(path):
    torch.manual_seed(7)
    model, config, words = Net(), Config(), arguments()
    model.blocks.requires_grad_(True)
    model.embed.requires_grad_(True)
    for p in model.blocks[1].parameters():
        p.requires_grad = True
    model.blocks[0].norm.eval()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=1e-3,
        betas=(words.first_beta, 0.99),
        eps=EPS,
        weight_decay=config.decay,
    )
    with Capture(path, model, optimizer, loss_of, steps=2, quiet=True) as cap:
        for i, batch in enumerate(batches()):
            if i == 2 * ACCUMULATE:
                break
            with cap.step(batch):
                loss = loss_of(model, batch)
                (loss / ACCUMULATE).backward()
                if (i + 1) % ACCUMULATE == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
                    optimizer.step()
                    optimizer.zero_grad()
"""

TRAINER = """
class Trainer:
    def __init__(self, path):
        self.net = Net()
        self.net.embed.requires_grad_(True)
        self.opt = self.make_optimizer(2e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.cap = Capture(path, self.net, self.opt, loss_of, scaler=self.scaler, steps=2, quiet=True)

    def make_optimizer(self, rate):
        groups = [
            {"params": self.net.blocks.parameters(), "weight_decay": 0.1},
            {"params": self.net.embed.parameters(), "weight_decay": 0.0},
        ]
        return torch.optim.SGD(groups, lr=rate, momentum=0.9)

    def one(self, batch):
        with self.cap.step(batch):
            self.scaler.scale(loss_of(self.net, batch)).backward()
            self.scaler.step(self.opt)
            self.scaler.update()
            self.opt.zero_grad()
        for group in self.opt.param_groups:
            group["lr"] = 1e-3

    def run(self):
        for _, batch in zip(range(2), batches()):
            self.one(batch)


def train(path):
    Trainer(path).run()
"""

SHARED = """
def train(path):
    model = Net()
    model.blocks[1] = model.blocks[0].fc
    model.head.requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Capture(path, model, optimizer, loss_of, steps=1, quiet=True) as cap:
        batch = next(batches())
        with cap.step(batch):
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
"""

SEQUENTIAL = """
def build(width):
    return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def train(path):
    model = build(4)
    made = getattr(torch.optim, "Adam")(model.parameters(), lr=1e-2)
    rate = torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5)
    with Capture(path, model, made, lambda m, x: m(x).pow(2).mean(), steps=2, quiet=True) as cap:
        for _ in range(2):
            batch = torch.ones(3, 4)
            with cap.step(batch):
                with torch.autocast("cpu", torch.bfloat16, enabled=False):
                    model(batch).pow(2).mean().backward()
                made.step()
                made.zero_grad()
            rate.step()
"""


@pytest.fixture
def captured(tmp_path):
    def capture(body):
        """The rows of a capture of the script, and the script's lines from 1 on."""
        file, text = tmp_path / "script.py", HEAD + body
        file.write_text(text)
        linecache.checkcache()
        module = types.ModuleType("script")
        exec(compile(text, str(file), "exec"), module.__dict__)
        module.train(str(tmp_path / "x.lscap.h5"))
        with h5py.File(tmp_path / "x.lscap.h5") as file:
            assert list(file.attrs["notes"]) == []
            rows = json.loads(bytes(file["lines"][()]))
        return rows, ["", *text.splitlines()]

    return capture


def code_of(rows, lines, thing):
    """What stands in the lines of a thing, in their order."""
    places = [row["at"].split(":") for row in rows if row["of"] == thing and "at" in row]
    assert all(file == "script.py" for file, _ in places)
    return [lines[int(number)].strip() for _, number in places]


def value_of(rows, thing):
    return next(row["value"] for row in rows if row["of"] == thing and "value" in row)


PLAIN_LINES = {
    "optimizer": [
        "optimizer = torch.optim.AdamW(",
        'parser.add_argument("--first-beta", type=float, default=0.8)',
        "EPS = 1e-7",
        "decay: float = 0.03",
    ],
    "optimizer lr": ["lr=1e-3,"],
    "optimizer eps": ["eps=EPS,", "EPS = 1e-7"],
    "optimizer beta1": [
        "betas=(words.first_beta, 0.99),",
        'parser.add_argument("--first-beta", type=float, default=0.8)',
    ],
    "optimizer beta2": ["betas=(words.first_beta, 0.99),"],
    "optimizer weight_decay": ["weight_decay=config.decay,", "decay: float = 0.03"],
    "optimizer step": ["optimizer.step()"],
    "accumulate": ["if (i + 1) % ACCUMULATE == 0:", "LIMIT, ACCUMULATE = 0.5, 2"],
    "factor of the loss": [
        "(loss / ACCUMULATE).backward()",
        "loss = loss_of(model, batch)",
        "LIMIT, ACCUMULATE = 0.5, 2",
    ],
    "clipping": ["nn.utils.clip_grad_norm_(model.parameters(), LIMIT)", "LIMIT, ACCUMULATE = 0.5, 2"],
    "seed": ["torch.manual_seed(7)"],
    "tied weights": ["self.head.weight = self.embed.weight"],
    "module blocks.1": [
        "self.blocks = nn.Sequential(Block(), nn.Linear(4, 4))",
        "model.blocks.requires_grad_(True)",
        "p.requires_grad = True",
    ],
    "module blocks.0.norm": [
        "self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)",
        "model.blocks.requires_grad_(True)",
        "model.blocks[0].norm.eval()",
    ],
    "frozen blocks.0.norm.bias": ["self.norm.bias.requires_grad_(True)", "model.blocks.requires_grad_(True)"],
    "frozen blocks.0.norm.weight": ["model.blocks.requires_grad_(True)"],
    "frozen blocks.1.weight": ["model.blocks.requires_grad_(True)", "p.requires_grad = True"],
    "frozen blocks.0.shift": [],
    "module embed": ["self.embed = nn.Embedding(4, 4)", "model.embed.requires_grad_(True)"],
    "tensor blocks.0.shift": ['self.register_buffer("shift", torch.full((4,), 0.1))'],
    "tensor embed.weight": ["nn.init.normal_(self.embed.weight, std=0.3)"],
    "tensor blocks.0.scale": ["self.scale = nn.Parameter(torch.ones(4))"],
}


def test_a_plain_loop(captured):
    rows, lines = captured(PLAIN)
    assert {thing: code_of(rows, lines, thing) for thing in PLAIN_LINES} == PLAIN_LINES
    assert code_of(rows, lines, "batches")[:2] == [
        "for i, batch in enumerate(batches()):",
        "g = torch.Generator().manual_seed(3)",
    ]
    assert "words = torch.randint(0, 4, (5,), generator=g)" in code_of(rows, lines, "batches")
    assert value_of(rows, "seed") == "7"
    assert value_of(rows, "tied weights") == "embed.weight = head.weight"
    assert value_of(rows, "autocast") == "off" and value_of(rows, "scaler") == "none"


def test_the_code_of_modules_and_of_the_step(captured):
    rows, lines = captured(PLAIN)
    assert value_of(rows, "module blocks.0") == "class Block" and value_of(rows, "module ") == "class Net"
    assert code_of(rows, lines, "class Block") == ["return self.norm(self.fc(x) * self.scale + self.shift)"]
    assert code_of(rows, lines, "step_fn") == ["return F.cross_entropy(model(batch[0]), batch[1])"]


def test_a_trainer_of_ones_own(captured):
    rows, lines = captured(TRAINER)
    assert code_of(rows, lines, "optimizer")[0] == "return torch.optim.SGD(groups, lr=rate, momentum=0.9)"
    assert code_of(rows, lines, "optimizer lr")[0] == 'group["lr"] = 1e-3'
    assert code_of(rows, lines, "optimizer momentum") == ["return torch.optim.SGD(groups, lr=rate, momentum=0.9)"]
    assert code_of(rows, lines, "scaler") == ['self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)']
    assert value_of(rows, "scaler") == "growth_factor 2, backoff_factor 0.5, growth_interval 2000"
    assert code_of(rows, lines, "factor of the loss") == ["self.scaler.scale(loss_of(self.net, batch)).backward()"]
    assert code_of(rows, lines, "clipping")[0] == "self.scaler.step(self.opt)", "nothing clips"
    assert code_of(rows, lines, "batches")[0] == "for _, batch in zip(range(2), batches()):"
    assert "self.net.embed.requires_grad_(True)" in code_of(rows, lines, "frozen embed.weight")


def test_shared_modules(captured):
    rows, lines = captured(SHARED)
    assert code_of(rows, lines, "tied weights") == [
        "model.blocks[1] = model.blocks[0].fc",
        "self.head.weight = self.embed.weight",
    ]
    assert value_of(rows, "tied weights") == (
        "blocks.0.fc.bias = blocks.1.bias, blocks.0.fc.weight = blocks.1.weight, embed.weight = head.weight"
    )
    frozen = ["model.head.requires_grad_(True)"]
    assert code_of(rows, lines, "frozen embed.weight") == frozen, "one tensor with the head's"
    assert code_of(rows, lines, "frozen blocks.1.weight") == []


def test_functions_make_things(captured):
    rows, lines = captured(SEQUENTIAL)
    made = 'made = getattr(torch.optim, "Adam")(model.parameters(), lr=1e-2)'
    assert code_of(rows, lines, "optimizer") == [made]
    assert code_of(rows, lines, "optimizer lr") == ["rate = torch.optim.lr_scheduler.StepLR(made, 1, gamma=0.5)", made]
    assert code_of(rows, lines, "module 0")[0].startswith("return nn.Sequential(nn.Linear(width, width)")
    assert code_of(rows, lines, "autocast") == [], "no block was enabled"
    assert value_of(rows, "tied weights") == "none"


def test_equal_code_has_equal_hashes(captured):
    rows, _ = captured(PLAIN)
    moved, _ = captured(
        PLAIN.replace("    optimizer = ", "    # a comment\n    optimizer = ").replace("eps=EPS", "eps = EPS")
    )
    other, _ = captured(PLAIN.replace("0.99", "0.999"))
    hashes = [[(row["of"], row.get("hash")) for row in found] for found in (rows, moved, other)]
    assert hashes[0] == hashes[1]
    assert {of for (of, one), (_, two) in zip(hashes[0], hashes[2], strict=True) if one != two} == {
        "optimizer",
        "optimizer beta2",
    }
