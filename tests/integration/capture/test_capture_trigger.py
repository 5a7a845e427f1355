"""Capture(when=...): the step in which something happens is taken again under a capture, and the loop has the bits that it
would have had."""

import contextlib
import json
import os
import random
import signal

import h5py
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import Capture, CaptureError

nn = torch.nn
FAULT = 37


def network():
    return nn.Sequential(
        nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4, bias=False)
    )


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x + 0.01 * torch.randn_like(x)), y)  # draws of its own, too


def batch_of(step, bad=None, factor=float("nan")):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(24, 16, generator=generator)
    return (x * factor if step == bad else x), torch.randint(4, (24,), generator=generator)


class Loop:
    """A loop with and without a waiting capture; `body` trains one step of micro-batches."""

    def __init__(
        self, path=None, *, steps=60, half=False, clip=None, micro=1, bad=None, factor=float("nan"), **options
    ):
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.model = network()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=512.0, growth_interval=2000) if half else None
        self.half, self.clip, self.micro, self.bad, self.factor = half, clip, micro, bad, factor
        self.losses = []
        self.capture = None
        if path is not None:
            self.capture = Capture(
                path,
                self.model,
                self.optimizer,
                loss_of,
                scaler=self.scaler,
                autocast="float16" if half else None,
                **options,
            )
        for step in range(steps):
            self.at(step)
            for part in range(micro):
                batch = batch_of(micro * step + part, self.bad, self.factor)
                with self.capture.step(batch) if self.capture else contextlib.nullcontext():
                    self.body(batch, part == micro - 1)
        if self.capture:
            self.capture.finish()
        self.draws = torch.rand(1).item(), random.random(), np.random.rand()

    def at(self, step):
        """Before a step."""

    def body(self, batch, ends):
        with torch.autocast("cpu", torch.float16, enabled=self.half):
            loss = loss_of(self.model, batch)
        self.losses.append(loss.item())
        loss = loss / self.micro if self.micro > 1 else loss
        (self.scaler.scale(loss) if self.half else loss).backward()
        if ends:
            self.step()
            self.optimizer.zero_grad()

    def step(self):
        if self.clip is not None:
            if self.half:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        if self.half:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def state(self):
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [t for state in self.optimizer.state.values() for t in state.values()]
        scale = None if self.scaler is None else self.scaler.state_dict()
        return [t.detach().clone() for t in tensors], self.losses, scale, self.draws


def assert_same(a, b):
    """Two states, bit for bit; NaN equals NaN."""
    for x, y in zip(a[0], b[0], strict=True):
        assert torch.equal(
            x.view(torch.int32) if x.is_floating_point() else x, y.view(torch.int32) if y.is_floating_point() else y
        )
    assert str(a[1:]) == str(b[1:])


def waited(path, when="fault", kind=Loop, **options):
    """The loop with a capture; its state is that of the loop without."""
    of_capture = ("times", "cooldown", "max_bytes", "sync", "report")
    own = {name: value for name, value in options.items() if name not in of_capture}
    plain = kind(**own)
    loop = kind(path, when=when, **options)
    assert_same(plain.state(), loop.state())
    return loop


def names(folder):
    return sorted(path.name for path in folder.glob("*.h5"))


def losses_in(path):
    with h5py.File(path) as file:
        return [
            float(file[f"steps/000000/micro/{i:03d}"].attrs["loss"]) for i in range(len(file["steps/000000/micro"]))
        ]


@pytest.mark.parametrize(
    "options, faithful",
    [
        ({"half": True, "factor": 3e4}, True),
        ({"half": True, "factor": 3e4, "clip": 1.0}, True),
        ({"half": True, "factor": 3e4, "micro": 3}, True),
        ({}, False),  # a NaN in the batch: nothing can be judged
        ({"clip": 1.0}, False),
        ({"micro": 2}, False),
    ],
    ids=["fp16", "fp16-clipped", "fp16-micro", "nan", "nan-clipped", "nan-micro"],
)
def test_the_step_of_a_fault_is_taken_again(tmp_path, capfd, lockstep, options, faithful):
    micro = options.get("micro", 1)
    loop = waited(tmp_path / "run.lscap.h5", bad=FAULT * micro + micro - 1, times=1, **options)
    assert names(tmp_path) == [f"run.step{FAULT:06d}.lscap.h5"] and loop.capture.finished
    path = tmp_path / names(tmp_path)[0]
    assert loop.capture.files == [str(path)]
    said = capfd.readouterr().err
    assert f"step {FAULT}: the loss is nan. It was taken again into {path}" in said and "Next: lockstep verify" in said
    wanted = loop.losses[FAULT * micro : (FAULT + 1) * micro]
    assert losses_in(path) == pytest.approx(wanted, rel=1e-6, nan_ok=True)
    verdict = lockstep("verify", path, code=0 if faithful else 3).stdout
    assert "V0  PASS" in verdict


