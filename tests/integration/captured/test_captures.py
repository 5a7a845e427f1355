"""Captures through the whole program: replay, verify, and what is wrong with a file.

The captures are tiny_capture's, written by hand after docs/capture-file.md, with PyTorch's own numbers in them.
"""

import copy
import json

import h5py
import numpy as np
import pytest
import tiny_capture as tiny
import torch
from capture_loops import Images, image_batches, image_loss, train
from lockstep_capture import Capture, read_run
from unsealed import shorten

# What one FP32 step of this network may differ by in the loss: 2^-24 per rounding, some dozens on the way.
STEP_ERROR = 64 * 2.0**-24


@pytest.fixture(scope="module")
def fp32_tree():
    return tiny.make(steps=4)


@pytest.fixture(scope="module")
def amp_tree():
    """FP16 autocast, a scaler that overflows once, a warm start, micro-batches and clipping."""
    return tiny.make(steps=6, amp=torch.float16, scaler=True, overflow_at=1, warm=1, accumulate=2, clip=0.5)


def losses(path, lane):
    with h5py.File(path) as run:
        return run[f"lanes/{lane}/loss"][:]


def gates(text):
    return {line.split()[0]: line.split()[1] for line in text.splitlines() if line[:1] == "V"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"warm": 2, "accumulate": 3},
        {"optimizer": "SGD", "warm": 2, "clip": 0.3},
        {"optimizer": "Adam", "clip": 0.3, "accumulate": 2},
        {"optimizer": "SGD", "clip_value": 0.01},
        {"optimizer": "SGD", "clip": 0.5, "clip_value": 0.03, "warm": 1},
        {"optimizer": "SGD", "clip": 0.02, "norm_type": np.inf, "accumulate": 2},
        {"optimizer": "SGD", "clip": 0.5, "norm_type": 1.0},
        {"optimizer": "SGD", "clip": 0.05, "norm_type": 3.0},
    ],
    ids=[
        "adamw",
        "adamw-warm-accumulate",
        "sgd-clip",
        "adam-clip-accumulate",
        "sgd-value",
        "sgd-clip-value",
        "sgd-infinity-norm",
        "sgd-1-norm",
        "sgd-3-norm",
    ],
)
def test_fp32_replay_takes_the_captured_steps(lockstep, tmp_path, settings):
    capture = tiny.write(tmp_path / "net.h5", tiny.make(steps=5, **settings))
    run = tmp_path / "run.h5"
    lockstep("replay", capture, "--lanes", "fp32,fp64", "-o", run, "--quiet")
    captured = losses(run, "captured")
    assert len(captured) == 5
    if "clip" in settings:
        with h5py.File(run) as file:
            norms, wanted = (file[f"lanes/{lane}/gradient_norm"][0] for lane in ("fp64", "captured"))
        assert abs(norms / wanted - 1) < STEP_ERROR and wanted > settings["clip"], "or nothing was clipped"
    assert np.abs(losses(run, "fp32") / captured - 1).max() < 20 * STEP_ERROR
    assert np.abs(losses(run, "fp64") / captured - 1).max() < 20 * STEP_ERROR


def test_amp_replay_goes_on_with_the_captured_scaler(lockstep, tmp_path, amp_tree):
    capture = tiny.write(tmp_path / "net.h5", amp_tree)
    run = tmp_path / "run.h5"
    lockstep("replay", capture, "--lanes", "fp32,torch-autocast-fp16-cpu", "-o", run, "--quiet")
    with h5py.File(run) as file:
        lane = file["lanes/captured/loss_scale"]
        steps = [amp_tree["steps"][f"{k:06d}"][""] for k in range(6)]
        assert list(lane["scale"][:, 0]) == [s["scale_before"] for s in steps]
        assert list(lane["skipped"][:, 0]) == [1 - s["stepped"] for s in steps] and lane["skipped"][1, 0] == 1
        emulated = file["lanes/torch-autocast-fp16-cpu/loss_scale/scale"][:, 0]
        assert emulated[0] == steps[0]["scale_before"]
        # Nothing of the captured run's tensors was recorded: not measured, which is not zero.
        assert file["lanes/captured/counts/count"][:].max() == 0
        assert np.isnan(file["lanes/captured/moments/abs_max"][:]).all()
        norms = file["lanes/captured/gradient_norm"][:]
        assert norms[0] == steps[0]["clip_total_norm"]


