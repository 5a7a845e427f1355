"""Parts: modules of a model captured where they run. Each file repeats its module's output and gradients, and the run
goes on as if nobody had looked."""

import json
import os
import random
import re
import signal
import subprocess
import types
import warnings

import h5py
import numpy as np
import part_networks
import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import CaptureError, Parts
from part_networks import file_of, network, rows_of, train
from torch.utils.checkpoint import checkpoint

MODULES = ["blocks.{0,2}", "head"]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def captured(folder, modules=MODULES, *, options=None, make=network, optimizer=adamw, **loop):
    """Trains with and without a capture; the weights must have the same bits. Returns the rows of the list."""
    plain = make()
    before = train(plain, optimizer(plain), **loop)
    model = make()
    own = optimizer(model)
    parts = Parts(folder, model, modules, optimizer=own, scaler=loop.get("scaler"), quiet=True, **(options or {}))
    after = train(model, own, parts, **loop)
    assert parts.finished
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return rows_of(folder)


def assert_exact(rows, names):
    assert list(rows) == names
    for row in rows.values():
        assert row["status"] == "captured", row
        assert (row["output"], row["input_gradient"], row["gradient"]) == ("bit-exact",) * 3, row


def test_parts_repeat_the_run(tmp_path, lockstep):
    rows = captured(tmp_path / "parts")
    assert_exact(rows, ["blocks.0", "blocks.2", "head"])
    said = lockstep("verify", tmp_path / "parts").stdout
    assert len(re.findall(r"bit-exact +PASS, .* of its bound +bit-exact", said)) == 3
    assert "Faithful: every part repeats the run.\n" in said


@pytest.mark.parametrize("loop", [{"micro": 2}, {"autocast": torch.bfloat16}], ids=["micro-batches", "autocast"])
def test_dropout_and_loops(tmp_path, lockstep, loop):
    rows = captured(tmp_path / "parts", make=lambda: network(dropout=0.2), **loop)
    assert_exact(rows, ["blocks.0", "blocks.2", "head"])
    assert {row["calls"] for row in rows.values()} == {loop.get("micro", 1)}
    lockstep("verify", tmp_path / "parts")


def test_a_module_called_twice_has_the_sum_of_both(tmp_path, lockstep):
    rows = captured(tmp_path / "parts", ["blocks.1"], make=lambda: network(repeat=2))
    assert_exact(rows, ["blocks.1"])
    assert rows["blocks.1"]["calls"] == 2
    lockstep("verify", tmp_path / "parts")


def test_a_loss_scale_is_undone_and_put_back(tmp_path, lockstep):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with torch.no_grad():
        model = network()
    own = adamw(model)
    parts = Parts(tmp_path / "parts", model, ["blocks.0"], optimizer=own, scaler=scaler, quiet=True)
    train(model, own, parts, autocast=torch.float16, scaler=scaler)
    rows = rows_of(tmp_path / "parts")
    assert_exact(rows, ["blocks.0"])
    assert rows["blocks.0"]["loss_scale"] == 1024
    with h5py.File(file_of(tmp_path / "parts", "blocks.0")) as file:
        assert file["amp/scaler"].attrs["scale"] == 1024
    lockstep("verify", tmp_path / "parts")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_pass_what_comes_before_the_first_weight(tmp_path, lockstep, dtype):
    """A norm written out, as in Llama: casts to another dtype and back, of the input alone."""

    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(part_networks.WIDTH))

        def forward(self, x):
            own = x.dtype
            x = x.to(torch.float32)
            return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)).to(own)

    def make():
        model = network()
        model.blocks[1].ln_1 = Norm()
        return model.to(dtype)

    rows = captured(tmp_path / "parts", ["blocks.1", "blocks.1.ln_1"], make=make)
    norm = rows.pop("blocks.1.ln_1")
    assert_exact(rows, ["blocks.1"])
    assert (norm["output"], norm["gradient"]) == ("bit-exact", "bit-exact")
    assert norm["input_gradient"].endswith(": others read it too")  # the residual passes the norm by
    said = lockstep("verify", tmp_path / "parts").stdout
    assert said.count("PASS") == 2
    said = lockstep("verify", file_of(tmp_path / "parts", "blocks.1.ln_1")).stdout
    assert "off by at most" in said and ", 3 tensors" in said  # output, gradients of the weight and of x


