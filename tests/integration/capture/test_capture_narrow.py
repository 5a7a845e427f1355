"""Models whose own weights are BF16 or FP16: captured as they are, with FP32 and FP64 references of the widened model."""

import json

import h5py
import pytest
import torch
import torch.nn.functional as F
from capture_loops import Text, image_batches, image_loss, text_batches, text_loss
from lockstep_capture import Capture, CaptureError, capture, check

nn = torch.nn
torch.set_num_threads(1)


class Norm(nn.Module):
    """As language models write it: FP32 inside, back in the operand's dtype, times a weight."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        given = x.dtype
        x = x.to(torch.float32)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)).to(given)


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.ln = nn.Linear(64, 16), Norm(16), nn.LayerNorm(16)
        self.b, self.c, self.drop = nn.Linear(16, 16), nn.Linear(16, 5), nn.Dropout(0.1)

    def forward(self, images):
        h = self.a(images.flatten(1).to(self.a.weight.dtype))
        h = self.drop(self.b(F.gelu(self.norm(h)))) + h
        h = self.ln(h.to(self.ln.weight.dtype)).to(h.dtype)
        return self.c(torch.softmax(h, -1) * h)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(64, 5)

    def forward(self, images):
        return self.fc(F.max_pool2d(torch.relu(self.bn(self.conv(images))), 2).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.fc = nn.LSTM(8, 6, batch_first=True), nn.Linear(6, 5)

    def forward(self, images):
        return self.fc(self.lstm(images[:, 0].to(self.fc.weight.dtype))[0][:, -1])


def loss_in_fp32(model, batch):
    """The batch cast by name, the loss in FP32."""
    return F.cross_entropy(model(batch[0].to(torch.bfloat16)).float(), batch[1])


def narrow(model, dtype, kept=()):
    torch.manual_seed(4)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    model.to(dtype)
    for name in kept:
        model.get_submodule(name).float()
    return model


def gates(lockstep, path):
    done = lockstep("verify", path)
    return {line.split()[0]: line.split()[1] for line in done.stdout.splitlines() if line[0] == "V"}, done.stdout


CASES = {
    "bf16": (Blocks, torch.bfloat16, (), image_loss),
    "fp16": (Blocks, torch.float16, (), image_loss),
    "fp32_norm": (Blocks, torch.bfloat16, ("ln",), image_loss),
    "batch_norm": (Convolutions, torch.bfloat16, (), loss_in_fp32),
    "fp32_batch_norm": (Convolutions, torch.bfloat16, ("bn",), loss_in_fp32),
    "recurrent": (Recurrent, torch.bfloat16, (), image_loss),
    "text": (Text, torch.bfloat16, (), text_loss),
}


@pytest.mark.parametrize("name", CASES)
def test_narrow_models_pass_every_gate(tmp_path, lockstep, name):
    """V7 among them: the preset of what ran, from the captured weights."""
    make, dtype, kept, loss_of = CASES[name]
    torch.manual_seed(1)
    model, path = narrow(make(), dtype, kept), tmp_path / "run.lscap.h5"
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batches = text_batches(3) if loss_of is text_loss else image_batches(3)
    capture(path, model, torch.optim.SGD(model.parameters(), 0.01, momentum=0.9), batches, loss_of, steps=3)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    found, text = gates(lockstep, path)
    assert found["V1"] == found["V3"] == found["V5"] == "PASS", text
    assert found["V7"] == "PASS", text
    assert f"as-captured-{'fp16' if dtype == torch.float16 else 'bf16'}-cpu against the captured run" in text
    with h5py.File(path) as file:
        graph = json.loads(bytes(file["graphs/0/json"][:]))
        kinds = {entry["name"]: entry.get("format", "fp32") for entry in graph["params"]}
        assert all((kinds[entry] == "fp32") == entry.startswith(tuple(kept or ("-",))) for entry in kinds), kinds
        assert file["params/" + next(iter(kinds))].dtype == "float32"


def test_reads_of_dtypes_follow_each_lane(tmp_path):
    """What the model asks of its weights and activations is no cast by name: FP32 stays FP32 in the FP32 lane."""
    model = narrow(Blocks(), torch.bfloat16)
    capture(tmp_path / "a.h5", model, torch.optim.SGD(model.parameters(), 0.01), image_batches(1), image_loss, steps=1)
    with h5py.File(tmp_path / "a.h5") as file:
        nodes = json.loads(bytes(file["graphs/0/json"][:]))["nodes"]
    assert [node["attrs"]["dtype"] for node in nodes if node["op"] == "cast"] == ["fp32"]
    assert sum(node["op"] == "cast_like" for node in nodes) == 4


class Loop:
    """BF16 weights, FP32 masters in the optimizer, as it is usually written."""

    def __init__(self, path, optimizer=torch.optim.AdamW, copies=True, clip=None):
        torch.manual_seed(1)
        self.model = narrow(Blocks(), torch.bfloat16, ("ln",))
        self.masters = [p.detach().clone().float().requires_grad_() for p in self.model.parameters()]
        self.optimizer, self.copies, self.clip = optimizer(self.masters, lr=0.01), copies, clip
        self.cap = Capture(path, self.model, self.optimizer, image_loss, steps=3) if path else None

    def run(self):
        for batch in image_batches(3):
            with self.cap.step(batch) if self.cap else torch.enable_grad():
                image_loss(self.model, batch).backward()
                for weight, master in zip(self.model.parameters(), self.masters, strict=True):
                    master.grad = weight.grad.float()
                if self.clip:
                    nn.utils.clip_grad_norm_(self.masters, self.clip)
                self.optimizer.step()
                if self.copies:
                    with torch.no_grad():
                        for weight, master in zip(self.model.parameters(), self.masters, strict=True):
                            weight.copy_(master)
                self.model.zero_grad()
        return [weight.detach().clone() for weight in self.model.parameters()]


@pytest.mark.parametrize("clip", [None, 0.1])
def test_masters_of_the_optimizer(tmp_path, lockstep, clip):
    path = tmp_path / "run.lscap.h5"
    captured, plain = Loop(path, clip=clip).run(), Loop(None, clip=clip).run()
    assert all(torch.equal(a, b) for a, b in zip(captured, plain, strict=True))
    found, text = gates(lockstep, path)
    assert found["V1"] == found["V3"] == found["V5"] == found["V7"] == "PASS", text
    assert "as-captured-bf16-master-cpu" in text
    with h5py.File(path) as file:
        assert file["optimizer"].attrs["master_weights"] == 1
        start = torch.tensor(file["final/params/a.weight"][:])
    assert not torch.equal(start, start.bfloat16().float())  # the masters, not the rounded weights


def test_masters_that_the_loop_forgets(tmp_path):
    with pytest.raises(CaptureError, match="weights are not their FP32 masters, rounded, e.g. a.weight"):
        Loop(tmp_path / "a.h5", copies=False).run()


def test_masters_whose_gradients_are_changed(tmp_path):
    loop = Loop(tmp_path / "a.h5")
    step = loop.optimizer.step
    loop.optimizer.step = lambda: [master.grad.mul_(2) for master in loop.masters] and step()
    with pytest.raises(CaptureError, match="gradients changed before optimizer.step"):
        loop.run()


def test_the_captured_lane_is_compared_with_the_preset_of_what_ran(tmp_path, lockstep):
    def loss_of(m, batch):
        return F.cross_entropy(m(batch[0]).float(), batch[1])

    model, path, run = narrow(Blocks(), torch.bfloat16), tmp_path / "a.lscap.h5", tmp_path / "a.h5"
    capture(path, model, torch.optim.SGD(model.parameters(), 0.01), image_batches(3), loss_of, steps=3)
    lockstep("replay", path, "--lanes", "fp32,as-captured-bf16-cpu,pure-bf16", "-o", run, "--quiet")
    with h5py.File(run) as file:
        text = file["lanes/captured/policy"][()].decode()
        losses = {name: file[f"lanes/{name}/loss"][:] for name in ("captured", "fp32", "as-captured-bf16-cpu")}
    assert "# does the same: as-captured-bf16-cpu" in text
    ours, theirs = (abs(losses[name] - losses["captured"]).mean() for name in ("as-captured-bf16-cpu", "fp32"))
    assert ours < theirs / 2


def test_what_an_optimizer_may_not_hold():
    model = narrow(Blocks(), torch.bfloat16)
    others = [torch.randn_like(p.float()).requires_grad_() for p in model.parameters()]
    with pytest.raises(CaptureError, match="or FP32 masters whose rounded values are its weights"):
        with Capture("never.h5", model, torch.optim.SGD(others, 0.1), image_loss) as cap, cap.step(image_batches(1)[0]):
            pass
    assert "must be float32, bfloat16, float16 or complex64" in str(
        check(Blocks().double(), image_loss, image_batches(1)[0])
    )
