"""What parts predict of a network's loss, and what the whole network's lanes say: measure(network, ...) for one state.

A prediction is `lockstep replay` of a folder of parts and its report. The truth is the whole network, captured with the
same weights and batches, in lanes that keep every layer but one part's in FP32, and in one lane with all parts narrow.
"""

import dataclasses
import json
import subprocess

import h5py
import numpy as np
import torch
from lockstep_capture import Capture, Parts
from lockstep_capture.read_run import read_run

BATCHES = 4
FORMATS = {  # the lane of the parts; convolutions take FP8 too, blocks are for linear layers alone
    "bf16": 'extends = "torch-autocast-bf16:2.12"\n',
    "fp16": 'extends = "torch-autocast-fp16:2.12"\n',
    "e4m3": 'extends = "fp8-current:1"\n[scaling]\nops = ["linear", "conv2d"]\n',
    "mxfp8": 'extends = "mxfp8:1"\n',
    "nvfp4": 'extends = "nvfp4:1"\n',
}
SCALED = {"bf16": (), "fp16": (), "e4m3": ("linear", "conv2d"), "mxfp8": ("linear",), "nvfp4": ("linear",)}
LOSSES = {"cross_entropy", "mse_loss"}  # stay in FP32; what else is outside of all parts moves values alone
QUIET = ["--mode", "synced", "--threads", 1, "--sums-every", 0, "--histogram-every", 10**6, "--checkpoint-every", 10**6]


@dataclasses.dataclass
class Part:
    name: str
    first: float
    second: float
    error: float  # standard error over the batches
    true: list  # by batch: only this part is narrow


@dataclasses.dataclass
class Cell:
    """A network in a state and a format."""

    network: str
    family: str
    state: str
    format: str
    loss: float
    parts: list
    true: list  # by batch: all parts are narrow
    twin: list  # by batch


def loss_of(network, model, batch):
    *inputs, target = batch
    return network.loss(model(*inputs), target)


def prepared(network, steps, seed=1):
    """The model after so many steps of Adam, and the batches that are measured."""
    torch.manual_seed(seed)
    model = network.make()
    drawn = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(network, model, network.batch(drawn)).backward()
        optimizer.step()
    model.zero_grad()
    later = torch.Generator().manual_seed(seed + 1000)
    return model, [network.batch(later) for _ in range(BATCHES)]


def capture_parts(network, model, batches, folder):
    parts = Parts(folder, model, list(network.parts), steps=len(batches), loss_over=network.loss_over, quiet=True)
    for batch in batches:
        model.zero_grad()
        with parts.step(batch):
            loss_of(network, model, batch).backward()
    rows = json.loads((folder / "rank0" / "parts.json").read_text())["parts"]
    refused = {row["module"]: row for row in rows if row["status"] != "captured"}
    assert not refused, refused
    assert len(rows) == len(network.parts) * len(batches)


def capture_whole(network, model, batches, path):
    def step_fn(model, batch):
        return loss_of(network, model, batch)

    capture = Capture(path, model, None, step_fn, steps=len(batches), verify=[], quiet=True)
    with capture:
        for batch in batches:
            with capture.step(batch), torch.no_grad():
                step_fn(model, batch)


def forward_ops(path):
    """(module, op) of the forward ops of a capture."""
    with h5py.File(path) as file:
        graph = json.loads(bytes(file["graphs/0/json"][()]))
    return {(node["module"], node["op"]) for node in graph["nodes"]}


def is_below(layer, module):
    return layer == module or layer.startswith(module + ".")


def formats_of(network, ops):
    """A format that scales factors is left out if a part has none: that part would run in BF16."""

    def has(part, scaled):
        return not scaled or any(op in scaled for module, op in ops if is_below(module, part))

    return [name for name, scaled in SCALED.items() if all(has(part, scaled) for part in network.parts)]


def write_policies(network, ops, formats, folder):
    """{(format, part, or None for all): path}"""
    layers = sorted({module for module, _ in ops} - {""})
    losses = sorted({op for module, op in ops if not module} & LOSSES)
    paths = {}
    for name in formats:
        for part in [None, *network.parts]:
            inside = network.parts if part is None else [part]
            wide = [layer for layer in layers if not any(is_below(layer, module) for module in inside)]
            rules = [f'layer = "{layer}"' for layer in wide] + [f'op = "{op}"' for op in losses]
            path = folder / f"{name}-{part or 'all'}.toml"
            text = "".join(f'\n[[rule]]\n{rule}\ncompute = "fp32"\n' for rule in rules)
            path.write_text(f'name = "{path.stem}"\n{FORMATS[name]}{text}')
            paths[name, part] = path
    return paths


def run(program, *args):
    done = subprocess.run([str(program), *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, f"{args}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def losses_of(path):
    """{lane: its loss by step}"""
    steps = read_run(path).steps
    lanes = steps.index.get_level_values(0).unique()
    return {short(lane): steps.loc[lane].loss.to_numpy(dtype=float) for lane in lanes}


def short(lane):
    return lane.rpartition("/")[2].removesuffix(".toml")


def measure(network, steps, folder, program):
    folder.mkdir(parents=True)
    model, batches = prepared(network, steps)
    whole = folder / "whole.lscap.h5"
    capture_parts(network, model, batches, folder / "parts")
    capture_whole(network, model, batches, whole)
    ops = forward_ops(whole)
    formats = formats_of(network, ops)
    policies = write_policies(network, ops, formats, folder)
    bases = {}
    for name in formats:
        bases[name] = folder / f"{name}.toml"
        bases[name].write_text(f'name = "{name}"\n{FORMATS[name]}')
    lanes = ",".join(["fp32", *map(str, policies.values())])
    run(program, "replay", whole, "--lanes", lanes, "-o", folder / "whole.h5", "--statistics", "none", *QUIET)
    run(
        program,
        "replay",
        whole,
        "--lanes",
        "fp32",
        "--nudge",
        1,
        "-o",
        folder / "twin.h5",
        "--statistics",
        "none",
        *QUIET,
    )
    lanes = ",".join(["fp32", *map(str, bases.values())])
    run(program, "replay", folder / "parts", "--lanes", lanes, "-o", folder / "parts.h5", "--twins", 0, *QUIET)
    report = json.loads(run(program, "report", folder / "parts.h5", "--format", "json"))
    losses = losses_of(folder / "whole.h5")
    losses["twin"] = losses_of(folder / "twin.h5")["fp32"]
    return cells(network, "trained" if steps else "untrained", losses, report)


def cells(network, state, losses, report):
    reference = losses["fp32"]
    said = {short(lane["name"]): lane for lane in report["lanes"]}
    found = []
    for name in [name for name in FORMATS if name in said]:
        rows = {row["name"]: row for row in said[name]["parts"]}
        parts = [
            Part(
                part,
                rows[part]["first_order"],
                rows[part]["second_order"] or 0.0,
                rows[part]["effect_error"],
                list(losses[f"{name}-{part}"] - reference),
            )
            for part in network.parts
        ]
        found.append(
            Cell(
                network.name,
                network.family,
                state,
                name,
                float(np.mean(reference)),
                parts,
                list(losses[f"{name}-all"] - reference),
                list(losses["twin"] - reference),
            )
        )
    return found
