"""lockstep_capture.Monitor: what it writes, that training keeps its bits, and what happens when something goes wrong."""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from lockstep_capture import Alarm, Capture, CaptureError, Monitor, read_run

nn = torch.nn


@pytest.fixture(autouse=True)
def found_program(monkeypatch, binary_dir):
    monkeypatch.setenv("LOCKSTEP", str(binary_dir / "lockstep"))


def network():
    return nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def loss_of(model, batch):
    x, y = batch
    return F.cross_entropy(model(x + 0.01 * torch.randn_like(x)), y)


def batch_of(step, factor=1.0):
    generator = torch.Generator().manual_seed(step)
    return factor * torch.randn(24, 16, generator=generator), torch.randint(4, (24,), generator=generator)


def train(
    path=None, *, steps=12, half=False, micro=1, clip=None, factors=None, lr=1e-2, model=None, capture=None, **options
):
    """The weights, and the monitor. factors: {step: what the batch is multiplied by}."""
    torch.manual_seed(1)
    model = network() if model is None else model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0) if half else None
    options = {"quiet": True, **options}
    monitor = None if path is None else Monitor(path, model, optimizer, scaler=scaler, **options)
    cap = None if capture is None else Capture(capture, model, optimizer, loss_of, quiet=True, when=monitor.rule())
    nothing = contextlib.nullcontext()
    for step in range(steps):
        for part in range(micro):
            batch = batch_of(micro * step + part, (factors or {}).get(step, 1.0))
            with monitor.step(batch) if monitor else nothing, cap.step(batch) if cap else nothing:
                with torch.autocast("cpu", dtype=torch.float16, enabled=half):
                    loss = loss_of(model, batch) / micro
                (scaler.scale(loss) if half else loss).backward()
                if part == micro - 1:
                    if clip is not None:
                        if half:
                            scaler.unscale_(optimizer)
                        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                    if half:
                        scaler.step(optimizer)
                        scaler.update()
                    else:
                        optimizer.step()
                    optimizer.zero_grad()
    for one in (cap, monitor):
        if one is not None:
            one.finish()
    return [p.detach().clone() for p in model.parameters()], monitor


@pytest.mark.parametrize(
    "options", [{}, {"half": True, "clip": 1.0}, {"micro": 3}, {"factors": {5: float("nan")}}], ids=str
)
def test_training_keeps_its_bits(tmp_path, options):
    plain, _ = train(**options)
    drawn = torch.rand(1)
    weights, monitor = train(tmp_path / "live.h5", every=3, **options)
    assert torch.equal(drawn, torch.rand(1))
    for a, b in zip(plain, weights, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))
    run = read_run(tmp_path / "live.h5")
    assert list(run.lanes.index) == ["live"] and run.steps_complete == 12
    assert list(run.histograms("live").index.get_level_values("step").unique()) == [0, 3, 6, 9]


def test_what_it_counts(tmp_path, lockstep):
    _, monitor = train(tmp_path / "live.h5", every=5, micro=2, half=True, clip=1.0)
    run = read_run(tmp_path / "live.h5")
    table = run.statistics("live", ["count", "nan", "abs_max", "sum_sq", "update_count"], steps=[5])
    sites = run.sites.drop(columns="count").join(table.droplevel("step"))
    assert set(sites.role) == {"activation", "grad_activation", "weight", "grad_weight", "update", "optimizer_state"}
    first = sites[(sites.layer == "0") & (sites.role == "activation")].iloc[0]
    assert first["count"] == 2 * 24 * 32, "of both micro-batches"
    for role in ("weight", "grad_weight", "update"):
        assert sites[(sites.role == role)]["count"].sum() == sum(p.numel() for p in network().parameters())
    assert sites[sites.role == "optimizer_state"]["count"].sum() == 2 * sites[sites.role == "weight"]["count"].sum()
    assert (run.histograms("live").sum(axis=1) == run.statistics("live", "count", steps=[0, 5, 10])["count"]).all()
    steps = run.steps.loc["live"]
    assert (steps["scale"] == 512).all() and steps["loss"].notna().all() and (steps["gradient_norm"] > 0).all()
    # Gradients as computed: with the loss scale, before clipping.
    gradients = sites[sites.role == "grad_weight"]
    norm = (gradients["sum_sq"].sum() ** 0.5) / 512
    assert norm == pytest.approx(steps["gradient_norm"][5], rel=1e-3)
    assert "12 steps, 0 skipped" in lockstep("report", tmp_path / "live.h5").stdout
    assert "whole: 12 complete steps" in lockstep("verify", tmp_path / "live.h5").stdout