def test_what_no_lane_does_is_said(lockstep, tmp_path):
    """TF32 and the like: a line of verify, replay and report each; nothing where there is nothing to say."""
    tree = tiny.make(steps=3, amp=torch.bfloat16)
    quiet = tiny.write(tmp_path / "quiet.h5", tree)
    assert "note:" not in lockstep("verify", quiet).stdout
    tree["amp"][""] |= {
        "allow_tf32_matmul": np.uint8(1),
        "allow_tf32_cudnn": np.uint8(1),
        "cache_enabled": np.uint8(0),
        "bf16_reduced_precision_reduction": np.uint8(1),
    }
    tree[""]["device"] = "cuda:NVIDIA H100"
    capture, run = tiny.write(tmp_path / "net.h5", tree), tmp_path / "run.h5"
    said = [
        "autocast's weight cache was off",
        "FP32 matrix products and convolutions were allowed TF32",
        "cuBLAS was allowed to round sums to bf16",
    ]
    verified = lockstep("verify", capture).stdout
    replayed = lockstep("replay", capture, "--lanes", "fp32", "-o", run, "--quiet").stderr
    report = " ".join(lockstep("report", run, "--format", "text").stdout.split())
    for note in said:
        assert f"note: {note}" in verified or f"PyTorch's {note}" in verified
        assert note in replayed and note in report
    tree["amp"][""] |= {"cache_enabled": np.uint8(1), "cpu_products": "bf16"}
    tree[""]["device"] = "cpu"
    notes = [line for line in lockstep("verify", tiny.write(capture, tree)).stdout.splitlines() if "note:" in line]
    assert notes == ["note: PyTorch's FP32 products on the CPU were allowed bf16 inside, which no lane models"]


@pytest.mark.parametrize("threads", [0, -1, 4097, 2**32])
def test_threads_are_a_number_of_threads(lockstep, tmp_path, threads):
    tree = tiny.make(steps=1, amp=torch.bfloat16)
    tree["amp"][""] |= {"threads": np.int64(threads)}
    said = lockstep("verify", tiny.write(tmp_path / "net.h5", tree), code=2).stderr
    assert f"threads is {threads}, must be in 1..4096" in said


def test_steps_end_with_the_capture_or_cycle(lockstep, tmp_path, fp32_tree):
    capture = tiny.write(tmp_path / "net.h5", fp32_tree)
    run = tmp_path / "run.h5"
    assert "--cycle" in lockstep("replay", capture, "--steps", 6, "-o", run, code=2).stderr
    lockstep("replay", capture, "--steps", 6, "--cycle", "-o", run, "--quiet")
    with h5py.File(run) as file:
        assert file["lanes/fp32/loss"].shape[0] == 6
        assert "captured" not in file["lanes"]  # it ended before this run did
        lr = file["lanes/fp32/lr"][:, 0]
        assert lr[4] == lr[0] and lr[1] != lr[0]


def test_a_stopped_replay_goes_on(lockstep, tmp_path, fp32_tree):
    capture = tiny.write(tmp_path / "net.h5", fp32_tree)
    whole, again = tmp_path / "whole.h5", tmp_path / "again.h5"
    arguments = ("--lanes", "fp32,torch-autocast-bf16-cpu", "--checkpoint-every", 1, "--quiet")
    lockstep("replay", capture, *arguments, "-o", whole)
    lockstep("replay", capture, *arguments, "-o", again)
    tiny.write(capture, tiny.make(steps=4, seed=1))
    with h5py.File(again, "r+") as file:
        shorten(file, 2)
    assert "SHA-256" in lockstep("replay", "--resume", again, code=2).stderr
    tiny.write(capture, fp32_tree)
    lockstep("replay", "--resume", again, "--quiet")
    with h5py.File(whole) as a, h5py.File(again) as b:
        assert b.attrs["steps_complete"] == 4
        for lane in ("fp32", "torch-autocast-bf16-cpu"):
            assert (a[f"lanes/{lane}/bits_hash"][:] == b[f"lanes/{lane}/bits_hash"][:]).all()


