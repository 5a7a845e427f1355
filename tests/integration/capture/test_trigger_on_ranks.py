"""Capture(when="fault") under DistributedDataParallel (gloo, CPU): a NaN on one rank is captured there, and both ranks go on
with the bits of a run without a capture."""

import contextlib
import os
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lockstep_capture import Capture

RANKS, STEPS, FAULT = 2, 40, 23


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def batch_of(step, rank, where):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(16, 8, generator=generator)
    if step == FAULT and rank == 1 and where == "data":
        x[3, 2] = float("nan")
    return x, torch.randint(4, (16,), generator=generator)


def train(rank, where, path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    capture = None if path is None else Capture(path, wrapped, optimizer, loss_of, when="fault", times=1, quiet=True)
    for step in range(STEPS):
        batch = batch_of(step, rank, where)
        with contextlib.nullcontext() if capture is None else capture.step(batch):
            loss_of(wrapped, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    files = [] if capture is None else capture.files
    return [p.detach().clone() for p in model.parameters()], torch.rand(1), files


def work(rank, folder, where):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*weights were not finite before it.*")  # from the step after it
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS)
    try:
        plain, drawn, _ = train(rank, where, None)
        weights, drawn_too, files = train(rank, where, f"{folder}/run.lscap.h5")
        for a, b in zip(plain, weights, strict=True):
            assert torch.equal(a.view(torch.int32), b.view(torch.int32))
        assert torch.equal(drawn, drawn_too)
        wanted = [f"{folder}/run.step{FAULT:06d}.rank1.lscap.h5"] if where == "data" and rank == 1 else []
        assert files == wanted, files
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("where", ["data", "nowhere"])
def test_a_fault_on_one_rank(tmp_path, lockstep, where):
    torch.multiprocessing.spawn(work, (str(tmp_path), where), RANKS)
    files = sorted(path.name for path in tmp_path.glob("*.h5"))
    assert files == ([f"run.step{FAULT:06d}.rank1.lscap.h5"] if where == "data" else [])
    if files:
        assert "V0  PASS" in lockstep("verify", tmp_path / files[0], code=3).stdout