def test_weights_take_the_room_that_they_have(tmp_path, lockstep):
    """bfloat16 is two bytes in the file, and a replay reads the same numbers."""
    rows = captured(tmp_path / "parts", ["blocks.0"], make=lambda: network().bfloat16())
    assert_exact(rows, ["blocks.0"])
    path = file_of(tmp_path / "parts", "blocks.0")
    with h5py.File(path) as file:
        weight = file["params/blocks.0.up.weight"]
        assert weight.id.get_type().get_size() == 2 and weight.attrs["torch_dtype"] == "bfloat16"
        assert torch.equal(torch.from_numpy(weight[()]), network().bfloat16().blocks[0].up.weight.detach().float())
        tensors = 0

        def add(name, item):
            nonlocal tensors
            if isinstance(item, h5py.Dataset) and item.dtype.kind == "f":
                tensors += item.size * item.id.get_type().get_size()

        file.visititems(add)
    assert os.path.getsize(path) < tensors + 64_000  # graph, names and attributes
    lockstep("verify", tmp_path / "parts")
    lockstep("replay", path, "--lanes", "fp32,fp8-current", "-o", tmp_path / "a.h5")
    said = " ".join(lockstep("report", tmp_path / "a.h5").stdout.split())
    assert re.search(r"fp8-current changes its output by [\d.]+% and the model's loss by [+-][\d.e-]+,", said)
    assert "Outcomes are not judged: only parts of a larger model ran." in said and "record 100 steps" not in said


class Checkpointed(part_networks.Network):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputed_pass_is_no_second_call(tmp_path, reentrant):
    def make():
        torch.manual_seed(1)
        return Checkpointed(reentrant)

    rows = captured(tmp_path / "parts", ["blocks.{0,2}"], make=make)
    assert_exact(rows, ["blocks.0", "blocks.2"])
    assert {row["calls"] for row in rows.values()} == {1}
    with h5py.File(file_of(tmp_path / "parts", "blocks.0")) as file:
        assert file["part"].attrs["recomputed"] == 1


def test_a_compiled_model_runs_eagerly_in_captured_steps(tmp_path):
    model = network()
    compiled = torch.compile(model, backend="aot_eager")
    own = adamw(model)
    parts = Parts(tmp_path / "parts", compiled, ["blocks.0"], optimizer=own, skip=1, quiet=True)
    with pytest.warns(UserWarning, match=r"torch.compile: the captured steps run .* uncompiled"):
        train(compiled, own, parts)
    assert_exact(rows_of(tmp_path / "parts"), ["blocks.0"])
    assert rows_of(tmp_path / "parts")["blocks.0"]["step"] == 1


def test_a_slice_keeps_the_first_tokens(tmp_path, lockstep):
    rows = captured(tmp_path / "parts", options={"tokens": 12}, rows=4, tokens=8)
    assert all(row["status"] == "captured" and row["gradient"] == "of a slice" for row in rows.values()), rows
    with h5py.File(file_of(tmp_path / "parts", "blocks.0")) as file:
        assert file["part/calls/000/outputs/output"].shape == (1, 8, part_networks.WIDTH)
        assert dict(file["part"].attrs)["kept_rows"] == 1
    lockstep("verify", tmp_path / "parts")
    said = lockstep("verify", file_of(tmp_path / "parts", "blocks.0")).stdout
    assert (
        ": part blocks.0 (part_networks.Block) in step 0 on rank 0 of 1, the first 1 of 4 rows and 8 of 8 tokens"
        in said
    )
    rows = captured(tmp_path / "short", ["blocks.0"], options={"tokens": 5}, rows=4, tokens=8)
    assert rows["blocks.0"]["status"] == "captured"  # causal: the first tokens do not see the others


def test_a_slice_is_refused_where_tokens_mix(tmp_path):
    class Mixing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.own = torch.nn.Linear(part_networks.WIDTH, part_networks.WIDTH)

        def forward(self, x, scale):
            return x + self.own(x.mean(1, keepdim=True))

    model = network()
    model.blocks[0] = Mixing()
    own = adamw(model)
    parts = Parts(tmp_path / "parts", model, ["blocks.0"], optimizer=own, tokens=4, quiet=True)
    with pytest.warns(UserWarning, match=r"blocks\.0 was not captured: .*mixes tokens or rows"):
        train(model, own, parts, tokens=8)
    assert rows_of(tmp_path / "parts")["blocks.0"]["status"] == "refused"