def test_a_healthy_loop_leaves_nothing(tmp_path):
    waited(tmp_path / "run.lscap.h5", steps=200)
    waited(tmp_path / "run.lscap.h5", half=True)
    assert names(tmp_path) == []


def test_a_fall_of_the_first_scale_is_none(tmp_path):
    class Falls(Loop):
        def at(self, step):
            if step == 0:
                self.scaler._init_scale = 2.0**40

    loop = waited(tmp_path / "run.lscap.h5", kind=Falls, half=True)
    assert loop.scaler.get_scale() < 2.0**30 and names(tmp_path) == []


def test_a_scaler_that_keeps_skipping(tmp_path, capfd):
    class Collapses(Loop):
        def body(self, batch, ends):
            if len(self.losses) > FAULT:  # gradients overflow, the loss does not
                self.model[4].weight.register_hook(lambda gradient: gradient * float("inf"))
            super().body(batch, ends)

    with pytest.warns(UserWarning, match="gradient hook|hook"):
        Collapses(tmp_path / "run.lscap.h5", half=True, when="skips", times=1)
    assert names(tmp_path) == []  # hooks that change gradients cannot be replayed: refused, with a warning

    class Grows(Loop):
        def at(self, step):
            if step > FAULT:
                self.scaler._scale.fill_(2.0**60)

    loop = waited(tmp_path / "run.lscap.h5", when="skips", kind=Grows, half=True, times=1)
    assert loop.capture.files == [str(tmp_path / "run.step000041.lscap.h5")]
    assert "the scaler skipped 4 of the last 20 steps; its scale was 1.15292e+18" in capfd.readouterr().err


def test_a_spike(tmp_path, capfd):
    class Jumps(Loop):
        def at(self, step):
            if step == 120:
                with torch.no_grad():
                    self.model[4].weight *= 30

    waited(tmp_path / "run.lscap.h5", steps=150, kind=Jumps, times=1)
    assert names(tmp_path) == ["run.step000120.lscap.h5"]
    assert "step 120: the loss is " in capfd.readouterr().err


@pytest.mark.parametrize(
    "when, expected",
    [
        ([3, 11], [3, 11]),
        ("every:25", [24, 49]),
        (lambda facts: "so be it" if facts.step == 7 and facts.loss > 0 and facts.gradient_norm > 0 else "", [7]),
        (["every:30", 5], [5, 29, 59]),
    ],
    ids=["steps", "every", "function", "list"],
)
def test_what_to_wait_for(tmp_path, lockstep, when, expected):
    waited(tmp_path / "run.lscap.h5", when=when)
    assert names(tmp_path) == [f"run.step{step:06d}.lscap.h5" for step in expected]
    assert "V7" in lockstep("verify", tmp_path / names(tmp_path)[0]).stdout


def test_a_signal_and_a_file(tmp_path):
    before = signal.getsignal(signal.SIGUSR1)
    flag = tmp_path / "capture-now"

    class Asks(Loop):
        def at(self, step):
            if self.capture is not None and step == 9:
                os.kill(os.getpid(), signal.SIGUSR1)
            if self.capture is not None and step == 21:
                flag.touch()

    waited(tmp_path / "run.lscap.h5", when=["signal:USR1", f"file:{flag}"], kind=Asks)
    assert names(tmp_path) == ["run.step000009.lscap.h5", "run.step000021.lscap.h5"] and not flag.exists()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_times_cooldown_and_bytes(tmp_path, capfd):
    waited(tmp_path / "a.lscap.h5", when="every:1", times=2)  # asked for: no cool-down
    assert names(tmp_path) == ["a.step000000.lscap.h5", "a.step000001.lscap.h5"]
    waited(tmp_path / "b.lscap.h5", when=lambda facts: True, times=2, cooldown=10)
    assert names(tmp_path)[2:] == ["b.step000000.lscap.h5", "b.step000011.lscap.h5"]
    with pytest.warns(UserWarning, match="max_bytes is 1,000: it is not kept, nothing more is captured"):
        waited(tmp_path / "c.lscap.h5", when="every:1", max_bytes=1000)
    assert len(names(tmp_path)) == 4
    waited(tmp_path / "a.lscap.h5", when=[0], times=1)  # another run in the same folder
    assert "a.step000000-2.lscap.h5" in names(tmp_path)


