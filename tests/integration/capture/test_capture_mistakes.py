"""Loops that a capture cannot hold, and captures that fail: one clear error, and training as if nothing had been asked."""

import json
import os
import pathlib
import subprocess
import sys
import traceback

import h5py
import numpy as np
import pytest
import torch
from capture_loops import Images, Loop, image_batches, image_loss, steps_in
from conftest import SOURCE
from lockstep_capture import Capture, CaptureError, capture
from torch.nn.utils import clip_grad, clip_grad_norm_, clip_grad_value_

nn = torch.nn
BATCHES = image_batches(6)


def patched():
    """All that a block replaces."""
    return [
        torch.autograd.backward,
        torch.Tensor.register_hook,
        torch.autocast.__enter__,
        torch.amp.GradScaler.scale,
        clip_grad._get_total_norm,
        clip_grad._clip_grads_with_norm_,
        clip_grad._group_tensors_by_device_and_dtype,
        torch.autograd.function.FunctionMeta.__dict__.get("__getattribute__"),
    ]


@pytest.fixture(autouse=True)
def nothing_stays_replaced():
    before = patched()
    yield
    assert patched() == before


# ---- the loop's own errors


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("place", ["forward", "backward", "step"])
def test_an_error_in_the_block_keeps_the_whole_steps(tmp_path, kind, place):
    path = tmp_path / "a.h5"
    loop = Loop(path, steps=4)
    for batch in BATCHES[:2]:
        loop(batch)
    with pytest.warns(UserWarning, match=f"raised {kind.__name__}: .*a.h5 has the 2 steps before it"):
        with pytest.raises(kind):
            with loop.block(BATCHES[2]):
                if place != "forward":
                    loop.backward(BATCHES[2])
                if place == "step":
                    loop.step()
                raise kind
    assert loop.cap.finished and steps_in(path) == (2, 2, False) and len(list(tmp_path.iterdir())) == 1
    assert not loop.optimizer._optimizer_step_pre_hooks and not loop.optimizer._optimizer_step_post_hooks
    loop(BATCHES[3])  # training goes on


def test_an_error_before_the_first_step_leaves_nothing(tmp_path):
    loop = Loop(tmp_path / "a.h5")
    with pytest.warns(UserWarning, match="no step was complete"), pytest.raises(ZeroDivisionError):
        with loop.cap:
            with loop.block(BATCHES[0]):
                loop.backward(BATCHES[0])
            1 / 0
    assert list(tmp_path.iterdir()) == []


def test_a_loop_that_ends_within_an_accumulation(tmp_path):
    """The last micro-batch is left out, and with it the final state, which has seen it."""
    path = tmp_path / "a.h5"
    loop = Loop(path, steps=4)
    with loop.cap:
        loop(BATCHES[0])
        with loop.block(BATCHES[1]):
            loop.backward(BATCHES[1])
    assert steps_in(path) == (1, 1, False)
    with Loop(tmp_path / "b.h5", steps=4).cap as cap:
        pass
    assert cap.finished and not (tmp_path / "b.h5").exists()


def test_the_final_state_is_that_of_the_last_step(tmp_path):
    path = tmp_path / "a.h5"
    loop = Loop(path)
    loop(BATCHES[0]), loop(BATCHES[1])
    assert steps_in(path) == (2, 2, True)
    with h5py.File(path) as file:
        assert np.array_equal(file["final/params/fc.weight"], loop.model.fc.weight.detach())


# ---- what the loop does that a replay would not


def behind_the_back(loop, batch):
    loop(batch)
    with torch.no_grad():
        loop.model.fc.weight.clamp_(-0.01, 0.01)


