"""The capture file: its user block, its layout (docs/capture-file.md), and that it is enough to compute the step."""

import gc
import hashlib
import json
import struct
import threading
import time

import h5py
import numpy as np
import pytest
import torch
from capture_loops import Images, Text, grads64, image_batches, image_loss, text_batches, text_loss, train
from graph_in_torch import run, unpacked
from lockstep_capture import Capture, CaptureError
from lockstep_capture.write.background import Background

# FP64 against FP64, sums in another order: gate V1's bounds.
LOSS_BOUND, GRADIENT_RTOL, GRADIENT_ATOL = 1e-12, 1e-9, 1e-12


def captured(path, kind="images", steps=3, batches=None, optimizer=None, **loop):
    torch.manual_seed(0)
    model, loss_fn = (Images(), image_loss) if kind == "images" else (Text(), text_loss)
    made = batches or (image_batches(12) if kind == "images" else text_batches(12))
    optimizer = optimizer(model) if optimizer else torch.optim.AdamW(model.parameters(), 1e-2)
    cap = Capture(
        path,
        model,
        optimizer,
        loss_fn,
        scaler=loop.get("scaler"),
        autocast=loop.get("dtype"),
        steps=steps,
        verify=range(steps),
    )
    losses = train(model, optimizer, loss_fn, made, cap, **loop)
    assert cap.finished
    return model, losses


def text_of(dataset):
    return bytes(dataset[()]).decode()


def micro_values(file, step, micro, state="pre"):
    """Values by id for graph_in_torch.run, in FP64, and the masks."""
    graph = json.loads(text_of(file[f"graphs/{micro.attrs['graph']}/json"]))

    def wide(array):
        tensor = torch.tensor(array)
        return tensor.double() if tensor.dtype.is_floating_point else tensor.long()

    values = {f"in{i}": wide(data[()]) for i, data in ((int(k), v) for k, v in micro["inputs"].items())}
    at = "" if file[f"verify/{step}/{state}"].attrs.get("is_start") else f"verify/{step}/{state}/"
    for letter, group in (("p", f"{at}params"), ("b", f"{at}buffers"), ("c", "constants")):
        for name, data in file.get(group, {}).items():
            values[f"{letter}:{name.replace('%2F', '/')}"] = wide(data[()])
    masks = {data.attrs["node"]: unpacked(data) for data in micro.get("rng", {}).values()}
    return graph, values, masks


def test_user_block(tmp_path):
    path = tmp_path / "a.lscap.h5"
    captured(path)
    data = path.read_bytes()
    magic, version, size, length, digest = struct.unpack("<16sIIQ32s", data[:64])
    assert magic == b"LOCKSTEP-CAPTURE" and version == 1 and size == 512
    assert length == len(data) - 512
    assert digest == hashlib.sha256(data[512:]).digest()
    assert not any(data[64:512])
    assert not (tmp_path / "a.lscap.h5.partial").exists()


def test_layout(tmp_path):
    path = tmp_path / "a.lscap.h5"
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    batches = text_batches(12)
    torch.manual_seed(0)
    captured(path, "text", batches=batches, scaler=scaler, clip=0.5, accumulate=2)
    with h5py.File(path) as file:
        assert file.attrs["format"] == "lockstep-capture" and file.attrs["format_version"] == 2
        assert file.attrs["complete"] == 1 and file.attrs["n_steps"] == 3 and file.attrs["replay_mode"] == "full"
        weight = file["params/embed.weight"]
        assert weight.dtype == np.float32 and list(weight.attrs["aliases"]) == ["head.weight"]
        assert "head.weight" not in file["params"]
        hyper = json.loads(file["optimizer/groups/0"].attrs["hyper"])
        assert hyper["lr"] == 1e-2 and hyper["betas"] == [0.9, 0.999] and "params" not in hyper
        assert file["optimizer"].attrs["class"] == "AdamW"
        assert list(file["steps"]) == ["000000", "000001", "000002"]
        assert list(file["verify"]) == ["000000", "000001", "000002"]
        step = file["steps/000001"]
        assert step.attrs["clip_max_norm"] == 0.5 and step.attrs["clip_stage"] == "unscaled"
        assert step.attrs["clip_total_norm"] > 0.5, "nothing was clipped"
        assert list(step["micro"]) == ["000", "001"] and step["micro/000"].attrs["loss_mult"] == 0.5
        assert file["steps/000000"].attrs["scale_after"] == 2.0**10
        assert step.attrs["scale_before"] == 2.0**10 and step.attrs["scale_after"] == 2.0**11
        first = step["micro/000/inputs/0"]
        assert first.dtype == np.int32 and first.attrs["torch_dtype"] == "int64"
        assert np.array_equal(first[()], batches[2]["tokens"].numpy())
        norms = step["grad_norms"][()]
        total = np.sqrt(np.sum(norms[~np.isnan(norms)] ** 2))
        assert abs(total - 0.5) < 1e-5, "the norms are those that entered the optimizer, clipped"
        graph = json.loads(text_of(file["graphs/0/json"]))
        assert len(norms) == len(graph["params"])
        assert [data.attrs["node"] for data in step["micro/000/rng"].values()] == graph["rng"]
        masks = [data for data in file["constants"].values() if np.isinf(data[()]).any()]
        assert len(masks) == 1 and masks[0].attrs["stat_exempt"] == 1, "the causal mask"
        state = file["verify/000001/pre/opt_state/embed.weight"]
        assert state["step"][()] == 1 and state["exp_avg"].shape == weight.shape