def test_a_loop_that_ends_itself(tmp_path, capfd):
    """if not torch.isfinite(loss): raise, before backward()."""

    class Raises(Loop):
        def body(self, batch, ends):
            loss = loss_of(self.model, batch)
            self.losses.append(loss.item())
            if not torch.isfinite(loss):
                raise FloatingPointError("loss is not finite")
            loss.backward()
            self.step()
            self.optimizer.zero_grad()

    with pytest.raises(FloatingPointError, match="loss is not finite"):
        Raises(tmp_path / "run.lscap.h5", when="fault", bad=FAULT)
    assert names(tmp_path) == [f"run.step{FAULT:06d}.lscap.h5"]
    assert "the loss is nan, and the loop raised FloatingPointError" in capfd.readouterr().err


@pytest.mark.parametrize("before_backward", [True, False])
def test_a_loop_that_passes_the_step_by(tmp_path, before_backward):
    class Continues(Loop):
        def body(self, batch, ends):
            loss = loss_of(self.model, batch)
            self.losses.append(loss.item())
            if not before_backward:
                loss.backward()
            if torch.isfinite(loss):
                if before_backward:
                    loss.backward()
                self.step()
            self.optimizer.zero_grad()

    waited(tmp_path / "run.lscap.h5", kind=Continues, bad=FAULT, times=1)
    assert names(tmp_path) == [f"run.step{FAULT:06d}.lscap.h5"]


def test_a_step_function_that_is_not_the_loops(tmp_path):
    class Other(Loop):
        def body(self, batch, ends):
            (2 * loss_of(self.model, batch)).backward()
            self.step()
            self.optimizer.zero_grad()

    with pytest.warns(UserWarning, match="step_fn gives .* for the first batch, the loop called backward.. on"):
        waited(tmp_path / "run.lscap.h5", when=[5], kind=Other)  # said in the first step
    assert names(tmp_path) == []


def test_weights_that_were_broken_before(tmp_path):
    class Breaks(Loop):
        def at(self, step):
            if step == FAULT:
                with torch.no_grad():
                    self.model[0].weight[0, 0] = float("nan")

    with pytest.warns(UserWarning, match=f"step {FAULT}: the loss is nan, but weights were not finite before it"):
        waited(tmp_path / "run.lscap.h5", kind=Breaks, times=1)
    assert names(tmp_path) == []


def test_a_failure_is_not_the_loops(tmp_path, monkeypatch):
    def fails(facts):
        raise ZeroDivisionError("in the user's rule")

    with pytest.warns(UserWarning, match="nothing more is captured.*in the user's rule"):
        waited(tmp_path / "run.lscap.h5", when=fails)
    monkeypatch.setattr("lockstep_capture.write.writer.os.replace", full_disk)
    with pytest.warns(UserWarning, match="could not be captured|No space left"):
        waited(tmp_path / "run.lscap.h5", when=[5])
    assert names(tmp_path) == []


def full_disk(*args, **kwargs):
    raise OSError(28, "No space left on device")


