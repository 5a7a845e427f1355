"""A monitor on two and four gloo ranks counts what one process counts, and names rank and micro-batch of a NaN before it
spreads. Whole numbers and rates that are powers of two: sums are exact in any order."""

import os
import warnings

import pytest
import torch
import torch.distributed as dist
from lockstep_capture import Monitor, read_run

STEPS, ROWS = 6, 16


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 32), torch.nn.Linear(32, 4)
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randint(-2, 3, weight.shape, generator=generator))

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def wrapped(kind, model, ranks):
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (ranks,))
        for part in (model.first, model.second, model):
            fully_shard(part, mesh=mesh)
    if kind == "hsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("copies", "shards")))
    return model


def train(kind, path, rank, ranks, bad=None, **options):
    """Each rank has its rows of every micro-batch. The mean over ranks of `ranks` times the sum is the sum over all rows."""
    model = wrapped(kind, Network(), ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-14, momentum=0.5)
    monitor = Monitor(path, model, optimizer, every=2, quiet=True, **options)
    generator = torch.Generator().manual_seed(6)
    for step in range(STEPS):
        for micro in range(2):
            x = torch.randint(-2, 3, (ROWS, 8), generator=generator).float()
            if bad == (step, micro):
                x[-1, 0] = float("nan")  # of the last rank
            own = x[rank * ROWS // ranks : (rank + 1) * ROWS // ranks]
            with monitor.step(own):
                (ranks * model(own).square().sum()).backward()
                if micro:
                    optimizer.step()
                    optimizer.zero_grad()
    monitor.finish()
    return monitor


def work(rank, ranks, folder, kind, bad, options):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", ranks), rank=rank, world_size=ranks)
    try:
        monitor = train(kind, f"{folder}/live.h5", rank, ranks, bad, **options)
        if rank == 0:
            torch.save([(a.rule, a.step, a.layer, a.rank, a.micro_batch) for a in monitor.alarms], f"{folder}/alarms")
    finally:
        dist.destroy_process_group()


def spawn(ranks, folder, kind, bad=None, **options):
    torch.multiprocessing.spawn(work, (ranks, str(folder), kind, bad, options), nprocs=ranks)


def histograms(path, shift=0):
    """shift: of the gradients of activations, which each rank's own loss has `ranks` times."""
    run = read_run(path)
    found = {}
    for (step, site), bins in run.histograms("live").iterrows():
        row = run.sites.loc[site]
        values = bins.to_numpy()
        if row.role == "grad_activation" and shift:
            moved = values.copy()
            moved[1:-1] = 0
            moved[1 : -1 - shift] = values[1 + shift : -1]
            values = moved
        found[step, row["node"]] = values.tolist()
    return found


@pytest.fixture(autouse=True)
def found_program(monkeypatch, binary_dir):
    monkeypatch.setenv("LOCKSTEP", str(binary_dir / "lockstep"))


@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4), ("hsdp", 4)])
def test_ranks_count_as_one(tmp_path, kind, ranks):
    spawn(ranks, tmp_path, kind)
    train("one", f"{tmp_path}/one.h5", 0, 1)
    ours = histograms(f"{tmp_path}/live.h5", shift=ranks.bit_length() - 1)
    one = histograms(f"{tmp_path}/one.h5")
    assert ours.keys() == one.keys() and len(one) > 30
    assert [key for key in one if ours[key] != one[key]] == []


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_alarm_names_the_rank(tmp_path, kind):
    spawn(2, tmp_path, kind, bad=(2, 1))
    alarms = torch.load(f"{tmp_path}/alarms")
    assert ("not-finite", 2, "first", 1, 1) in alarms, alarms


def test_a_file_for_every_rank(tmp_path):
    spawn(2, tmp_path, "ddp", per_rank=True)
    counts = [
        read_run(f"{tmp_path}/live.rank{rank}.h5").statistics("live", "count")["count"].loc[0].sum()
        for rank in range(2)
    ]
    assert counts[0] == counts[1] and not os.path.exists(f"{tmp_path}/live.h5")


def broken(*_, **__):
    raise RuntimeError("broken on purpose")


def fail_on_one(rank, ranks, folder, where):
    from lockstep_capture.monitor import monitor, taps
    from lockstep_capture.monitor import ranks as tables

    places = {
        "hook": (taps, "count"),
        "table": (tables.Sites, "_of_rows"),
        "fetch": (monitor.Monitor, "_fetch"),
        "start": (monitor, "Sender"),
    }
    if rank == (0 if where == "start" else 1):
        setattr(*places[where], broken)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        work(rank, ranks, folder, "ddp", None, {})
    torch.save([str(one.message) for one in told], f"{folder}/told{rank}")


@pytest.mark.parametrize("where", ["hook", "table", "fetch", "start"])
def test_failure_of_one_rank_ends_all(tmp_path, where):
    """Or the others would wait for it. Training goes on."""
    torch.multiprocessing.spawn(fail_on_one, (2, str(tmp_path), where), nprocs=2)
    told = [torch.load(f"{tmp_path}/told{rank}") for rank in range(2)]
    for rank, texts in enumerate(told):
        broke = rank == (0 if where == "start" else 1)
        why = "broken on purpose" if broke else "another rank has stopped"
        assert any("monitoring has stopped" in text and why in text for text in texts), told