def test_every_gate_passes(lockstep, tmp_path, fp32_tree, amp_tree):
    fp32 = tiny.write(tmp_path / "fp32.h5", fp32_tree)
    found = gates(lockstep("verify", fp32).stdout)
    assert found == {"V0": "PASS", "V1": "PASS", "V3": "PASS", "V4": "PASS", "V5": "PASS", "V6": "n/a", "V7": "n/a"}
    amp = tiny.write(tmp_path / "amp.h5", amp_tree)
    assert set(gates(lockstep("verify", amp).stdout).values()) == {"PASS"}
    bf16 = tiny.write(tmp_path / "bf16.h5", tiny.make(amp=torch.bfloat16))
    assert gates(lockstep("verify", bf16).stdout)["V7"] == "PASS"


def test_a_policy_of_several_workers_is_refused(lockstep, tmp_path):
    policy = tmp_path / "four.toml"
    policy.write_text('extends = "pure-bf16"\n[all_reduce]\nworkers = 4\n')
    capture = tiny.write(tmp_path / "net.h5", tiny.make())
    refused = lockstep("replay", capture, "--lanes", f"fp32,{policy}", "-o", tmp_path / "run.h5", code=2).stderr
    assert "[all_reduce] workers = 4: a capture holds the batches of one worker" in refused


def test_an_optimizer_that_is_not_modelled_leaves_the_gradients(lockstep, tmp_path):
    capture = tiny.write(tmp_path / "net.h5", tiny.make(optimizer="Adamax"))
    found = gates(lockstep("verify", capture).stdout)
    assert (found["V1"], found["V3"], found["V5"]) == ("PASS", "PASS", "n/a")
    assert "Adamax" in lockstep("replay", capture, "-o", tmp_path / "run.h5", code=2).stderr


def test_reports_show_the_verification(lockstep, tmp_path, fp32_tree):
    capture = tiny.write(tmp_path / "net.h5", fp32_tree)
    run = tmp_path / "run.h5"
    lockstep("replay", capture, "-o", run, "--quiet")
    assert "has not been verified" in lockstep("report", run).stdout
    lockstep("verify", capture)
    assert "passed: V0 PASS" in " ".join(lockstep("report", run).stdout.split())
    later = tmp_path / "later.h5"
    lockstep("replay", capture, "-o", later, "--quiet")
    (tmp_path / "net.h5.verify.json").unlink()
    assert "has not been verified" in lockstep("report", run).stdout
    assert "passed: V0 PASS" in " ".join(lockstep("report", later).stdout.split())  # it kept a copy
    # A result of another capture is none.
    lockstep("verify", capture)
    tiny.write(capture, tiny.make(steps=4, seed=1))
    lockstep("replay", capture, "-o", later, "--overwrite", "--quiet")
    assert "has not been verified" in lockstep("report", later).stdout


# --- what a gate finds -------------------------------------------------------------------------


def edit_graph(tree, change):
    array, attrs = tree["graphs"]["0"]["json"]
    graph = json.loads(bytes(array))
    change(graph)
    tree["graphs"]["0"]["json"] = (tiny.text(json.dumps(graph))[0], attrs)


def wrong_eps(tree):
    edit_graph(tree, lambda g: g["nodes"][1]["attrs"].update(eps=1e-3))


def wrong_gradient(tree):
    array, attrs = tree["verify"]["000000"]["ref32"]["grads"]["fc2.weight"]
    tree["verify"]["000000"]["ref32"]["grads"]["fc2.weight"] = (array * 1.001, attrs)


def wrong_loss(tree):
    """PyTorch's FP32 alone is off, by more than rounding: that is no noise of FP32."""
    attrs = tree["verify"]["000000"]["ref32"][""]
    attrs["loss"] *= 1 + 5e-6


def wrong_buffer(tree):
    post = tree["verify"]["000000"]["ref32"]["post"]["buffers"]
    post["bn.running_mean"] = (post["bn.running_mean"][0] * 1.01, {})