def test_what_cannot_be_rebuilt_is_refused_with_the_way_out(tmp_path, lockstep):
    class Remembers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.own, self.sum = torch.nn.Linear(part_networks.WIDTH, part_networks.WIDTH), []

        def forward(self, x, scale):
            self.sum.append(x.detach())
            return self.own(x) + sum(self.sum)

    torch.manual_seed(1)
    model = network()
    model.blocks[1] = Remembers()
    for weight in model.head.parameters():
        weight.requires_grad_(False)
    own = adamw(model)
    parts = Parts(tmp_path / "parts", model, ["blocks.{0,1}", "head"], optimizer=own, quiet=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        train(model, own, parts)
    text = "\n".join(str(one.message) for one in seen)
    assert "blocks.1 was not captured" in text and "choose modules inside of it" in text
    assert "head was not captured: has no weight that trains: choose the module around it" in text
    rows = rows_of(tmp_path / "parts")
    assert [row["status"] for row in rows.values()] == ["captured", "refused", "refused"]
    said = lockstep("verify", tmp_path / "parts").stdout
    assert "not captured: blocks.1 on rank 0" in said and "repeats the run; 2 parts not captured." in said


def test_a_cache_that_the_call_fills_is_as_it_was_before(tmp_path, lockstep):
    """As the cache of keys and values that Transformers passes to each block, unless use_cache is False."""

    class Cache:
        def __init__(self):
            self.seen, self.by_name = [], {"all": []}

    class Block(part_networks.Block):
        def forward(self, x, scale, cache):
            cache.seen.append(x)
            cache.by_name["all"].append(x * 2)
            return super().forward(x + 0 * cache.seen[0], scale=scale)

    class Cached(part_networks.Network):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

        def forward(self, tokens):
            x, cache = self.embed(tokens), Cache()
            for block in self.blocks:
                x = block(x, 0.5, cache)
            return self.head(x)

    def make():
        torch.manual_seed(1)
        return Cached()

    rows = captured(tmp_path / "parts", ["blocks.{0,2}"], make=make)
    assert_exact(rows, ["blocks.0", "blocks.2"])
    lockstep("verify", tmp_path / "parts")


def test_wrong_arguments_are_named_before_anything_runs(tmp_path):
    model = network()
    with pytest.raises(CaptureError, match=r"'blocks\.7' is not the path of a module.*near: blocks"):
        Parts(tmp_path / "a", model, ["blocks.{0,7}"])
    with pytest.raises(CaptureError, match=r"steps: is 0, .*tokens: is -1, .*scaler: is a int"):
        Parts(tmp_path / "a", model, ["head"], steps=0, tokens=-1, scaler=3)
    assert not (tmp_path / "a").exists()
    Parts(tmp_path / "b", model, ["blocks.*"]).finish()
    with pytest.raises(CaptureError, match="holds parts already, must be new or empty"):
        Parts(tmp_path / "b", model, ["head"])


def test_modules_that_wait_for_other_ranks_are_refused(tmp_path):
    model = network()
    model.blocks[0].ln_1 = torch.nn.SyncBatchNorm(part_networks.WIDTH)
    with pytest.raises(CaptureError, match=r"blocks\.0\.ln_1 is a SyncBatchNorm: .*waits for other ranks"):
        Parts(tmp_path / "a", model, ["blocks.0", "head"])


class Patched(part_networks.Network):
    """Blocks whose forward is replaced, with a reference to the model itself, and a tied head."""

    def __init__(self):
        super().__init__()
        self.head.weight = self.embed.weight
        for block in self.blocks:
            block.parent = [self]
            block.plain = block.forward
            block.forward = types.MethodType(lambda self, x, scale: self.plain(x, scale=scale), block)


def test_patched_forwards_and_tied_weights(tmp_path, lockstep):
    def make():
        torch.manual_seed(1)
        return Patched()

    rows = captured(tmp_path / "parts", ["blocks.1", "head"], make=make)
    assert (rows["blocks.1"]["output"], rows["blocks.1"]["gradient"]) == ("bit-exact", "bit-exact")
    assert rows["head"]["gradient"] == "bit-exact; weight is also embed.weight, not compared"
    lockstep("verify", tmp_path / "parts")


def test_nothing_of_the_users_is_left_changed(tmp_path):
    """Generators, gradients, buffers, hooks; batch norm moves its statistics once a micro-batch; one tensor as three
    arguments; a weight as an argument; an output that is changed in place afterwards."""

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(part_networks.WIDTH)
            self.attention = torch.nn.MultiheadAttention(part_networks.WIDTH, 4, batch_first=True)

        def forward(self, q, k, v, bias):
            y = self.attention(q, k, v, need_weights=False)[0] + bias
            return self.norm(y.transpose(1, 2)).transpose(1, 2).contiguous()

    class Model(part_networks.Network):
        def __init__(self):
            super().__init__()
            self.mixed, self.bias = Mixed(), torch.nn.Parameter(torch.zeros(part_networks.WIDTH))

        def forward(self, tokens):
            x = self.embed(tokens)
            y = self.mixed(x, x, x, self.bias)
            y += 1
            return self.head(y)

    def make():
        torch.manual_seed(1)
        return Model()

    models = []
    for folder in (None, tmp_path / "a"):
        model = make()
        own = adamw(model)
        parts = None if folder is None else Parts(folder, model, ["mixed"], optimizer=own, quiet=True)
        random.seed(3)
        train(model, own, parts, micro=2)
        models.append((model, torch.get_rng_state(), random.random()))
    (plain, torchs, pythons), (watched, torchs_now, pythons_now) = models
    assert torch.equal(torchs, torchs_now) and pythons == pythons_now
    for (name, a), (_, b) in zip(plain.state_dict().items(), watched.state_dict().items(), strict=True):
        assert torch.equal(a, b), name
    assert all(weight.grad is None for weight in watched.parameters())
    assert not watched.bias._backward_hooks and not watched.mixed._forward_hooks
    assert_exact(rows_of(tmp_path / "a"), ["mixed"])


def test_a_failure_in_a_hook_is_not_the_loops(tmp_path, monkeypatch):
    model = network()
    own = adamw(model)
    parts = Parts(tmp_path / "a", model, ["blocks.0"], optimizer=own, quiet=True)
    monkeypatch.setattr("lockstep_capture.parts.copies.Copies.keep", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match=r"blocks\.0 was not captured: .*ZeroDivisionError"):
        after = train(model, own, parts)
    plain = network()
    assert all(torch.equal(a, b) for a, b in zip(after, train(plain, adamw(plain)), strict=True))


def test_a_scaler_that_is_not_given_is_seen(tmp_path):
    model = network()
    own = adamw(model)
    parts = Parts(tmp_path / "a", model, ["blocks.0"], optimizer=own, quiet=True)
    with pytest.warns(UserWarning, match=r"Parts\(\.\.\., scaler=scaler\)"):
        train(model, own, parts, scaler=torch.amp.GradScaler("cpu", init_scale=4.0))


def test_stars_stay_within_a_level(tmp_path):
    model = network()
    own = adamw(model)
    parts = Parts(tmp_path / "a", model, ["blocks.*", "**.up"], optimizer=own, quiet=True)
    train(model, own, parts, steps=1)
    assert list(rows_of(tmp_path / "a")) == [
        "blocks.0",
        "blocks.0.up",
        "blocks.1",
        "blocks.1.up",
        "blocks.2",
        "blocks.2.up",
    ]


def test_too_many_bytes_are_refused(tmp_path):
    model = network()
    own = adamw(model)
    parts = Parts(tmp_path / "a", model, ["blocks.*"], optimizer=own, max_bytes=250_000, quiet=True)
    with pytest.warns(UserWarning, match=r"blocks\.1 was not captured: .*max_bytes is 250,000"):
        train(model, own, parts)
    assert [row["status"] for row in rows_of(tmp_path / "a").values()] == ["captured", "refused", "refused"]


def test_an_error_of_the_loop_is_its_own_and_complete_parts_stay(tmp_path, lockstep):
    model = network()
    own = adamw(model)
    parts = Parts(tmp_path / "a", model, ["blocks.0"], optimizer=own, steps=3, quiet=True)
    train(model, own, parts, steps=1)
    with pytest.raises(KeyboardInterrupt), parts.step(None):
        part_networks.loss_of(model, torch.zeros(2, 4, dtype=torch.long))
        raise KeyboardInterrupt
    assert parts.finished and not model.blocks[0]._forward_hooks
    assert list(rows_of(tmp_path / "a")) == ["blocks.0"]
    lockstep("verify", tmp_path / "a")


def test_a_full_disk_costs_the_part_alone(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    model = network()
    own = adamw(model)
    parts = Parts(tmp_path / "a", model, ["blocks.0"], optimizer=own, quiet=True)
    monkeypatch.setattr("h5py.File", full)
    with pytest.warns(UserWarning, match=r"blocks\.0 was not captured: .*No space left on device"):
        after = train(model, own, parts)
    plain = network()
    assert all(torch.equal(a, b) for a, b in zip(after, train(plain, adamw(plain)), strict=True))


def test_reference_gradients_on_request(tmp_path, lockstep):
    captured(tmp_path / "parts", ["blocks.0"], options={"reference": True})
    said = lockstep("verify", file_of(tmp_path / "parts", "blocks.0")).stdout
    assert re.search(r"V1 +PASS", said) and re.search(r"V3 +PASS", said) and re.search(r"V8 +PASS", said)


def test_a_damaged_part_or_list_is_an_error(tmp_path, lockstep):
    captured(tmp_path / "parts", ["blocks.0"])
    index = tmp_path / "parts" / "rank0" / "parts.json"
    whole = index.read_text(encoding="utf-8")
    index.write_text(whole[: len(whole) // 2], encoding="utf-8")
    assert "parts.json' is damaged" in lockstep("verify", tmp_path / "parts", code=2).stderr
    index.write_text(whole.replace("step000000/", "../step000000/"), encoding="utf-8")
    assert "must lie below the list" in lockstep("verify", tmp_path / "parts", code=2).stderr
    index.write_text(json.dumps(json.loads(whole) | {"format_version": 9}), encoding="utf-8")
    assert "not a list of parts of version 1" in lockstep("verify", tmp_path / "parts", code=2).stderr
    index.write_text(whole, encoding="utf-8")
    file_of(tmp_path / "parts", "blocks.0").unlink()
    assert "is not there" in lockstep("verify", tmp_path / "parts", code=2).stderr


def test_a_wrong_gradient_fails_the_gate(tmp_path, lockstep):
    """The gate has teeth: one weight's recorded gradient off by a thousandth."""
    captured(tmp_path / "parts", ["blocks.0"])
    path = file_of(tmp_path / "parts", "blocks.0")
    with h5py.File(path, "r+") as file:
        file["part/gradients/blocks.0.up.weight"][...] *= 1.001
    reseal(path)
    said = lockstep("verify", tmp_path / "parts", code=1).stdout
    assert "V8 FAIL" in said and "V8: gradient of blocks.0.up.weight: off by 1.0e-03" in said


def reseal(path):
    import hashlib

    data = bytearray(path.read_bytes())
    data[32:64] = hashlib.sha256(data[512:]).digest()
    path.write_bytes(data)


LANES = "fp32,torch-autocast-bf16,fp8-current"


def test_a_folder_is_one_run_in_which_every_part_has_its_numbers(tmp_path, lockstep):
    folder, joined = tmp_path / "parts", tmp_path / "all.h5"
    captured(folder, options={"steps": 2})
    lockstep("verify", folder)
    said = lockstep("replay", folder, "--lanes", LANES, "-o", joined).stdout
    assert "Recorded 2 batches of every part" in said and not (tmp_path / "all.h5.parts").exists()
    lockstep("verify", joined)
    with h5py.File(joined) as file:
        layers = [layer.decode() for layer in file["sites/layer"][()]]
        effects = {}
        for step, folder_of_step in enumerate(sorted(folder.glob("rank0/step*"))):
            for module in ("blocks.0", "blocks.2", "head"):
                alone = tmp_path / f"{module}.{step}.h5"
                lockstep("replay", file_of_step(folder_of_step, module), "--lanes", LANES, "-o", alone)
                at = [i for i, layer in enumerate(layers) if (layer + ".").startswith(module + ".")]
                with h5py.File(alone) as part:
                    for lane in part["lanes"]:
                        if lane == "captured":
                            continue
                        for column in ("bits_hash", "moments/err_sq", "counts/to_zero"):
                            a, b = file["lanes"][lane][column][step][at], part["lanes"][lane][column][0]
                            assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
                        loss = part["lanes"][lane]["loss"][0]
                        assert file["lanes"][lane]["losses"][module][step] == loss
                        if lane != "fp32":
                            effects.setdefault((lane, module), []).append(loss - part["lanes/fp32/loss"][0])
    report = json.loads(lockstep("report", joined, "--format", "json").stdout)
    lanes = {lane["name"]: lane for lane in report["lanes"]}
    assert "parts" not in lanes["fp32"]
    for (lane, module), each in effects.items():
        (part,) = (part for part in lanes[lane]["parts"] if part["name"] == module)
        assert part["batches"] == 2
        assert part["first_order"] == pytest.approx(sum(each) / 2, rel=1e-12, abs=1e-12)
        assert part["effect"] == pytest.approx(part["first_order"] + part["second_order"], rel=1e-12)
        assert lane == "twin" or 0 < part["output_error"] < 0.2 and 0 < part["weight_gradient_error"] < 0.5
    text = " ".join(lockstep("report", joined).stdout.split())
    assert "passed: 6 parts PASS" in text
    assert re.search(
        r"fp8-current changes the model's loss by \S+ \+- \S+, [\d.]+% of it in (blocks.0|blocks.2|head)", text
    )


def file_of_step(folder, module):
    return folder / f"{module}.lscap.h5"


def test_first_and_second_order_of_a_linear_layer(tmp_path, lockstep):
    """Against PyTorch's: BF16 operands, sums in FP32, a BF16 output."""
    assert_exact(captured(tmp_path / "parts", ["head"]), ["head"])
    path = file_of(tmp_path / "parts", "head")
    lockstep("replay", path, "--lanes", "fp32,torch-autocast-bf16", "-o", tmp_path / "a.h5")
    report = json.loads(lockstep("report", tmp_path / "a.h5", "--format", "json").stdout)
    (part,) = next(lane for lane in report["lanes"] if lane["name"] == "torch-autocast-bf16")["parts"]
    with h5py.File(path) as file:
        given = file["steps/000000/micro/000/inputs"]
        x, dy, weight, bias = (
            torch.from_numpy(item[()])
            for item in (given["0"], given["1"], file["params/head.weight"], file["params/head.bias"])
        )
    rounded = F.linear(x.bfloat16().float(), weight.bfloat16().float(), bias.bfloat16().float()).bfloat16().float()
    shares = ((rounded - F.linear(x, weight, bias)).double() * dy).sum(-1)
    assert part["first_order"] == pytest.approx(float(shares.sum()), rel=0.05)
    assert part["second_order"] == pytest.approx(shares.numel() / 2 * float((shares**2).sum()), rel=0.05)
    assert part["effect_error"] is None  # of one batch


def test_a_replay_of_parts_goes_on_where_it_was_stopped(tmp_path, lockstep, binary_dir):
    folder, joined = tmp_path / "parts", tmp_path / "all.h5"
    captured(folder)
    args = ["replay", folder, "--lanes", LANES, "-o", joined]
    process = subprocess.Popen([binary_dir / "lockstep", *map(str, args)], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "part 2/3" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stderr.close()
    assert not joined.exists() and len(list((tmp_path / "all.h5.parts").glob("*.h5"))) >= 1
    done = lockstep(*args)
    assert "part 1/3" not in done.stderr and "part 3/3" in done.stderr
    assert not (tmp_path / "all.h5.parts").exists()
    lockstep("replay", folder, "--lanes", LANES, "-o", tmp_path / "whole.h5")
    lockstep("check", joined, "--baseline", tmp_path / "whole.h5", "--exact")


def test_what_a_replay_of_parts_refuses(tmp_path, lockstep):
    folder = tmp_path / "parts"
    captured(folder)
    lockstep("replay", folder, "-o", tmp_path / "a.h5")
    assert "exists" in lockstep("replay", folder, "-o", tmp_path / "a.h5", code=2).stderr
    said = lockstep("replay", folder, "--at", "0 fp32 #1", "--save-values", tmp_path / "v.npy", code=2)
    assert "of one part only" in said.stderr
    with open(file_of(folder, "head"), "r+b") as file:
        file.seek(5000)
        file.write(b"x")
    said = lockstep("replay", folder, "-o", tmp_path / "b.h5", code=2).stderr
    assert "head.lscap.h5" in said and not (tmp_path / "b.h5").exists() and not (tmp_path / "b.h5.parts").exists()
    for path in (folder / "rank0").glob("step*/*.h5"):
        path.unlink()
    said = lockstep("replay", folder, "-o", tmp_path / "b.h5", code=2).stderr
    assert said.count("is not there") == 3 and "copy the whole folder" in said


def test_a_gate_of_parts(tmp_path, lockstep):
    """The limits come from whole replays of the folder, each from weights moved by one ulp."""
    folder, baseline = tmp_path / "parts", tmp_path / "parts.baseline.json"
    captured(folder, ["blocks.0", "head"])
    lockstep("baseline", "record", folder, "--lanes", "fp32,torch-autocast-bf16", "-o", baseline)
    lockstep("check", folder, "--baseline", baseline)

    def changed():
        model = network()
        for block in model.blocks:
            block.ln_2.eps = 1e-1
        return model

    captured(tmp_path / "changed", ["blocks.0", "head"], make=changed)
    said = lockstep("check", tmp_path / "changed", "--baseline", baseline, code=1).stdout
    assert "blocks.0.ln_2" in said and "eps: 1e-05 -> 0.1" in said


def test_a_policy_for_the_whole_model_may_match_nothing_in_a_part(tmp_path, lockstep):
    folder, policy = tmp_path / "parts", tmp_path / "own.toml"
    captured(folder, ["blocks.0", "blocks.1.ln_1"])
    rules = '[[rule]]\nlayer = "blocks.0.up"\ncompute = "fp32"\n'
    policy.write_text('extends = "fp8-current"\n' + rules, encoding="utf-8")
    lockstep("replay", folder, "--lanes", f"fp32,{policy}", "-o", tmp_path / "a.h5")
    report = json.loads(lockstep("report", tmp_path / "a.h5", "--format", "json").stdout)
    lane = next(lane for lane in report["lanes"] if lane["name"].endswith("own.toml"))
    assert [part["name"] for part in lane["parts"]] == ["blocks.0", "blocks.1.ln_1"]
    with h5py.File(tmp_path / "a.h5") as file:  # what one part lacks the other has
        assert all("warnings" not in file["lanes"][lane].attrs for lane in file["lanes"])
    said = lockstep("replay", file_of(folder, "blocks.1.ln_1"), "--lanes", f"fp32,{policy}", "-o", tmp_path / "b.h5")
    assert "matches nothing" in said.stderr and "nothing is scaled" in said.stderr
    policy.write_text('extends = "fp8-current"\n' + rules.replace("up", "upp"), encoding="utf-8")
    lockstep("replay", folder, "--lanes", f"fp32,{policy}", "-o", tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5") as file:
        (warning,) = (
            file["lanes"][lane].attrs["warnings"] for lane in file["lanes"] if "warnings" in file["lanes"][lane].attrs
        )
    assert "blocks.0.upp" in str(warning) and "matches nothing" in str(warning)


@pytest.mark.parametrize("loss_over, shape", [("tokens", [3, 9]), ("rows", [3])])
def test_the_inner_product_is_squared_by_what_the_loss_is_a_mean_of(tmp_path, loss_over, shape):
    captured(tmp_path / "parts", ["head"], options={"loss_over": loss_over})
    with h5py.File(file_of(tmp_path / "parts", "head")) as file:
        graph = json.loads(bytes(file["graphs/0/json"][()]))
    assert [node["out"][0]["shape"] for node in graph["nodes"] if node["op"] == "sum"] == [shape, []]


def test_a_loss_is_over_tokens_or_rows(tmp_path):
    with pytest.raises(CaptureError, match="loss_over: is 'batch', must be one of tokens, rows"):
        Parts(tmp_path / "parts", network(), ["head"], loss_over="batch")


def test_a_part_that_a_lane_breaks_is_named(tmp_path, lockstep):
    def make():
        model = network()
        with torch.no_grad():
            model.head.weight *= 1e6  # FP16 ends at 65504
        return model

    captured(tmp_path / "parts", ["head"], make=make, options={"steps": 2})
    lockstep("replay", tmp_path / "parts", "--lanes", "fp32,pure-fp16", "-o", tmp_path / "a.h5")
    report = json.loads(lockstep("report", tmp_path / "a.h5", "--format", "json").stdout)
    (part,) = next(lane for lane in report["lanes"] if lane["name"] == "pure-fp16")["parts"]
    assert (part["batches"], part["nonfinite_batches"], part["effect"]) == (2, 2, None)
    text = " ".join(lockstep("report", tmp_path / "a.h5").stdout.split())
    assert "pure-fp16 breaks head: its output or gradient is not finite in 2 of 2 batches" in text
