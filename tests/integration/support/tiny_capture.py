"""A capture of a small network, made by hand.

`docs/capture-file.md` is the only thing this shares with `lockstep_capture`: the graph is written out below, masks
are drawn here, and what PyTorch computes is asked of PyTorch. A tree of dicts stands for the file, so that a test can
damage one field before it is written.
"""

import contextlib
import copy
import hashlib
import json
import struct

import h5py
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
BATCH, FEATURES, HIDDEN, CLASSES, P = 8, 8, 16, 4, 0.25
BLOCK = 512


class Net(nn.Module):
    """fc1, batch norm, relu, dropout with a mask that is given, fc2."""

    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(FEATURES, HIDDEN)
        self.bn = nn.BatchNorm1d(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, mask):
        x = torch.relu(self.bn(self.fc1(x)))
        return self.fc2(x * (mask.to(x.dtype) / (1 - P)))  # as F.dropout on the CPU, which rounds 1 / (1 - p)


def f32(*shape):
    return {"shape": list(shape), "dtype": "f32"}


def i32(*shape):
    return {"shape": list(shape), "dtype": "i32"}


def graph(autocast=None):
    """The forward pass as docs/graph-json.md has it."""

    def node(number, op, inputs, out, attrs=None, module="", src=""):
        return {
            "id": f"n{number}",
            "op": op,
            "in": inputs,
            "attrs": attrs or {},
            "out": out,
            "module": module,
            "src": src,
            "autocast": autocast,
            "nograd": False,
        }

    hidden, per_hidden = f32(BATCH, HIDDEN), f32(HIDDEN)
    return {
        "ir": 1,
        "name": "Net",
        "inputs": [
            {"id": "in0", "path": "batch[0]", **f32(BATCH, FEATURES)},
            {"id": "in1", "path": "batch[1]", **i32(BATCH)},
        ],
        "params": [
            {"name": name, **f32(*shape), "requires_grad": True, "module": name.split(".")[0]}
            for name, shape in (
                ("fc1.weight", (HIDDEN, FEATURES)),
                ("fc1.bias", (HIDDEN,)),
                ("bn.weight", (HIDDEN,)),
                ("bn.bias", (HIDDEN,)),
                ("fc2.weight", (CLASSES, HIDDEN)),
                ("fc2.bias", (CLASSES,)),
            )
        ],
        "buffers": [
            {"name": "bn.running_mean", **per_hidden, "module": "bn"},
            {"name": "bn.running_var", **per_hidden, "module": "bn"},
            {"name": "bn.num_batches_tracked", **i32(), "module": "bn"},
        ],
        "nodes": [
            node(0, "linear", ["in0", "p:fc1.weight", "p:fc1.bias"], [hidden], module="fc1"),
            node(
                1,
                "batch_norm",
                ["n0", "p:bn.weight", "p:bn.bias", "b:bn.running_mean", "b:bn.running_var", "b:bn.num_batches_tracked"],
                [hidden, per_hidden, per_hidden, per_hidden, per_hidden, i32()],
                {"training": True, "momentum": 0.1, "eps": 1e-5},
                "bn",
            ),
            node(2, "relu", ["n1"], [hidden]),
            node(3, "dropout", ["n2"], [hidden, i32(BATCH, HIDDEN)], {"p": P, "training": True}),
            node(4, "linear", ["n3", "p:fc2.weight", "p:fc2.bias"], [f32(BATCH, CLASSES)], module="fc2"),
            node(5, "cross_entropy", ["n4", "in1"], [f32()], src="train.py:7"),
        ],
        "loss": "n5",
        "outputs": {},
        "mutations": [
            {"buffer": "bn.running_mean", "value": "n1", "slot": 1},
            {"buffer": "bn.running_var", "value": "n1", "slot": 2},
            {"buffer": "bn.num_batches_tracked", "value": "n1", "slot": 5},
        ],
        "rng": ["n3"],
    }


class Attr(dict):
    """Attributes of a group or dataset."""


def tree(**children):
    return dict(children)


def dataset(array, **attrs):
    return (np.asarray(array), attrs)


def packed(mask):
    """numpy.packbits with its shape."""
    mask = np.asarray(mask)
    return dataset(np.packbits(mask.reshape(-1).astype(bool)), shape=np.asarray(mask.shape, np.int64))


def tensors(named, dtype=None):
    out = {}
    for name, value in named:
        array = value.detach().cpu().numpy()
        out[name] = dataset(array.astype(dtype or (np.float32 if array.dtype.kind == "f" else np.int32)))
    return out


def optimizer_state(optimizer, names):
    out = {}
    for p, name in names.items():
        state = optimizer.state.get(p, {})
        out[name] = {
            key: dataset(np.asarray(float(v), np.float64) if key == "step" else v.detach().numpy().copy())
            for key, v in state.items()
            if v is not None
        }
    return {k: v for k, v in out.items() if v}


def hyper(optimizer):
    return json.dumps(
        [
            {k: v for k, v in group.items() if k != "params" and isinstance(v, (int, float, tuple, bool))}
            for group in optimizer.param_groups
        ]
    )


