"""Parts of models that are trained on several ranks (gloo, CPU): each rank's files repeat its own output and gradient, the
ranks' gradients add up to those that the run reduced, and training has the same bits as without a capture."""

import contextlib
import json
import os
import re
import warnings

import part_networks
import pytest
import torch
import torch.distributed as dist
from lockstep_capture import Parts
from part_networks import rows_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

SPLIT = {"q": ColwiseParallel, "k": ColwiseParallel, "v": ColwiseParallel, "o": RowwiseParallel}
PLAN = {f"attention.{name}": style for name, style in SPLIT.items()} | {"up": ColwiseParallel, "down": RowwiseParallel}


def shard(model, **options):
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def fsdp(model, ranks):
    return shard(model), None


def fsdp_kept(model, ranks):
    return shard(model, reshard_after_forward=False), None


def fsdp_bf16(model, ranks):
    for block in model.blocks:
        fully_shard(block, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float32)
    return fully_shard(model, mp_policy=policy), None


def fsdp_reduced_in_bf16(model, ranks):
    return shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16)), None


def ddp(model, ranks):
    return torch.nn.parallel.DistributedDataParallel(model), None


def split(model, mesh):
    for block in model.blocks:
        parallelize_module(block, mesh, {name: style() for name, style in PLAN.items()})
    return model


def tensor_parallel(model, ranks):
    return split(model, init_device_mesh("cpu", (ranks,))), 1


