"""The presets fsdp2-* against PyTorch's FSDP2 itself: fully_shard on two ranks (gloo, CPU), steps of SGD.

The network gives FP32 logits (output_dtype) to a loss outside of it. There are two images, one per rank. A gradient is then an outer product, and its mean over the ranks is one sum of
two: no order of sums can differ. What is left are the sums inside the layers, whose FP32 rounding sometimes
decides a rounding to BF16. So the weights agree bit for bit in nearly all elements (AGREE), and under the preset of
the other reduce_dtype in far fewer. Both shares are printed.
"""

import itertools
import os
import pathlib
import struct
import subprocess

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_models
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

RANKS, STEPS, RATE = 2, 3, 0.5
AGREE, DIFFER = 0.99, 0.9
MEAN, STD = 0.1307, 0.3081  # of MNIST's pixels, as Lockstep's data source has them
PRESETS = {"float32": "fsdp2-bf16:1", "none": "fsdp2-bf16-param-reduce:2.14"}


def write_images(folder):
    """Two digits of noise, as both pairs of MNIST's files."""
    pixels = np.random.default_rng(3).integers(0, 2, (RANKS, 28, 28), dtype=np.uint8) * 255
    labels = np.array([3, 8], dtype=np.uint8)
    for pair in ("train", "t10k"):
        (folder / f"{pair}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, *pixels.shape) + pixels.tobytes())
        (folder / f"{pair}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, len(labels)) + labels.tobytes())
    return (torch.tensor(pixels) / 255 - MEAN) / STD, torch.tensor(labels.astype(np.int64))


def replay(binary_dir, folder, out, *words):
    """{lane number: {parameter: what its optimizer updates}} after the last step."""
    command = ["replay", "mlp", "--data", f"mnist:{folder}", "--batch", RANKS, "--optimizer", "sgd", "--momentum", 0]
    command += ["--checkpoint-every", 1, "--twins", 0, "-o", out, *words]
    subprocess.run([binary_dir / "lockstep", *map(str, command)], check=True, capture_output=True, text=True)
    with h5py.File(f"{out}.state") as state:
        found = [dict(state[f"lanes/{lane}/tensors"].items()) for lane in sorted(state["lanes"], key=int)]
        lanes = []
        for tensors in found:
            kind = "master%2F" if any(name.startswith("master%2F") for name in tensors) else "weight%2F"
            lanes.append({n.removeprefix(kind): np.array(t) for n, t in tensors.items() if n.startswith(kind)})
    return lanes


class Logits(torch_models.Mlp):
    def forward(self, images):
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(images.flatten(1))))))


def train(rank, folder, reduce_dtype, micro_batches, steps):
    """What each rank runs. micro_batches: the image of every rank, by micro-batch."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", RANKS)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (RANKS,))
    images, labels, start = torch.load(f"{folder}/start.pt")
    model = Logits()
    model.load_state_dict(start)
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype, output_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, foreach=False)
    for _ in range(steps):
        for number, of_rank in enumerate(micro_batches):
            mine = of_rank[rank]
            model.set_requires_gradient_sync(number == len(micro_batches) - 1)
            loss = F.cross_entropy(model(images[mine : mine + 1]), labels[mine : mine + 1])
            (loss / len(micro_batches)).backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = {name: tensor.full_tensor().detach() for name, tensor in model.named_parameters()}
    if rank == 0:
        torch.save(weights, f"{folder}/end.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def fsdp(folder, reduce, micro_batches, steps):
    (folder / "store").unlink(missing_ok=True)
    dtype = torch.float32 if reduce == "float32" else None
    torch.multiprocessing.spawn(train, (folder, dtype, micro_batches, steps), nprocs=RANKS)
    return torch.load(folder / "end.pt")


def agreement(ours, theirs, start):
    """The share of the weights that moved at all whose bits are equal."""
    equal = moved = 0
    for name, tensor in theirs.items():
        torch_bits, bits = tensor.numpy().view(np.uint32), np.ascontiguousarray(ours[name]).view(np.uint32)
        changed = tensor.numpy() != start[name].numpy()
        equal += int(((torch_bits == bits) & changed).sum())
        moved += int(changed.sum())
    assert moved > 1000
    return equal / moved


@pytest.fixture
def setup(binary_dir, tmp_path):
    images, labels = write_images(tmp_path)
    start = replay(binary_dir, tmp_path, tmp_path / "start.h5", "--steps", 1, "--lr", 0, "--lanes", "fp32")[0]
    start = {name: torch.tensor(values) for name, values in start.items()}
    torch.save((images, labels, start), tmp_path / "start.pt")
    return tmp_path, start


def run_lanes(binary_dir, folder, *words):
    lanes = ["fp32"]
    for kind, preset in PRESETS.items():
        lanes.append(str(folder / f"{kind}.toml"))
        tables = f'[model]\noutput = "fp32"\n[all_reduce]\nworkers = {RANKS}\n'
        pathlib.Path(lanes[-1]).write_text(f'extends = "{preset}"\nname = "{kind}"\n{tables}')
    lanes = replay(binary_dir, folder, folder / "run.h5", "--lr", RATE, "--lanes", ",".join(lanes), *words)
    return dict(zip(PRESETS, lanes[1:], strict=True))


@pytest.mark.parametrize("reduce", PRESETS)
def test_the_weights_are_those_of_fsdp2(binary_dir, setup, reduce):
    folder, start = setup
    lanes = run_lanes(binary_dir, folder, "--steps", STEPS)
    theirs = fsdp(folder, reduce, [(0, 1)], STEPS)
    shares = {kind: agreement(lanes[kind], theirs, start) for kind in PRESETS}
    print(reduce, shares)
    assert shares[reduce] >= AGREE
    assert all(share <= DIFFER for kind, share in shares.items() if kind != reduce)


@pytest.mark.parametrize("reduce", PRESETS)
def test_micro_batches_add_up_in_the_reduce_dtype(binary_dir, setup, reduce):
    """Which rank gets which image in a micro-batch is Lockstep's shuffle: one of the orders must fit."""
    folder, start = setup
    lanes = run_lanes(binary_dir, folder, "--steps", 1, "--accumulate", 2)
    orders = [[(0, 1), second] for second in itertools.permutations(range(RANKS))]
    theirs = [fsdp(folder, reduce, order, 1) for order in orders]
    shares = {kind: max(agreement(lanes[kind], end, start) for end in theirs) for kind in PRESETS}
    print(reduce, shares)
    assert shares[reduce] >= AGREE
    assert all(share <= DIFFER for kind, share in shares.items() if kind != reduce)