def between_step_and_end(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        loop.step()
        loop.model.fc.weight.data.clamp_(-0.01, 0.01)


def second_optimizer(loop, batch):
    other = torch.optim.SGD(loop.model.conv.parameters(), lr=0.1)
    loop.optimizer.param_groups[0]["params"] = list(loop.model.fc.parameters())
    with loop.block(batch):
        loop.backward(batch)
        other.step()
        loop.step()


def step_outside(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
    loop.step()


def forward_outside(loop, batch):
    loop(batch)
    loop.model(batch[0])


def half_an_accumulation(loop, batch):
    if loop.model.fc.weight.grad is None:
        image_loss(loop.model, batch).backward()
    loop(batch)


def zeroed_between(loop, batch):
    for last in (False, True):
        with loop.block(batch):
            loop.optimizer.zero_grad()
            loop.backward(batch)
            if last:
                loop.step()


def part_is_clipped(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        clip_grad_norm_(loop.model.fc.parameters(), 0.1)
        loop.step()


def clipped_by_parts(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        clip_grad_norm_(loop.model.parameters(), 0.1)
        clip_grad_norm_(loop.model.parameters(), 0.05)
        loop.step()


def clipped_too_early(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        clip_grad_norm_(loop.model.parameters(), 0.1)


def unknown_scaler(loop, batch):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with loop.block(batch):
        scaler.scale(image_loss(loop.model, batch)).backward()
        scaler.step(loop.optimizer)


def backward_behind_the_step(loop, batch):
    with loop.block(batch):
        loop.step()
        loop.backward(batch)


def gradient_by_hand(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        loop.model.fc.weight.grad *= 1.2
        loop.step()


def gradient_doubled(loop, batch):
    """Adds the same bit to each of 320 numbers."""
    with loop.block(batch):
        loop.backward(batch)
        loop.model.fc.weight.grad *= 2
        loop.step()


def gradient_negated(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        loop.model.fc.weight.grad.neg_()
        loop.step()


def weight_decay_by_hand(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        for p in loop.model.parameters():
            p.grad.add_(p.detach(), alpha=1e-6)
        loop.step()


def gradient_by_its_data(loop, batch):
    """Behind the back of version counters."""
    with loop.block(batch):
        loop.backward(batch)
        loop.model.fc.bias.grad.data.mul_(1 - 2**-20)
        loop.step()


def gradient_taken_away(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        loop.model.fc.bias.grad = None
        loop.step()


def changed_between_micro_batches(loop, batch):
    for last in (False, True):
        with loop.block(batch):
            loop.backward(batch)
            if last:
                loop.step()
        if not last:
            loop.model.fc.bias.grad.neg_()


def changed_behind_the_clipping(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        clip_grad_norm_(loop.model.parameters(), 0.1)
        clip_grad_value_(loop.model.parameters(), 0.01)
        loop.model.fc.bias.grad.mul_(0.99)
        loop.step()


def changed_before_the_clipping(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        loop.model.fc.bias.grad.mul_(0.99)
        clip_grad_norm_(loop.model.parameters(), 0.1)
        loop.step()


def hook_on_a_weight(loop, batch):
    if loop.model.fc.weight._backward_hooks is None:
        loop.model.fc.weight.register_hook(lambda grad: (1 - 2**-20) * grad)
    loop(batch)


def line_search(loop, batch):
    loop.optimizer.__class__ = type("Twice", (torch.optim.SGD,), {"step": lambda self, closure: (closure(), closure())})
    loop.optimizer._patch_step_function()
    with loop.block(batch):
        loop.optimizer.step(lambda: loop.backward(batch))


def another_group(loop, batch):
    with loop.block(batch):
        loop.backward(batch)
        if loop.optimizer.param_groups[-1]["lr"] == 0.1:
            loop.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 1.0})
        loop.step()


def block_in_a_block(loop, batch):
    with loop.block(batch):
        loop(batch)


def rows_change_places(loop, batch):
    with torch.no_grad():
        loop.model.fc.weight.copy_(loop.model.fc.weight.flip(0))
    loop(batch)


MISTAKES = {
    rows_change_places: "1 weights changed between two blocks, e.g. fc.weight",
    behind_the_back: "1 weights changed between two blocks, e.g. fc.weight",
    between_step_and_end: "1 weights changed in the block, after optimizer.step",
    second_optimizer: r"2 weights outside of the optimizer changed before optimizer.step.*, e.g. conv.weight",
    step_outside: r"\d weights changed between two blocks",
    forward_outside: "3 buffers changed between two blocks, e.g. bn.running_mean",
    half_an_accumulation: "some existed before the step's first backward",
    zeroed_between: "those of the step's earlier micro-batches are gone",
    part_is_clipped: "clip_grad_norm_ on other gradients than the optimizer's .*test_capture_mistakes.py:",
    clipped_by_parts: "clip_grad_norm_ after another clipping",
    clipped_too_early: "clipping before the step's last micro-batch",
    unknown_scaler: "a GradScaler that the capture does not know .*scaler=scaler",
    backward_behind_the_step: r"backward\(\) after optimizer.step\(\)",
    gradient_by_hand: r"1 of 6 gradients changed before optimizer.step\(\): fc.weight \(norm now \d",
    weight_decay_by_hand: r"5 of 6 gradients .*: conv.weight \(.* and 1 more; .* is the optimizer's weight_decay",
    gradient_doubled: r"1 of 6 gradients changed before optimizer.step\(\): fc.weight",
    gradient_negated: r"1 of 6 gradients changed before optimizer.step\(\): fc.weight",
    gradient_by_its_data: r"1 of 6 gradients changed before optimizer.step\(\): fc.bias",
    gradient_taken_away: r"1 of 5 gradients changed before optimizer.step\(\): fc.bias is gone",
    changed_between_micro_batches: "1 of 6 gradients changed between two micro-batches: fc.bias",
    changed_behind_the_clipping: r"1 of 6 gradients changed before optimizer.step\(\): fc.bias",
    changed_before_the_clipping: r"1 of 6 gradients changed after backward\(\): fc.bias",
    hook_on_a_weight: "a hook of a parameter that changes its gradient  x1  in fc.weight",
    line_search: "a closure that runs twice",
    another_group: "the optimizer's groups, were replaced",
    block_in_a_block: "a block inside a block",
}


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda f: f.__name__)
def test_what_a_replay_would_not_do_is_an_error(tmp_path, mistake):
    loop = Loop(tmp_path / "a.h5", steps=3)
    with pytest.raises(CaptureError, match=MISTAKES[mistake]):
        for batch in BATCHES[:3]:
            mistake(loop, batch)
    if mistake is not block_in_a_block:  # the inner one is refused, the outer one's error ends the capture
        assert loop.cap.finished
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "mistake",
    [m for m in MISTAKES if m not in (block_in_a_block, line_search, another_group)],
    ids=lambda f: f.__name__,
)
def test_and_reported_it_leaves_the_loop_alone(tmp_path, mistake):
    """on_unsupported="report": one warning; weights and random numbers as without a capture."""

    def trained(path, **options):
        loop = Loop(path, steps=3, **options)
        for batch in BATCHES[:3]:
            mistake(loop, batch)
        return [t.clone() for t in loop.model.state_dict().values()], torch.random.get_rng_state()

    alone = trained(None)
    with pytest.warns(UserWarning, match=MISTAKES[mistake]):
        watched = trained(tmp_path / "a.h5", on_unsupported="report")
    assert all(torch.equal(a, b) for a, b in zip(watched[0], alone[0], strict=True))
    assert torch.equal(watched[1], alone[1]) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", [lambda grad: grad.zero_(), lambda grad: grad.mul_(0.96)], ids=["zero", "times"])
def test_gradients_changed_in_a_step_without_references(tmp_path, change):
    loop = Loop(tmp_path / "a.h5", steps=3, verify=[0])
    loop(BATCHES[0])
    with pytest.raises(CaptureError, match=r"1 of 6 gradients changed before optimizer.step\(\): fc.weight"):
        with loop.block(BATCHES[1]):
            loop.backward(BATCHES[1])
            change(loop.model.fc.weight.grad)
            loop.step()


# ---- failures of the capture itself


@pytest.mark.parametrize(
    "place",
    [
        "lockstep_capture.watch.forward_pass.ForwardPass.replay",
        "lockstep_capture.watch.watcher.check_gradients",
        "lockstep_capture.write.recorder.Recorder._verify",
        "lockstep_capture.trace.traced.analyse",
        "lockstep_capture.watch.hooks._watch_clipping",
    ],
)
def test_a_failure_of_the_capture_is_no_failure_of_the_loop(tmp_path, monkeypatch, place):
    def fail(*args, **kwargs):
        raise RuntimeError("no more memory")

    alone = [Loop(None)(batch) for batch in BATCHES[:1]]
    monkeypatch.setattr(place, fail)
    loop = Loop(tmp_path / "a.h5", on_unsupported="report")
    with pytest.warns(UserWarning, match="the capture failed, training did not: RuntimeError: no more memory"):
        assert [loop(batch) for batch in BATCHES[:1]] == alone
    with pytest.raises(
        CaptureError, match=r"training did not: .* \(test_capture_mistakes.py:\d+; LOCKSTEP_FRAMES=1"
    ) as found:
        Loop(tmp_path / "b.h5")(BATCHES[0])
    assert list(tmp_path.iterdir()) == []
    assert _frames_of_the_capture(found.value) == 0
    monkeypatch.setenv("LOCKSTEP_FRAMES", "1")
    with pytest.raises(CaptureError) as found:
        Loop(tmp_path / "c.h5")(BATCHES[0])
    assert _frames_of_the_capture(found.value) > 0


def _frames_of_the_capture(error):
    """Of its cause: those in the package."""
    frames = traceback.extract_tb(error.__cause__.__traceback__)
    return sum("/lockstep_capture/" in frame.filename for frame in frames)


def test_ctrl_c_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    loop = Loop(tmp_path / "a.h5")
    monkeypatch.setattr("lockstep_capture.write.recorder.Recorder._verify", interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop(BATCHES[0])
    assert loop.cap.finished and list(tmp_path.iterdir()) == []


FULL = """
import resource, signal, sys
sys.path[:0] = sys.argv[2:]
import torch
from capture_loops import Loop, image_batches
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
loop = Loop(sys.argv[1], steps=6, on_unsupported="report")
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
print([loop(batch) for batch in image_batches(6)])
"""


def test_a_full_disk(tmp_path):
    """A limit on the file's size in its place: HDF5 cannot even close the file then."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            FULL,
            str(tmp_path / "a.h5"),
            str(SOURCE / "tests/integration/support"),
            str(SOURCE / "python"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    loop = Loop(None)
    assert json.loads(done.stdout) == [loop(batch) for batch in BATCHES]
    assert "a.h5 could not be written" in done.stderr and list(tmp_path.iterdir()) == [], done.stderr


def test_paths_and_objects_are_judged_before_training(tmp_path):
    model = Images()
    with pytest.raises(CaptureError) as error:
        Capture(tmp_path / "no" / "a.h5", model, model, None, scaler=1.0, autocast=torch.float8_e5m2)
    for part in (
        "no does not exist",
        "optimizer: is a Images, must be a torch.optim.Optimizer",
        "scaler: is a float",
        "step_fn: is a NoneType",
        "autocast: is torch.float8_e5m2",
    ):
        assert part in str(error.value)
    with pytest.raises(CaptureError, match="is a folder"):
        Loop(tmp_path)
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        with pytest.raises(CaptureError, match="cannot be written to"):
            Loop(tmp_path / "closed" / "a.h5")


def test_a_finished_capture_does_nothing_more(tmp_path):
    loop = Loop(tmp_path / "a.h5", steps=1)
    loop(BATCHES[0])
    before = (tmp_path / "a.h5").read_bytes()
    loop(BATCHES[1]), loop.cap.finish()
    assert (tmp_path / "a.h5").read_bytes() == before


@pytest.mark.parametrize("kind", ["refused", "raised"])
@pytest.mark.parametrize("loop", ["capture", "block"])
def test_errors_end_at_the_users_line(tmp_path, kind, loop):
    """Two frames: the user's line, and the one that raises. Of the user's own error, the user's frames."""
    model = torch.nn.Linear(8, 3)
    optimizer, batch = torch.optim.SGD(model.parameters(), 0.1), (torch.randn(4, 8),)

    def loss_of(model, batch):
        y = model(batch[0])
        return torch.linalg.svdvals(y).sum() if kind == "refused" else (y @ torch.ones(7)).sum()

    with pytest.raises(CaptureError) as caught:
        if loop == "capture":
            capture(str(tmp_path / "a.h5"), model, optimizer, [batch], loss_of)
        else:
            with Capture(str(tmp_path / "a.h5"), model, optimizer, loss_of).step(batch):
                loss_of(model, batch).backward()
    files = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [pathlib.Path(file).name for file in files] == ["test_capture_mistakes.py", "user_code.py"]
    cause = caught.value.__cause__
    assert (cause is None) == (kind == "refused")
    if cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        assert {pathlib.Path(frame.filename).name for frame in frames} == {"test_capture_mistakes.py"}
        assert cause.__suppress_context__