def fsdp_and_tensor_parallel(model, ranks):
    mesh = init_device_mesh("cpu", (ranks // 2, 2), mesh_dim_names=("data", "tensor"))
    return shard(split(model, mesh["tensor"]), mesh=mesh["data"]), mesh["data"]


WAYS = {way.__name__: way for way in (fsdp, fsdp_kept, fsdp_bf16, fsdp_reduced_in_bf16, ddp, tensor_parallel)}
WAYS["fsdp_and_tensor_parallel"] = fsdp_and_tensor_parallel


def join(rank, ranks, folder, name):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    warnings.filterwarnings("ignore", message=".*returned a view tensor.*")
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store-{name}", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)


def one_rank(rank, ranks, folder, way, modules, capture):
    """What each rank runs: two steps of two micro-batches; the second step is captured."""
    join(rank, ranks, folder, f"{capture}")
    model, data = WAYS[way](part_networks.network(), ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    parts = Parts(f"{folder}/parts", model, modules, optimizer=optimizer, skip=1, quiet=True) if capture else None
    different = rank if data is None else 0 if data == 1 else data.get_local_rank()  # ranks that split a batch share it
    part_networks.train(model, optimizer, parts, steps=3, seed=100 + different, clip=False)
    whole = [weight.full_tensor() if hasattr(weight, "full_tensor") else weight for weight in model.parameters()]
    if rank == 0:
        torch.save([weight.detach() for weight in whole], f"{folder}/weights-{capture}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "way, ranks", [(way, 4 if way == "fsdp_and_tensor_parallel" else 2) for way in WAYS], ids=list(WAYS)
)
def test_ranks(tmp_path, lockstep, way, ranks):
    modules = ["blocks.{0,2}", "blocks.1.{up,down}", "head"]
    for capture in (True, False):
        torch.multiprocessing.spawn(one_rank, (ranks, str(tmp_path), way, modules, capture), nprocs=ranks)
    with_parts, without = (torch.load(tmp_path / f"weights-{capture}.pt") for capture in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(with_parts, without, strict=True))
    for rank in range(ranks):
        rows = rows_of(tmp_path / "parts", rank)
        assert [row["status"] for row in rows.values()] == ["captured"] * 5, rows
        assert {row["output"] for row in rows.values()} == {"bit-exact"}
    said = lockstep("verify", tmp_path / "parts", "--json", tmp_path / "verified.json").stdout
    print(said)
    assert f"on {ranks} ranks of {ranks}" in said and "Faithful: every part repeats the run.\n" in said
    verified = json.loads((tmp_path / "verified.json").read_text(encoding="utf-8"))["parts"]
    gradients = [part["gradients_of_all_ranks"] for part in verified if "gradients_of_all_ranks" in part]
    assert len(gradients) == 5 and len(verified) == 5 * ranks
    for text in gradients:
        off = re.search(r"off by ([\d.e-]+)", text)
        limit = 2**-8 if way == "fsdp_reduced_in_bf16" else 1e-6
        assert "bit-exact" in text or float(off[1]) < limit, text
    if way in ("fsdp", "fsdp_kept", "ddp"):
        assert all("bit-exact" in text for text in gradients), gradients


def half_of_a_pipeline(rank, ranks, folder, capture):
    """Two stages; what passes between them is sent by hand. Parts live on their rank, and nothing else is needed."""
    join(rank, ranks, folder, f"pipe-{capture}")
    model = part_networks.network()
    own = model.blocks[:1] if rank == 0 else model.blocks[1:]
    stage = torch.nn.ModuleDict({"blocks": own} | ({"embed": model.embed} if rank == 0 else {"head": model.head}))
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    parts = Parts(f"{folder}/parts", stage, ["blocks.0"], optimizer=optimizer, quiet=True) if capture else None
    torch.manual_seed(5)
    tokens = torch.randint(0, part_networks.VOCABULARY, (3, 9))
    with parts.step(tokens) if parts is not None else contextlib.nullcontext():
        if rank == 0:
            y = own[0](stage["embed"](tokens), scale=0.5)
            dist.send(y.detach(), 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, 1)
            y.backward(gradient)
        else:
            x = torch.empty(3, 9, part_networks.WIDTH)
            dist.recv(x, 0)
            x.requires_grad_()
            y = x
            for block in own:
                y = block(y, scale=0.5)
            torch.nn.functional.cross_entropy(stage["head"](y).flatten(0, 1), tokens.flatten()).backward()
            dist.send(x.grad, 0)
        optimizer.step()
    torch.save([weight.detach() for weight in stage.parameters()], f"{folder}/pipe-{rank}-{capture}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_a_pipeline_needs_nothing_more(tmp_path, lockstep):
    for capture in (True, False):
        torch.multiprocessing.spawn(half_of_a_pipeline, (2, str(tmp_path), capture), nprocs=2)
    for rank in range(2):
        with_parts, without = (torch.load(tmp_path / f"pipe-{rank}-{capture}.pt") for capture in (True, False))
        assert all(torch.equal(a, b) for a, b in zip(with_parts, without, strict=True))
        row = rows_of(tmp_path / "parts", rank)["blocks.0"]
        assert (row["output"], row["gradient"]) == ("bit-exact", "bit-exact"), row
    lockstep("verify", tmp_path / "parts")


def a_rank_that_dies(rank, ranks, folder):
    join(rank, ranks, folder, "dies")
    model, _ = ddp(part_networks.network(), ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = Parts(f"{folder}/parts", model, ["blocks.0"], optimizer=optimizer, steps=2, quiet=True)
    part_networks.train(model, optimizer, parts, steps=1)
    if rank == 1:
        os._exit(1)
    with contextlib.suppress(RuntimeError):  # of the collective that waits for rank 1
        part_networks.train(model, optimizer, parts, steps=1)
    os._exit(0)


def test_parts_that_were_complete_outlive_a_rank(tmp_path, lockstep):
    with pytest.raises(torch.multiprocessing.ProcessExitedException):
        torch.multiprocessing.spawn(a_rank_that_dies, (2, str(tmp_path)), nprocs=2)
    assert rows_of(tmp_path / "parts", 1)["blocks.0"]["status"] == "captured"
    said = lockstep("verify", tmp_path / "parts").stdout
    assert "rank 1 ended before its last step to capture" in said