def reference(model, batches, masks, dtype):
    """Loss and gradients without autocast, from a copy of the model."""
    model = copy.deepcopy(model).to(dtype)
    losses = []
    model.zero_grad()
    for (x, y), mask in zip(batches, masks):
        loss = F.cross_entropy(model(x.to(dtype), mask.to(dtype)), y)
        (loss / len(batches)).backward()
        losses.append(loss.item())
    return sum(losses) / len(losses), model


def make(
    steps=4,
    accumulate=1,
    amp=None,
    scaler=False,
    optimizer="AdamW",
    clip=None,
    warm=0,
    seed=0,
    overflow_at=None,
    clip_value=None,
    norm_type=2.0,
):
    """Trains and returns the tree. `amp`: a torch dtype; `warm`: steps taken before the capture begins."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = Net()
    settings = {
        "AdamW": {"lr": 1e-2},
        "Adam": {"lr": 1e-2},
        "SGD": {"lr": 0.1, "momentum": 0.9},
        "Adamax": {"lr": 0.1},
    }[optimizer]
    opt = getattr(torch.optim, optimizer)(model.parameters(), **settings)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 1 / (1 + 0.25 * k))
    names = {p: n for n, p in model.named_parameters()}
    gradscaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scaler)
    root_attrs, groups = {}, {}

    def one_step(record):
        batches = [
            (
                torch.from_numpy(rng.standard_normal((BATCH, FEATURES)).astype(np.float32)),
                torch.from_numpy(rng.integers(0, CLASSES, BATCH)),
            )
            for _ in range(accumulate)
        ]
        masks = [torch.from_numpy((rng.random((BATCH, HIDDEN)) >= P).astype(np.float32)) for _ in range(accumulate)]
        entry, verify = {}, None
        if record is not None:
            number, wanted = record
            if wanted:
                verify = reference_group(batches, masks)
        scale = gradscaler.get_scale() if scaler else 1.0
        opt.zero_grad()
        losses = []
        for (x, y), mask in zip(batches, masks):
            region = torch.autocast("cpu", dtype=amp) if amp else contextlib.nullcontext()
            with region:
                loss = F.cross_entropy(model(x, mask), y)
            losses.append(loss.item())
            boost = float("inf") if record is not None and overflow_at == record[0] else 1.0
            gradscaler.scale(loss / accumulate * boost).backward()
        total = float("nan")
        gradscaler.unscale_(opt) if scaler else None
        if clip:
            total = float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip, norm_type))
        if clip_value:
            torch.nn.utils.clip_grad_value_(model.parameters(), clip_value)
        entry_hyper = hyper(opt)
        fired = []
        handle = opt.register_step_pre_hook(lambda *_: fired.append(1))
        grads = tensors((n, p.grad) for p, n in names.items())
        gradscaler.step(opt)
        handle.remove()
        gradscaler.update()
        schedule.step()
        if record is None:
            return
        attrs = {
            "loss": sum(losses) / len(losses),
            "loss_dtype": "float32",
            "scale_before": scale,
            "scale_after": gradscaler.get_scale() if scaler else 1.0,
            "growth_tracker_after": np.int32(gradscaler._get_growth_tracker() if scaler else 0),
            "found_inf": np.uint8(not fired),
            "stepped": np.uint8(bool(fired)),
            "clip_max_norm": float(clip or -1),
            "clip_norm_type": norm_type,
            "clip_total_norm": total,
            "clip_max_value": float(clip_value or -1),
            "clip_stage": "unscaled" if clip or clip_value else "none",
            "hyper": entry_hyper,
        }
        entry["micro"] = {}
        for m, ((x, y), mask) in enumerate(zip(batches, masks)):
            entry["micro"][f"{m:03d}"] = {
                "": Attr(graph=np.int32(0), loss=losses[m], loss_mult=1 / accumulate),
                "inputs": {
                    "0": dataset(x.numpy(), path="batch[0]", torch_dtype="float32"),
                    "1": dataset(y.numpy().astype(np.int32), path="batch[1]", torch_dtype="int64"),
                },
                "rng": {"0": (lambda d: (d[0], {**d[1], "node": "n3", "p": P, "kind": "dropout"}))(packed(mask))},
            }
        entry["grad_norms"] = dataset(np.array([np.linalg.norm(g[0]) for g in grads.values()]))
        entry[""] = Attr(attrs)
        if verify:
            entry["grads"] = grads
            groups.setdefault("verify", {})[f"{number:06d}"] = verify
        groups.setdefault("steps", {})[f"{number:06d}"] = entry

    def reference_group(batches, masks):
        pre = {
            "params": tensors(model.named_parameters()),
            "buffers": tensors(model.named_buffers()),
            "opt_state": optimizer_state(opt, names),
        }
        loss32, m32 = reference(model, batches, masks, torch.float32)
        loss64, m64 = reference(model, batches, masks, torch.float64)
        after = copy.deepcopy(m32)
        g32 = tensors((n, p.grad) for n, p in m32.named_parameters())
        g64 = tensors(((n, p.grad) for n, p in m64.named_parameters()), np.float64)
        for p in after.parameters():
            p.grad = None
        stepped = getattr(torch.optim, optimizer)(after.parameters(), **settings)
        stepped.load_state_dict(copy.deepcopy(opt.state_dict()))
        for p, q in zip(after.parameters(), m32.parameters()):
            p.grad = q.grad.clone()
        stepped.step()
        after_names = {p: n for n, p in after.named_parameters()}
        post = {
            "params": tensors(after.named_parameters()),
            "buffers": tensors(m32.named_buffers()),
            "opt_state": optimizer_state(stepped, after_names),
        }
        noise = {n: packed(np.abs(g32[n][0] - g64[n][0]) > 0.1 * np.abs(g64[n][0])) for n in g32}
        micro = {}
        inside = copy.deepcopy(model)
        for m, (x, _) in enumerate(batches):
            h = inside.fc1(x)
            b = inside.bn(h)
            acts = {"n0": h, "n1": b, "n2": torch.relu(b)}
            micro[f"{m:03d}"] = {
                "kinks": {"n2": packed((b > 0).numpy())},
                "acts": {k: dataset(summary(v.detach().numpy())) for k, v in acts.items()},
            }
        return {
            "pre": pre,
            "ref32": {"": Attr(loss=loss32), "grads": g32, "post": post},
            "ref64": {"": Attr(loss=loss64), "grads": g64},
            "noise": noise,
            "micro": micro,
        }

    for _ in range(warm):
        one_step(None)
    start_scale = gradscaler.get_scale() if scaler else 1.0
    start_tracker = gradscaler._get_growth_tracker() if scaler else 0
    groups["params"] = {
        n: (a, {"requires_grad": np.uint8(1), "torch_dtype": "float32", "opt_group": np.int32(0)})
        for n, (a, _) in tensors(model.named_parameters()).items()
    }
    groups["buffers"] = tensors(model.named_buffers())
    groups["optimizer"] = {
        "": Attr({"class": optimizer, "module": "torch.optim", "impl": "for-loop"}),
        "groups": {"0": {"": Attr(params=list(names.values()), hyper=json.dumps(json.loads(hyper(opt))[0]))}},
        "state": optimizer_state(opt, names),
    }
    for k in range(steps):
        one_step((k, k in (0, steps // 2, steps - 1)))
    root_attrs.update(
        format="lockstep-capture",
        format_version=np.int32(1),
        capture_version="0.1.0",
        torch_version=str(torch.__version__),
        frontend="run",
        device="cpu",
        created_utc="2026-01-01T00:00:00Z",
        model_class="Net",
        n_steps=np.int32(steps),
        replay_mode="full" if optimizer != "Adamax" else "gradients-only",
        v0="bit-exact",
        complete=np.uint8(1),
    )
    dtype = {torch.float16: "float16", torch.bfloat16: "bfloat16"}.get(amp, "bfloat16")
    return {
        "": Attr(root_attrs),
        **groups,
        "graphs": {"0": {"": Attr(signature="f32[8,8];i64[8]"), "json": text(json.dumps(graph()))}},
        "modules": text("[]"),
        "amp": {
            "": Attr(autocast=np.uint8(amp is not None), device_type="cpu", dtype=dtype, cache_enabled=np.uint8(1)),
            "scaler": {
                "": Attr(
                    enabled=np.uint8(scaler),
                    scale=float(start_scale),
                    growth_factor=2.0,
                    backoff_factor=0.5,
                    growth_interval=np.int32(2),
                    growth_tracker=np.int32(start_tracker),
                )
            },
        },
    }


def summary(x):
    """L2 norm, largest magnitude, mean, least nonzero magnitude."""
    x = x.astype(np.float64)
    nonzero = np.abs(x[x != 0])
    return np.array([np.sqrt((x * x).sum()), np.abs(x).max(), x.mean(), nonzero.min() if nonzero.size else 0.0])


def text(string):
    return dataset(np.frombuffer(string.encode(), np.uint8))


def write_node(parent, name, node):
    name = name.replace("%", "%25").replace("/", "%2F")
    if isinstance(node, tuple):
        made, attrs = parent.create_dataset(name, data=node[0]), node[1]
    else:
        made, attrs = parent.create_group(name), node.get("", {})
        for child, value in node.items():
            if child:
                write_node(made, child, value)
    write_attrs(made, attrs)


def write_attrs(made, attrs):
    for key, value in attrs.items():
        made.attrs[key] = value


def seal(path):
    """Writes length and SHA-256 of the HDF5 data into the block before them."""
    with open(path, "r+b") as file:
        data = file.read()[BLOCK:]
        file.seek(0)
        file.write(b"LOCKSTEP-CAPTURE" + struct.pack("<IIQ", 1, BLOCK, len(data)) + hashlib.sha256(data).digest())


def write(path, content):
    with h5py.File(path, "w", userblock_size=BLOCK, track_order=False) as file:
        for name, node in content.items():
            if name:
                write_node(file, name, node)
        write_attrs(file, content[""])
    seal(path)
    return path