def wrong_step_count(tree):
    post = tree["verify"]["000000"]["ref32"]["post"]["opt_state"]
    post["fc1.bias"]["step"] = tiny.dataset(np.asarray(7.0))


def unseen_buffers(tree):
    """The graph leaves the buffers alone, and so did whoever computed the reference; the captured run did not."""
    graph = json.loads(tree["graphs"]["0"]["json"][0].tobytes())
    tree["graphs"]["0"]["json"] = tiny.text(json.dumps({**graph, "mutations": []}))
    for verify in tree["verify"].values():
        verify["ref32"]["post"]["buffers"] = verify["pre"]["buffers"]


def wrong_weight(tree):
    post = tree["verify"]["000000"]["ref32"]["post"]["params"]
    post["fc1.weight"] = (post["fc1.weight"][0] * (1 + 1e-4), {})


def wrong_scale(tree):
    tree["steps"]["000002"][""]["scale_after"] = 3.0


def wrong_autocast(tree):
    for step in tree["steps"].values():
        if "grads" in step:
            noise = np.random.default_rng(0)
            step["grads"] = {
                k: ((a + 0.1 * np.abs(a).max() * noise.standard_normal(a.shape)).astype(np.float32), b)
                for k, (a, b) in step["grads"].items()
            }


def not_the_model(tree):
    tree[""]["v0"] = "differs by 1e-3"