def test_what_is_refused(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def make(**options):
        return Capture(tmp_path / "run.lscap.h5", model, optimizer, loss_of, **options)

    for when in ("fualt", "every:0", "signal:KILL", [], -1, 3.5, ["fault", "x"]):
        with pytest.raises(CaptureError, match="^when: "):
            make(when=when)
    with pytest.raises(CaptureError, match="times: is 0.*cooldown: is -1"):
        make(when="fault", times=0, cooldown=-1)
    with pytest.raises(CaptureError, match="without an optimizer"):
        Capture(tmp_path / "run.lscap.h5", model, None, loss_of, when="fault")
    assert json.dumps(names(tmp_path)) == "[]"


# ---- What it was


def answers(folder):
    """{the fault's file: (kind, text)}, once the processes next to the loop have ended."""
    import time

    files = [path for path in folder.glob("*.lscap.h5") if not path.name.endswith(".run.h5")]
    end = time.monotonic() + 120
    while not all(path.with_name(path.name + ".answer.txt").exists() for path in files):
        assert time.monotonic() < end
        time.sleep(0.1)
    found = {}
    for path in files:
        text = path.with_name(path.name + ".answer.txt").read_text(encoding="utf-8")
        found[path.name] = text.partition(": ")[2].partition(": ")[0], text
    return found


def own_answer(tmp_path, monkeypatch, binary_dir, **options):
    monkeypatch.setenv("LOCKSTEP", str(binary_dir / "lockstep"))
    waited(tmp_path / "run.lscap.h5", times=1, report=True, **options)
    ((kind, text),) = answers(tmp_path).values()
    return kind, text


class Flips(Loop):
    """One bit of one product of the backward pass, in one step."""

    def step(self):
        if len(self.losses) == FAULT + 1:
            bits = self.model[0].weight.grad.view(torch.int32)
            bits[3, 5] ^= 1 << 29
        super().step()


class Explodes(Loop):
    """The weights are where FP32 has no number for the loss."""

    def at(self, step):
        if step == FAULT:
            with torch.no_grad():
                self.model[4].weight.mul_(1e38)


def test_a_fault_of_the_format(tmp_path, monkeypatch, binary_dir):
    kind, text = own_answer(tmp_path, monkeypatch, binary_dir, half=True, bad=FAULT, factor=3e4)
    assert kind == "format" and "fp16 ends at 65504" in text and "0 linear" in text


def test_a_fault_of_the_data(tmp_path, monkeypatch, binary_dir):
    kind, text = own_answer(tmp_path, monkeypatch, binary_dir, half=True, bad=FAULT)
    assert kind == "data" and "fp32 has the fault as well" in text


def test_a_fault_of_the_machine(tmp_path, monkeypatch, binary_dir, capfd):
    kind, text = own_answer(tmp_path, monkeypatch, binary_dir, kind=Flips, when=[FAULT])
    assert kind == "machine" and "1 of 512 elements of the gradient of 0.weight differ" in text
    assert "The machine, or an op that is not deterministic" in capfd.readouterr().err


def test_a_state_that_breaks_every_format(tmp_path, monkeypatch, binary_dir):
    kind, text = own_answer(tmp_path, monkeypatch, binary_dir, kind=Explodes)
    assert kind in ("data", "format"), text


# ---- What a loop may do besides


def initial_buffers(path):
    with h5py.File(path) as file:
        return {name: file["buffers"][name][()] for name in file["buffers"]}


def test_buffers_begin_as_before_the_step(tmp_path):
    """Batch norm writes its statistics without a new version of the tensor."""

    class Keeps(Loop):
        def at(self, step):
            if step == FAULT:
                self.kept = {name: b.detach().clone().numpy() for name, b in self.model.named_buffers()}

    loop = waited(tmp_path / "run.lscap.h5", kind=Keeps, bad=FAULT, times=1)
    found = initial_buffers(loop.capture.files[0])
    for name, before in loop.kept.items():
        assert np.array_equal(found[name], before), name


def test_hooks_of_the_loop_run_once(tmp_path):
    class Averages(Loop):
        def at(self, step):
            if step == 0:
                self.average = [p.detach().clone() for p in self.model.parameters()]
                self.optimizer.register_step_post_hook(self.follow)

        def follow(self, *_):
            for mean, p in zip(self.average, self.model.parameters()):
                mean.lerp_(p.detach(), 0.1)

    plain = Averages()
    loop = Averages(tmp_path / "run.lscap.h5", when=[5, 9])
    assert all(torch.equal(a, b) for a, b in zip(plain.average, loop.average)) and len(names(tmp_path)) == 2


def test_a_fused_optimizer_is_told_the_scale_once(tmp_path, lockstep):
    class Fused(Loop):
        def at(self, step):
            if step == 0:
                self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2, fused=True)
                if self.capture is not None:
                    self.capture = Capture(
                        tmp_path / "run.lscap.h5", self.model, self.optimizer, loss_of, scaler=self.scaler,
                        autocast="float16", when=[5],
                    )  # fmt: skip

    waited(tmp_path / "none.lscap.h5", kind=Fused, half=True)
    assert names(tmp_path) == ["run.step000005.lscap.h5"]
    assert "V5  PASS" in lockstep("verify", tmp_path / names(tmp_path)[0]).stdout


def test_a_block_that_the_loop_leaves_is_forgotten(tmp_path, monkeypatch, binary_dir, capfd):
    """An empty batch, without a forward pass."""

    class Empty(Loop):
        def body(self, batch, ends):
            if len(self.losses) % 7 == 3:
                self.losses.append(0.0)
                return
            super().body(batch, ends)

    loop = waited(tmp_path / "run.lscap.h5", kind=Empty, when=[20, 21])
    assert len(loop.capture.files) == 2 and "The machine" not in capfd.readouterr().err


def test_a_micro_batch_that_is_not_finite(tmp_path):
    """The loop goes on adding to the step's gradients: one step, three micro-batches."""
    loop = waited(tmp_path / "run.lscap.h5", micro=3, bad=3 * FAULT, times=1)
    assert names(tmp_path) == [f"run.step{FAULT:06d}.lscap.h5"]
    assert len(losses_in(loop.capture.files[0])) == 3