def test_numbers_of_one_tensor():
    from lockstep_capture.monitor.tally import BINS, count

    values = torch.tensor([0.0, -0.0, 1.0, -1.5, 2.0**-130, float("inf"), float("nan"), -6.0])
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        counts = count(values.to(dtype))
        bins = counts.histogram
        assert bins.sum() == 8 and bins[127] == 2 and bins[129] == 1 and bins[BINS - 1] == 2
        assert bins[0] == 3, "zeros and a subnormal of FP32"
        number, zeros, nan, sum_sq, largest = counts.numbers.tolist()
        assert (number, nan, largest) == (8, 1, float("inf"))
        assert zeros == 2 and sum_sq == pytest.approx(1 + 2.25 + 36, rel=1e-6)
    half = count(torch.tensor([2.0**-24, 65504.0], dtype=torch.float16)).histogram
    assert half[127 - 24] == 1 and half[127 + 15] == 1, "subnormals of FP16 have their exponents"
    assert count(torch.tensor([1e300, 1e-300], dtype=torch.float64)).histogram[[255, 0]].tolist() == [1, 1]
    huge = count(torch.full((200_000,), 1e25))
    assert huge.numbers[3] == pytest.approx(200_000 * 1e50, rel=1e-4), "squares beyond FP32"
    assert count(torch.empty(0)).histogram.sum() == 0


def test_both_ways_of_counting_agree():
    """On a GPU whole tensors are counted, on a CPU chunks."""
    from lockstep_capture.monitor.tally import _on_cpu, _on_device

    generator = torch.Generator().manual_seed(1)
    values = torch.randn(300_000, generator=generator) * torch.logspace(-30, 30, 300_000)
    values[::1000], values[5::9999], values[7::9999] = 0.0, float("nan"), -float("inf")
    one, other = _on_cpu(values), _on_device(values)
    assert torch.equal(one.histogram, other.histogram)
    assert one.numbers.tolist() == pytest.approx(other.numbers.tolist(), rel=1e-4)


def test_stagnant_updates():
    from lockstep_capture.monitor.tally import UPDATE_NUMBERS, count_update

    before = torch.tensor([1.0, 1.0, 1.0, 1.0])
    after = torch.tensor([1.0, 1.0 + 2**-20, 1.5, 1.0])
    gradient = torch.tensor([1.0, 1.0, 1.0, 0.0])
    numbers = dict(zip(UPDATE_NUMBERS, count_update(before, after, gradient).numbers.tolist(), strict=True))
    assert numbers["count"] == 3 and numbers["stagnant"] == 1, "the last one has no gradient"
    assert numbers["stagnant_bf16"] == 1, "2^-20 is below half an ulp of 1 in BF16, 0.5 is not"
    assert numbers["update_sq"] == pytest.approx(0.25) and numbers["weight_sq"] == pytest.approx(4)
    narrow = before.bfloat16()
    assert count_update(narrow, narrow.clone(), gradient).numbers[1] == 3


def test_alarm_names_layer_and_micro_batch(tmp_path):
    told = []

    def spoil(model, args, output):
        return output * float("nan") if spoil.on else None

    spoil.on = False
    torch.manual_seed(1)
    model = network()
    model[2].register_forward_hook(spoil)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Monitor(tmp_path / "live.h5", model, optimizer, every=2, on_alarm=told.append, quiet=True) as monitor:
        for step in range(5):
            for part in range(2):
                batch = batch_of(2 * step + part)
                spoil.on = step == 2 and part == 1
                with monitor.step(batch):
                    loss_of(model, batch).backward()
                    if part:
                        optimizer.step()
                        optimizer.zero_grad()
    first = next(alarm for alarm in told if alarm.rule == "not-finite")
    assert (first.step, first.layer, first.role, first.micro_batch) == (2, "2", "activation", 1)
    assert isinstance(first, Alarm) and "not finite" in str(first) and first.more > 3
    assert any(alarm.rule == "loss-not-finite" for alarm in told) and told == monitor.alarms