@pytest.mark.parametrize(
    "gate, damage",
    [
        ("V0", not_the_model),
        ("V1", wrong_eps),
        ("V3", wrong_gradient),
        ("V3", wrong_loss),
        ("V4", wrong_buffer),
        ("V4", unseen_buffers),
        ("V5", wrong_weight),
        ("V5", wrong_step_count),
        ("V6", wrong_scale),
        ("V7", wrong_autocast),
    ],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_gate_fails(lockstep, tmp_path, amp_tree, gate, damage):
    tree = copy.deepcopy(amp_tree)
    damage(tree)
    done = lockstep("verify", tiny.write(tmp_path / "net.h5", tree), code=1)
    failed = {name for name, status in gates(done.stdout).items() if status == "FAIL"}
    assert gate in failed
    if damage is wrong_eps:
        assert "first node that differs: n1 batch_norm in layer 'bn'" in done.stdout
    elif damage is unseen_buffers:
        assert failed == {"V4"}
        assert "buffer 'bn.running_mean' changed in the captured run between steps 0 and 3, but no graph" in done.stdout
    elif damage is wrong_gradient:
        assert failed == {"V3", "V5"}  # the optimizer is fed this gradient
    else:
        assert failed == {gate}
    assert json.loads((tmp_path / "net.h5.verify.json").read_text())["passed"] is False


def test_kinks_explain_a_flip(lockstep, tmp_path, fp32_tree):
    """PyTorch is said to have taken the other side of a relu whose operand is almost zero."""
    tree = copy.deepcopy(fp32_tree)
    verify = tree["verify"]["000000"]
    # One pre-activation is put on the kink exactly: a batch norm of nothing but its bias, which is tiny.
    for name in ("bn.weight", "bn.bias"):
        array = verify["pre"]["params"][name][0].copy()
        array[0] = 0.0 if name == "bn.weight" else 1e-7
        verify["pre"]["params"][name] = (array, {})
    model = tiny.Net()
    model.load_state_dict(
        {
            **{k: torch.from_numpy(v[0].copy()) for k, v in verify["pre"]["params"].items()},
            **{k: torch.from_numpy(v[0].copy()) for k, v in verify["pre"]["buffers"].items()},
        }
    )
    micro = tree["steps"]["000000"]["micro"]["000"]
    x, y = (torch.from_numpy(micro["inputs"][k][0].copy()) for k in "01")
    mask = torch.from_numpy(
        np.unpackbits(micro["rng"]["0"][0])[: tiny.BATCH * tiny.HIDDEN]
        .reshape(tiny.BATCH, tiny.HIDDEN)
        .astype(np.float32)
    )

    def reference(flip, dtype):
        net = copy.deepcopy(model).to(dtype)
        before = net.bn(net.fc1(x.to(dtype)))
        positive = (before > 0).to(dtype)
        if flip:
            positive[:, 0] = 0
        loss = torch.nn.functional.cross_entropy(net.fc2(before * positive * mask.to(dtype) / (1 - tiny.P)), y.long())
        loss.backward()
        return loss.item(), net, positive.detach().numpy()

    loss64, net64, _ = reference(False, torch.float64)
    verify["ref64"] = {
        "": tiny.Attr(loss=loss64),
        "grads": tiny.tensors(((n, p.grad) for n, p in net64.named_parameters()), np.float64),
    }
    loss32, net32, positive = reference(True, torch.float32)
    verify["ref32"] = {
        "": tiny.Attr(loss=loss32),
        "grads": tiny.tensors((n, p.grad) for n, p in net32.named_parameters()),
    }
    verify["noise"] = {}
    verify["micro"]["000"]["kinks"]["n2"] = tiny.packed(positive > 0)
    del tree["verify"]["000002"], tree["verify"]["000003"]
    capture = tiny.write(tmp_path / "net.h5", tree)
    done = lockstep("verify", capture)
    line = next(line for line in done.stdout.splitlines() if line.startswith("V3"))
    assert line.split()[1] == "PASS" and f"{tiny.BATCH} kink flips" in line
    # Without the record of the choices it is a failure.
    del verify["micro"]["000"]["kinks"]["n2"]
    assert gates(lockstep("verify", tiny.write(capture, tree), code=1).stdout)["V3"] == "FAIL"


def test_a_loss_that_fp32_does_not_determine_is_judged_by_its_noise(lockstep, tmp_path):
    """Logits of 1e5 that differ by a little: FP32's loss is off by what it rounds there, in PyTorch as here."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 5))
    x = torch.randn(64, 64)
    batch = (x, model(x).argmax(1))

    def loss_of(model, batch):
        return torch.nn.functional.cross_entropy(model(batch[0]) * 300 + 1e5, batch[1])

    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    cap = Capture(tmp_path / "net.h5", model, optimizer, loss_of, steps=1)
    with cap.step(batch):
        loss_of(model, batch).backward()
        optimizer.step()
    line = next(line for line in lockstep("verify", tmp_path / "net.h5").stdout.splitlines() if line.startswith("V3"))
    assert (
        line.split()[1] == "PASS" and ", judged by a floor: 3 times the error of FP32 against FP64 in step 0)" in line
    )


# --- bad files ----------------------------------------------------------------------------------


def remove(*path):
    def change(tree):
        node = tree
        for part in path[:-1]:
            node = node[part]
        del node[path[-1]]

    return change


def replace(value, *path):
    def change(tree):
        node = tree
        for part in path[:-1]:
            node = node[part]
        node[path[-1]] = value

    return change


MICRO = ("steps", "000001", "micro", "000")
BAD = {
    "newer": (replace(np.int32(3), "", "format_version"), "format_version is 3, must be 1 to 2"),
    "unfinished": (replace(np.uint8(0), "", "complete"), "complete is 0"),
    "no graph": (remove("graphs", "0", "json"), "/graphs/0/json: is missing"),
    "no parameter": (remove("params", "fc1.bias"), "/params/fc1.bias: is missing"),
    "no batch": (remove(*MICRO, "inputs", "0"), "/steps/000001/micro/000/inputs/0: is missing"),
    "no mask": (remove(*MICRO, "rng", "0"), "no mask of node n3 (dropout)"),
    "wrong shape": (
        replace(tiny.dataset(np.zeros((3, 3), np.float32)), "params", "fc1.weight"),
        "is float32[3, 3], must be float32[16, 8]",
    ),
    "wrong type": (
        replace(tiny.dataset(np.zeros((16, 8), np.int32)), "params", "fc1.weight"),
        "is int32[16, 8], must be float32[16, 8]",
    ),
    "wrong mask": (
        replace(
            (np.zeros(2, np.uint8), {"node": "n3", "p": 0.25, "shape": np.array([8, 2], np.int64)}), *MICRO, "rng", "0"
        ),
        "shape [8, 2] does not fit node n3",
    ),
    "unknown op": (lambda tree: edit_graph(tree, lambda g: g["nodes"][2].update(op="relux")), "'relux': unknown"),
    "backwards": (lambda tree: edit_graph(tree, lambda g: g["nodes"][2].update({"in": ["n4"]})), "not defined before"),
    "no lr": (replace("[{}]", "steps", "000000", "", "hyper"), "hyper: lr is missing"),
    "no norm": (
        replace(-1.0, "steps", "000000", "", "clip_norm_type"),
        "clip_norm_type is -1: a positive number or infinity required",
    ),
    "NaN norm": (replace(float("nan"), "steps", "000000", "", "clip_norm_type"), "clip_norm_type is nan: a positive"),
    "n_steps": (replace(np.int32(9), "", "n_steps"), "has 6 steps, n_steps is 9"),
    "text for number": (replace("much", "steps", "000000", "", "loss"), "attribute loss must be one number, is text"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_content_is_refused(lockstep, tmp_path, amp_tree, name):
    damage, message = BAD[name]
    tree = copy.deepcopy(amp_tree)
    damage(tree)
    capture = tiny.write(tmp_path / "net.h5", tree)
    for command in (["verify", capture], ["replay", capture, "-o", tmp_path / "run.h5"]):
        assert message in lockstep(*command, code=2).stderr
    assert not (tmp_path / "run.h5").exists()


def test_a_norm_that_changes_on_the_way(lockstep, tmp_path, amp_tree):
    tree = copy.deepcopy(amp_tree)
    replace(np.inf, "steps", "000003", "", "clip_norm_type")(tree)
    capture, run = tiny.write(tmp_path / "net.h5", tree), tmp_path / "run.h5"
    lockstep("verify", capture)
    assert (
        "step 3 clips at inf-norm 0.5, value 0, step 0 at 2-norm 0.5, value 0: a replay clips all steps in one way; --steps 3"
        in lockstep("replay", capture, "-o", run, code=2).stderr
    )
    lockstep("replay", capture, "--steps", 3, "-o", run, "--quiet")


def test_all_problems_at_once(lockstep, tmp_path, amp_tree):
    tree = copy.deepcopy(amp_tree)
    for damage, _ in (BAD["no parameter"], BAD["no batch"], BAD["no lr"]):
        damage(tree)
    stderr = lockstep("verify", tiny.write(tmp_path / "net.h5", tree), code=2).stderr
    assert all(BAD[name][1] in stderr for name in ("no parameter", "no batch", "no lr"))


def test_damaged_files_are_refused(lockstep, tmp_path, fp32_tree):
    capture = tiny.write(tmp_path / "net.h5", fp32_tree)
    good = capture.read_bytes()

    def refused(data, message):
        capture.write_bytes(data)
        assert message in lockstep("verify", capture, code=2).stderr

    refused(good[:-100], "the file is truncated")
    refused(good[:300], "the file is truncated")
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    refused(bytes(flipped), "SHA-256")
    refused(b"\x89HDF" + good[4:], "does not begin with LOCKSTEP-CAPTURE")
    refused(good[:16] + b"\x02" + good[17:], "version 2, must be 1")
    refused(b"", "does not begin with LOCKSTEP-CAPTURE")
    capture.write_bytes(good)
    lockstep("verify", capture)
    assert "No such file" in lockstep("verify", tmp_path / "none.h5", code=2).stderr


def test_links_out_of_the_file_are_refused(lockstep, tmp_path, fp32_tree):
    capture = tiny.write(tmp_path / "net.h5", fp32_tree)
    with h5py.File(capture, "r+") as file:
        file["params/more"] = h5py.ExternalLink("/etc/passwd", "/")
    tiny.seal(capture)
    assert "is not a hard link" in lockstep("verify", capture, code=2).stderr


# --- the captured run and the emulated ones ------------------------------------------------------


def overflowing(path):
    """FP16 autocast, begun at a loss scale that is far too large: PyTorch itself skips the first steps."""
    torch.manual_seed(3)
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=100)
    cap = Capture(path, model, optimizer, image_loss, scaler=scaler, autocast=torch.float16, steps=8)
    train(model, optimizer, image_loss, image_batches(8), cap, scaler=scaler, dtype=torch.float16)
    return path


def test_the_scalers_decisions_are_compared_with_the_captured_ones(lockstep, tmp_path, amp_tree):
    lane = "torch-autocast-fp16-cpu"
    capture, run = overflowing(tmp_path / "real.h5"), tmp_path / "run.h5"
    lockstep("replay", capture, "--lanes", f"fp32,{lane}", "-o", run, "--quiet")
    with h5py.File(run) as file:
        found, captured = (file[f"lanes/{name}/loss_scale/found_inf"][:, 0] for name in (lane, "captured"))
    assert 0 < captured.sum() < 8 and list(found) == list(captured)
    text = " ".join(lockstep("report", run).stdout.split())
    assert f"compared with the captured run's: {lane} agrees in 8 steps." in text
    # An infinity that only the real machine met, in step 1.
    capture = tiny.write(tmp_path / "tiny.h5", amp_tree)
    told = lockstep(
        "replay", capture, "--lanes", f"fp32,{lane}", "-o", run, "--overwrite"
    ).stdout  # in the summary, too
    for text in (told, lockstep("report", run).stdout):
        assert (
            f"{lane} first disagrees in step 1: found_inf 0 at scale 2^11, captured found_inf 1 at scale 2^11."
            in " ".join(text.split())
        )


def test_captured_gradient_norms_stand_beside_the_emulated_ones(lockstep, tmp_path):
    capture, run = overflowing(tmp_path / "real.h5"), tmp_path / "run.h5"
    lane = "torch-autocast-fp16-cpu"
    lockstep("replay", capture, "--lanes", f"fp32,fp64,{lane}", "-o", run, "--quiet")
    with h5py.File(capture) as file:
        wanted = np.stack([file[f"steps/{k:06d}/grad_norms"][()] for k in range(8)])
        by_hand = {
            name: np.linalg.norm(file[f"verify/000000/ref32/grads/{name}"][()].astype(np.float64))
            for name in file["verify/000000/ref32/grads"]
        }
    with h5py.File(run) as file:
        names = [p["name"] for p in json.loads(file["graph"].asstr()[()])["params"]]
        norms = {name: file[f"lanes/{name}/gradient_norms"][()] for name in ("captured", "fp32", "fp64", lane)}
    table = read_run(run).gradient_norms(lane)
    assert list(table.columns) == names and np.array_equal(table.to_numpy(), norms[lane], equal_nan=True)
    np.testing.assert_array_equal(norms["captured"], wanted)  # Images has one order of parameters
    # Gate V3's bound, for what FP32 determines (not the convolution's bias in front of a batch norm).
    real = [i for i, name in enumerate(names) if name != "conv.bias"]
    for reference in ("fp32", "fp64"):
        for i in real:
            assert abs(norms[reference][0, i] / by_hand[names[i]] - 1) < 1e-5, names[i]
    # Skipped steps have what the scaler found; the others FP16's rounding, 2^-11, some dozens of times.
    skipped = ~np.isfinite(wanted).all(axis=1)
    assert 0 < skipped.sum() < 8 and not np.isfinite(norms[lane][skipped]).all(axis=1).any()
    ratio = norms[lane][~skipped][:1, real] / wanted[~skipped][:1, real]
    assert np.abs(ratio - 1).max() < 64 * 2.0**-11
    first = int(np.flatnonzero(~skipped)[0])
    section = lockstep("report", run).stdout.split("Gradients compared with the captured ones")[1]
    assert f"step {first}" in section and "captured" in section and lane in section


def test_what_was_not_recorded_is_not_measured(lockstep, tmp_path, fp32_tree):
    tree = copy.deepcopy(fp32_tree)
    for step in tree["steps"].values():
        step.pop("grad_norms")
    capture, run = tiny.write(tmp_path / "net.h5", tree), tmp_path / "run.h5"
    lockstep("replay", capture, "-o", run, "--quiet")
    with h5py.File(run) as file:
        assert np.isnan(file["lanes/captured/gradient_norms"][()]).all()
        assert (file["lanes/fp32/gradient_norms"][()] > 0).all()
    text = lockstep("report", run).stdout
    assert "captured: not measured." in text and "Gradients compared with the captured ones" not in text