@pytest.mark.parametrize(
    "kind,loop", [("images", {}), ("text", {"accumulate": 2, "clip": 1.0}), ("text", {"dtype": torch.bfloat16})]
)
def test_the_file_alone_gives_pytorchs_loss_and_gradients(tmp_path, kind, loop):
    """Gate V1 without Lockstep: the graph run from the file in FP64, compared with ref64."""
    path = tmp_path / "a.lscap.h5"
    captured(path, kind, **loop)
    with h5py.File(path) as file:
        for step in file["verify"]:
            total, grads, wide, buffers = 0.0, {}, {}, {}
            for micro in file[f"steps/{step}/micro"].values():
                graph, values, masks = micro_values(file, step, micro)
                values |= buffers
                for name in [entry["name"] for entry in graph["params"]]:
                    wide.setdefault(name, values[f"p:{name}"].requires_grad_())
                    values[f"p:{name}"] = wide[name]
                loss, found = run(graph, values, masks)
                (loss * micro.attrs["loss_mult"]).backward()
                total += float(loss.detach()) / len(file[f"steps/{step}/micro"])
                for change in graph["mutations"]:
                    slot = change["slot"]
                    buffers[f"b:{change['buffer']}"] = found[change["value"] + (f".{slot}" if slot else "")].detach()
            grads = {name: tensor.grad for name, tensor in wide.items()}
            reference = file[f"verify/{step}/ref64"]
            assert abs(total - reference.attrs["loss"]) <= LOSS_BOUND * abs(total)
            stored = grads64(file[f"verify/{step}"])
            largest = max(np.linalg.norm(data) for data in stored.values())
            assert set(stored) == {name for name, g in grads.items() if g is not None}
            for name, data in stored.items():
                assert data.dtype == np.float64
                far = np.linalg.norm(grads[name].numpy() - data)
                assert far <= GRADIENT_RTOL * np.linalg.norm(data) + GRADIENT_ATOL * largest, name
            for name, tensor in buffers.items():
                after = file[f"verify/{step}/ref32/post/buffers/{name.removeprefix('b:')}"][()]
                assert np.allclose(tensor.numpy(), after, rtol=1e-5, atol=1e-6), name


def test_ref32_and_what_the_loop_did_agree(tmp_path):
    """Without autocast and clipping, ref32 is the loop's own step: same gradients, same weights after it."""
    path = tmp_path / "a.lscap.h5"
    captured(path, "images", optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, nesterov=True))
    with h5py.File(path) as file:
        assert all(step.attrs["grads_are_ref32"] == 1 and "grads" not in step for step in file["steps"].values())
        assert file["verify/000000/pre"].attrs["is_start"] == 1 and not len(file["verify/000000/pre"])
        for kind in ("params", "buffers"):
            for name, data in file[f"verify/000001/pre/{kind}"].items():
                assert np.allclose(
                    data[()], file[f"verify/000000/ref32/post/{kind}/{name}"][()], rtol=1e-6, atol=1e-7
                ), name
        momentum = file["verify/000000/ref32/post/opt_state/fc.weight/momentum_buffer"][()]
        assert np.array_equal(momentum, file["verify/000001/pre/opt_state/fc.weight/momentum_buffer"][()])