def test_a_shorter_last_step_is_divided_as_the_others(tmp_path, capfd):
    """An epoch's rest: one micro-batch, whose loss is still divided by three."""

    class Rest(Loop):
        def body(self, batch, ends):
            ends = ends or len(self.losses) == 3 * 10
            loss = loss_of(self.model, batch)
            self.losses.append(loss.item())
            (loss / 3).backward()
            if ends:
                self.step()
                self.optimizer.zero_grad()

    loop = waited(tmp_path / "run.lscap.h5", kind=Rest, micro=3, when=[10])
    assert len(losses_in(loop.capture.files[0])) == 1 and "The machine" not in capfd.readouterr().err


def test_gradients_that_the_loop_changes_are_not_the_machines(tmp_path, capfd):
    class Halves(Loop):
        def step(self):
            for p in self.model.parameters():
                p.grad.mul_(0.5)
            super().step()

    with pytest.warns(UserWarning, match="the loop changes the gradients after backward"):
        waited(tmp_path / "run.lscap.h5", kind=Halves, when=[FAULT])
    assert "The machine" not in capfd.readouterr().err

    class Groups(Loop):
        def step(self):
            for layer in (self.model[0], self.model[4]):
                nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            super().step()

    with pytest.warns(UserWarning, match="(?s)nothing more is captured.*clip"):
        waited(tmp_path / "other.lscap.h5", kind=Groups, when=[FAULT])


def test_a_compiled_model_may_differ_by_bits(tmp_path, capfd):
    def backend(graph, inputs):
        return lambda *args: tuple(y * (1 + 2.0**-22) for y in graph.forward(*args))

    class Compiled(Loop):
        def at(self, step):
            if step == 0:
                torch.compiler.reset()
                self.compiled = torch.compile(self.model, backend=backend)

        def body(self, batch, ends):
            x, y = batch
            loss = F.cross_entropy(self.compiled(x + 0.01 * torch.randn_like(x)), y)
            self.losses.append(loss.item())
            loss.backward()
            self.step()
            self.optimizer.zero_grad()

    loop = waited(tmp_path / "run.lscap.h5", kind=Compiled, when=[5], steps=8)
    assert len(loop.capture.files) == 1 and "The machine" not in capfd.readouterr().err


def test_a_caught_error_does_not_end_the_waiting(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture = Capture(tmp_path / "run.lscap.h5", model, optimizer, loss_of, when=[5], quiet=True)
    for step in range(8):
        batch = batch_of(step)
        try:
            with capture.step(batch):
                if step == 3:
                    raise MemoryError("out of memory")
                if step == 4:
                    loss_of(model, (batch[0][:, :3], batch[1]))  # fails in the loop and in step_fn
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        except (MemoryError, RuntimeError):
            continue
    capture.finish()
    assert names(tmp_path) == ["run.step000005.lscap.h5"]


def test_masters_are_refused(tmp_path):
    model = network().bfloat16()
    masters = [torch.nn.Parameter(p.detach().float()) for p in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    capture = Capture(tmp_path / "run.lscap.h5", model, optimizer, loss_of, when=[2])
    x, y = batch_of(0)
    with pytest.warns(UserWarning, match="not with FP32 masters"), capture.step((x.bfloat16(), y)):
        pass


@pytest.mark.parametrize("options", [{"half": True, "factor": 3e4, "micro": 3, "bad": 3 * FAULT + 2}], ids=["micro"])
def test_the_answer_of_micro_batches(tmp_path, monkeypatch, binary_dir, options):
    kind, text = own_answer(tmp_path, monkeypatch, binary_dir, **options)
    assert kind == "format" and "fp16 ends at 65504" in text


def test_ctrl_c_in_the_step_taken_again(tmp_path, monkeypatch):
    """It ends the loop, with the weights of the loop."""
    from lockstep_capture.trigger import retake

    plain = Loop(steps=FAULT)
    model = []

    class Keeps(Loop):
        def at(self, step):
            model.append(self.model)
            if step == FAULT and self.capture is not None:
                monkeypatch.setattr(retake, "_differing", interrupted)

    def interrupted(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Keeps(tmp_path / "run.lscap.h5", when=[FAULT])
    for a, b in zip(plain.model.parameters(), model[-1].parameters(), strict=True):
        assert torch.equal(a, b)
    assert names(tmp_path) == []


def test_words_that_need_when(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match="times, report: only with when="):
        Capture(tmp_path / "run.lscap.h5", model, optimizer, loss_of, times=2, report=True)