def test_alarm_fires_the_recorder(tmp_path):
    _, monitor = train(
        tmp_path / "live.h5",
        every=1,
        steps=150,
        factors=dict.fromkeys(range(120, 150), 1e4),
        capture=tmp_path / "run.lscap.h5",
        model=lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
    )
    assert monitor.alarms
    files = [name for name in os.listdir(tmp_path) if name.endswith(".lscap.h5")]
    first = monitor.alarms[0].step
    assert files and first < int(files[0].split(".step")[1][:6]) <= first + 5, (first, files)
    # The step taken again is not counted twice.
    run = read_run(tmp_path / "live.h5")
    counts = run.statistics("live", "count")["count"].unstack("site")
    assert counts.loc[1:].nunique().eq(1).all()


def test_next_to_a_capture_of_first_steps(tmp_path):
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    cap = Capture(tmp_path / "run.lscap.h5", model, optimizer, loss_of, steps=2, quiet=True)
    with Monitor(tmp_path / "live.h5", model, optimizer, every=1, quiet=True) as monitor:
        for step in range(4):
            batch = batch_of(step)
            with monitor.step(batch), cap.step(batch):
                loss_of(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert cap.has_steps and cap.finished
    counts = read_run(tmp_path / "live.h5").statistics("live", "count")["count"].unstack("site")
    assert len(counts) == 4 and counts.nunique().eq(1).all()


def test_skipped_first_steps(tmp_path):
    """The optimizer's state comes with the first step that is not skipped."""
    _, _ = train(tmp_path / "live.h5", every=4, half=True, factors={0: 1e30, 1: 1e30})
    run = read_run(tmp_path / "live.h5")
    assert run.steps_complete == 12 and list(run.steps.loc["live"]["skipped"][:3]) == [True, True, False]
    states = run.sites[run.sites.role == "optimizer_state"].index
    assert len(states) == 2 * len(list(network().parameters()))
    counts = run.statistics("live", "count")["count"].unstack("site")[states]
    assert counts.loc[0].isna().all() and (counts.loc[4] > 0).all()


@pytest.mark.parametrize("how", ["module", "function", "step"])
def test_compiled_code_outside_of_the_cadence(tmp_path, how):
    """One graph, no break; the measured steps run uncompiled."""
    compilations = []

    def backend(graph, inputs):
        compilations.append(graph)
        return graph.forward

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    if how == "function":
        compiled = torch.compile(lambda x: model(x), backend=backend, fullgraph=True)
    if how == "step":
        optimizer.step = torch.compile(optimizer.step, backend=backend)
    with Monitor(tmp_path / "live.h5", model, optimizer, every=6, quiet=True) as monitor:
        for step in range(14):
            x, y = batch_of(step)
            with monitor.step(x):
                F.cross_entropy(compiled(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert not torch._dynamo.utils.counters["graph_break"]
    if how != "step":
        assert len(compilations) == 1
    run = read_run(tmp_path / "live.h5")
    counts = run.statistics("live", "count")["count"].unstack("site")
    assert list(counts.index) == [0, 6, 12] and counts.nunique().eq(1).all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_once(tmp_path, reentrant):
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Monitor(tmp_path / "live.h5", model, optimizer, quiet=True) as monitor:
        x = torch.randn(24, 16, requires_grad=True)
        with monitor.step(x):
            checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
            optimizer.step()
    run = read_run(tmp_path / "live.h5")
    counted = (
        run.sites.drop(columns="count")
        .join(run.statistics("live", "count").droplevel("step"))
        .groupby(["layer", "role"])["count"]
        .sum()
    )
    for layer, size in (("0", 24 * 32), ("1", 24 * 32), ("2", 24 * 4)):
        assert counted[layer, "activation"] == size and counted[layer, "grad_activation"] == size


def test_attention_logits(tmp_path):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(8, 8)

        def forward(self, x):
            q = self.project(x).view(2, 6, 2, 4).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    told = []
    model = Attention()
    with Monitor(tmp_path / "live.h5", model, None, on_alarm=told.append, quiet=True) as monitor:
        for factor in (1.0, 1000.0):
            with monitor.step():
                x = factor * torch.ones(2, 6, 8)
                model(x)
        q = model.project(torch.ones(2, 6, 8)).view(2, 6, 2, 4).transpose(1, 2)
        wanted = (q @ q.transpose(-2, -1) / 2).tril().abs().max().item()
    run = read_run(tmp_path / "live.h5")
    site = run.sites[run.sites.op == "attention_logits"].index[0]
    row = run.statistics("live", ["count", "abs_max"]).loc[0, site]
    assert row["count"] == 2 * 2 * 6 * 6 and row["abs_max"] == pytest.approx(wanted, rel=1e-5)
    # The second step is not measured at every=100.
    assert not told


def test_chosen_modules(tmp_path):
    train(tmp_path / "live.h5", modules=["0", "4"], updates=False)
    run = read_run(tmp_path / "live.h5")
    assert set(run.sites.layer) == {"0", "4"} and "update" not in set(run.sites.role)


def test_wrong_arguments(tmp_path):
    model = network()
    (tmp_path / "there.h5").write_text("")
    with pytest.raises(CaptureError) as error:
        Monitor(tmp_path / "there.h5", 3, every=0, scaler=4, on_alarm=5)
    for word in ("path", "exists", "model", "every", "scaler", "on_alarm"):
        assert word in str(error.value)
    with pytest.raises(CaptureError, match="near: "):
        Monitor(tmp_path / "new.h5", model, modules="layers.*")
    with pytest.raises(CaptureError, match="no-such-program"):
        Monitor(tmp_path / "new.h5", model, program="/no-such-program")


def test_program_that_ends_is_a_warning(tmp_path):
    false = tmp_path / "program"
    false.write_text("#!/bin/sh\nread line\necho 'no space left' >&2\nexit 2\n")
    false.chmod(0o755)
    plain, _ = train(steps=40)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        weights, monitor = train(tmp_path / "live.h5", steps=40, program=false)
    assert all(map(torch.equal, plain, weights)) and monitor.finished
    assert any("no space left" in str(one.message) for one in told), [str(one.message) for one in told]


def test_failure_inside_is_a_warning(tmp_path, monkeypatch):
    from lockstep_capture.monitor import taps

    def broken(tensor):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(taps, "count", broken)
    plain, _ = train()
    with pytest.warns(UserWarning, match="broken on purpose"):
        weights, _ = train(tmp_path / "live.h5")
    assert all(map(torch.equal, plain, weights))


def test_failing_on_alarm_is_a_warning(tmp_path):
    def failing(alarm):
        raise ValueError("no network")

    with pytest.warns(UserWarning, match="no network"):
        train(tmp_path / "live.h5", every=1, factors={6: float("nan")}, on_alarm=failing)


LOOP = """
    import signal, sys, torch
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
    sys.path.insert(0, {python!r})
    from lockstep_capture import Monitor
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor({path!r}, model, optimizer, every=3, quiet=True)
    for step in range(10**6):
        with monitor.step():
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        print(step, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_loop_leaves_a_whole_file(tmp_path, number, lockstep):
    path = str(tmp_path / "live.h5")
    python = os.path.join(os.path.dirname(__file__), "..", "..", "..", "python")
    script = textwrap.dedent(LOOP).format(python=python, path=path)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as loop:
        for line in loop.stdout:
            if int(line) == 50:
                loop.send_signal(number)
                break
        loop.stdout.read()
    end = time.monotonic() + 30
    while not os.path.exists(path) or "closed" not in state_of(path, lockstep):
        assert time.monotonic() < end, state_of(path, lockstep)
        time.sleep(0.2)
    assert read_run(path).steps_complete >= 30


def state_of(path, lockstep):
    """ "closed" once nobody writes the file any more."""
    import fcntl

    with contextlib.suppress(BlockingIOError), open(f"{path}.lock", "a") as lock:  # it may be gone
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "closed" if "whole" in lockstep("verify", path).stdout else "damaged"
    return "open"


def test_two_runs_of_one_name(tmp_path):
    """The second one is refused when its first step ends; its training goes on."""
    torch.manual_seed(1)
    models = [network(), network()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    monitors = [
        Monitor(tmp_path / "live.h5", m, o, every=1, quiet=True) for m, o in zip(models, optimizers, strict=True)
    ]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(60):
            for model, optimizer, monitor in zip(models, optimizers, monitors, strict=True):
                with monitor.step():
                    loss_of(model, batch_of(step)).backward()
                    optimizer.step()
            time.sleep(0.02)
        for monitor in monitors:
            monitor.finish()
    assert sum("monitoring has stopped" in str(one.message) for one in told) == 1
    assert read_run(tmp_path / "live.h5").steps_complete == 60


def test_no_hook_stays(tmp_path):
    """Also not on a parameter that a module returns."""

    class Returns(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self):
            return self.weight

    model = Returns()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Monitor(tmp_path / "live.h5", model, optimizer, every=1, quiet=True) as monitor:
        for _ in range(3):
            with monitor.step():
                model().square().sum().backward()
                optimizer.step()
            assert not model.weight._backward_hooks and not model._forward_hooks and not model._forward_pre_hooks
    counts = read_run(tmp_path / "live.h5").statistics("live", "count")["count"].unstack("site")
    assert len(counts) == 3 and counts.nunique().eq(1).all()
    monitor = Monitor(
        tmp_path / "other.h5", model, every=1, quiet=True
    )  # without an optimizer, and in a block that fails
    with monitor.step():
        model()
    assert not model.weight._backward_hooks
    with pytest.raises(ValueError, match="of the loop"), monitor.step():
        model()
        raise ValueError("of the loop")
    assert not model.weight._backward_hooks
    monitor.finish()


def test_inference_mode(tmp_path):
    model = network().eval()
    with Monitor(tmp_path / "live.h5", model, every=2, quiet=True) as monitor:
        for step in range(5):
            with monitor.step(), torch.inference_mode():
                model(batch_of(step)[0])
    run = read_run(tmp_path / "live.h5")
    assert run.steps_complete == 5 and set(run.sites.role) == {"activation"} and not monitor.alarms


def test_steps_that_never_end(tmp_path):
    """The optimizer steps outside of the block: said once, and nothing piles up."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(tmp_path / "live.h5", model, optimizer, quiet=True)
    with pytest.warns(UserWarning, match="no optimizer.step"):
        for _ in range(1030):
            with monitor.step():
                model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert monitor.finished and monitor._taps is None and not monitor._losses


def test_groups_that_come_later(tmp_path):
    model = network()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with Monitor(tmp_path / "live.h5", model, optimizer, every=2, quiet=True) as monitor:
        for step in range(6):
            if step == 3:
                optimizer.add_param_group({"params": list(model[4].parameters()), "lr": 0.2})
            with monitor.step():
                loss_of(model, batch_of(step)).backward()
                optimizer.step()
                optimizer.zero_grad()
    assert read_run(tmp_path / "live.h5").steps_complete == 6


def test_warm_up_is_healthy(tmp_path):
    """From a learning rate of 0 on, 300 steps, and back to 0: no alarm."""
    torch.manual_seed(1)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step / 200, (400 - step) / 200))
    with Monitor(tmp_path / "live.h5", model, optimizer, every=10, quiet=True) as monitor:
        for step in range(401):
            with monitor.step():
                loss_of(model, batch_of(step)).backward()
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
    assert monitor.alarms == []


def test_child_process_does_not_hold_the_file_open(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(tmp_path / "live.h5", model, optimizer, quiet=True)
    with monitor.step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    child = os.fork()
    if child == 0:
        time.sleep(20)
        os._exit(0)
    begun = time.monotonic()
    monitor.finish()
    assert time.monotonic() - begun < 10
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_forgotten_monitor_is_freed(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(tmp_path / "live.h5", model, optimizer, quiet=True)
    with monitor.step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    gone = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert gone() is None


def test_other_readers(tmp_path):
    """The live view's snapshot knows no last step; TensorBoard's folder has the lane, and its alarms as text."""
    train(tmp_path / "live.h5", every=2, factors={6: float("nan")})
    snapshot = json.loads((tmp_path / "live.h5.progress.json").read_text())
    assert (snapshot["state"], snapshot["steps_done"], snapshot["lanes"][0]["name"]) == ("finished", 12, "live")
    assert "steps" not in snapshot and snapshot["lanes"][0]["finding_count"] > 0
    pytest.importorskip("tensorboard")
    read_run(tmp_path / "live.h5").to_tensorboard(tmp_path / "tb")
    (events,) = (tmp_path / "tb" / "live").iterdir()
    assert b"not-finite" in events.read_bytes()