def test_kinks_acts_and_noise(tmp_path):
    path = tmp_path / "a.lscap.h5"
    captured(path, "images")
    with h5py.File(path) as file:
        graph = json.loads(text_of(file["graphs/0/json"]))
        place = {node["op"]: node["id"] for node in graph["nodes"]}
        micro = file["verify/000000/micro/000"]
        kink = unpacked(micro[f"kinks/{place['relu']}"])
        assert kink.shape == (6, 4, 8, 8) and 0.1 < kink.mean() < 0.9
        places = micro[f"kinks/{place['max_pool2d']}"][()]
        assert places.shape == (6, 4, 4, 4) and places.max() < 64
        l2, largest, mean, least = micro[f"acts/{place['relu']}"][()]
        assert l2 >= largest > 0 and 0 < least <= largest and mean > 0
        # A convolution's bias before batch_norm has no gradient: what FP32 gives is noise.
        bias = file["verify/000000/noise/conv.bias"]
        assert bias.attrs["count"] == 4 and unpacked(bias).sum() == 4
        assert file["verify/000000/noise/fc.weight"].attrs["count"] < 5 * 64
        roles = {name: (data.attrs["role"], data.attrs["mutated"]) for name, data in file["buffers"].items()}
        assert roles == {
            "bn.running_mean": ("bn_mean", 1),
            "bn.running_var": ("bn_var", 1),
            "bn.num_batches_tracked": ("bn_count", 1),
        }


def test_a_short_last_batch_is_a_second_graph(tmp_path):
    path = tmp_path / "a.lscap.h5"
    captured(path, batches=image_batches(2) + image_batches(1, size=4), steps=3)
    with h5py.File(path) as file:
        assert [file[f"steps/{s}/micro/000"].attrs["graph"] for s in file["steps"]] == [0, 0, 1]
        assert file["graphs/1/json"].attrs["signature"] == "f32[4,1,8,8];i64[4]"


def test_skipped_steps_and_the_scalers_state(tmp_path):
    path = tmp_path / "a.lscap.h5"
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
    model, _ = captured(
        path, "images", steps=6, scaler=scaler, batches=[(images * 100, labels) for images, labels in image_batches(8)]
    )
    with h5py.File(path) as file:
        scale, tracker, skipped = 2.0**127, 0, 0
        for step in file["steps"].values():
            a = step.attrs
            assert a["scale_before"] == scale and a["stepped"] == 1 - a["found_inf"]
            skipped += int(a["found_inf"])
            if a["found_inf"]:
                scale, tracker = scale / 2, 0
            else:
                tracker += 1
                if tracker == 3:
                    scale, tracker = scale * 2, 0
            assert a["scale_after"] == scale and a["growth_tracker_after"] == tracker
        assert 0 < skipped < 6, f"{skipped} of 6 steps were skipped"
        assert file["final"].attrs["scale"] == scale


def test_a_schedulers_learning_rates_stand_in_every_step(tmp_path):
    path = tmp_path / "a.lscap.h5"
    torch.manual_seed(0)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    cap = Capture(path, model, optimizer, image_loss, steps=3)
    train(model, optimizer, image_loss, image_batches(4), cap, scheduler=scheduler)
    with h5py.File(path) as file:
        rates = [json.loads(step.attrs["hyper"])[0]["lr"] for step in file["steps"].values()]
    assert rates == [0.5, 0.25, 0.125]


def test_integers_that_do_not_fit_are_refused(tmp_path):
    from lockstep_capture.write.writer import array_of

    with pytest.raises(CaptureError, match="must fit into 32 bits"):
        array_of(torch.tensor([2**31]), "inputs/0")
    assert array_of(torch.tensor([2**31 - 1]), "inputs/0").dtype == np.int32


def test_work_in_the_background_keeps_its_order_and_its_errors():
    background, done = Background(), []
    for number in range(200):
        background.put(lambda number=number: done.append((number, background.is_here)), 1 << 26)
    background.wait()
    assert done == [(number, True) for number in range(200)] and not background.is_here

    def fails():
        raise OSError("the disk is full")

    background.put(fails)
    with pytest.raises(OSError, match="the disk is full"):
        background.wait()
    with pytest.raises(OSError, match="the disk is full"):
        background.put(lambda: done.append("after a failure"))
    assert len(done) == 200
    background.drop()


def test_a_capture_that_is_collected_within_a_write_is_finished(tmp_path):
    """Python's collector of garbage may run in the thread that writes, where finish() must not wait for itself."""
    path = tmp_path / "cycle.lscap.h5"
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    held = {"capture": Capture(str(path), model, optimizer, lambda m, x: m(x).sum(), steps=8)}
    with held["capture"].step(torch.ones(3, 4)):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    held["itself"] = held
    background, gone = held["capture"]._recorder.writer._background, threading.Event()

    def collects():
        gone.wait()
        gc.collect()

    background.put(collects)
    del held
    gone.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(20)
    deadline = time.time() + 20
    while not path.exists() and time.time() < deadline:
        time.sleep(0.05)
    assert path.exists()
