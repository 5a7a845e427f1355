"""Memory and disk are compared with what is free before the first step."""

import resource
import shutil
import types

import pytest
import torch
from capture_loops import steps_in, train
from lockstep_capture import Capture, CaptureError, needs
from lockstep_capture.model_state import Subject

WIDTH = 512  # one matrix: 1 MiB, in the file more than everything else


def net(optimizer):
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH)
    return model, optimizer(model.parameters())


def loss_of(model, batch):
    return model(batch).square().mean()


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "others": torch.optim.Adamax,
}


@pytest.mark.parametrize("verify", [[], [0], [0, 1]], ids=str)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_file_has_the_size_that_was_computed(tmp_path, optimizer, verify):
    model, made = net(OPTIMIZERS[optimizer])
    expected, path = needs.needs_of(Subject(model, made), verify, 2).disk, tmp_path / "a.h5"
    cap = Capture(path, model, made, loss_of, steps=2, verify=verify)
    train(model, made, loss_of, [torch.randn(1, WIDTH) for _ in range(2)], cap)
    assert 0 <= path.stat().st_size - expected < 0.1 * 4 * WIDTH * WIDTH  # batches, graph, biases' headers


@pytest.mark.parametrize("what", ["memory", "disk"])
def test_too_little_room_is_an_error_before_the_first_step(tmp_path, monkeypatch, what):
    model, optimizer = net(torch.optim.AdamW)
    all_of_it, least = (needs.needs_of(Subject(model, optimizer), verify, 2) for verify in ([0], []))
    room = {"memory": 2**40, "disk": 2**40, what: getattr(all_of_it, what) - 1}
    monkeypatch.setattr(needs, "free_memory", lambda: room["memory"])
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: types.SimpleNamespace(free=room["disk"]))
    before, path = [p.clone() for p in model.parameters()], tmp_path / "a.h5"
    batches = [torch.randn(1, WIDTH) for _ in range(3)]
    message = rf"{what}.* of 262,656 parameters needs at least .* bytes per parameter\), .* is free: verify=\[\]"
    with pytest.raises(CaptureError, match=message):
        train(model, optimizer, loss_of, batches, Capture(path, model, optimizer, loss_of, steps=2))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)) and not optimizer.state
    with pytest.warns(UserWarning, match=message):
        cap = Capture(path, model, optimizer, loss_of, steps=2, on_unsupported="report")
        assert len(train(model, optimizer, loss_of, batches, cap)) == 3
    assert not path.exists()
    room[what] = getattr(least, what) + 8 * sum(p.numel() for p in model.parameters())  # AdamW's state is there now
    train(model, optimizer, loss_of, batches, Capture(path, model, optimizer, loss_of, steps=2, verify=[]))
    assert steps_in(path) == (2, 2, True)


def test_free_memory_is_known_on_linux():
    free = needs.free_memory()
    assert free is not None and 0 < free < 2**50


def test_free_memory_counts_swap_and_a_limit_of_the_address_space(monkeypatch):
    files = {
        "/proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 4 kB\nSwapFree: 3 kB\nHugePages_Total: 0\n",
        "/proc/self/statm": "2 1 1 1 0 1 0",
    }

    def read(path, encoding):
        return files[str(path)] if str(path) in files else _missing(path)

    def _missing(path):
        raise OSError(path)

    monkeypatch.setattr(needs.Path, "read_text", read)
    limit = resource.RLIM_INFINITY
    monkeypatch.setattr(needs.resource, "getrlimit", lambda which: (limit, limit))
    assert needs.free_memory() == 7 * 1024
    limit = 2 * resource.getpagesize() + 100
    assert needs.free_memory() == 100


def limited(lockstep, size, *args):
    """The program with so much address space."""
    return lockstep(
        *args, "--threads", "1", code=2, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (size, size))
    ).stderr


def test_too_little_memory_is_an_error_before_the_program_reads_or_replays(tmp_path, lockstep):
    torch.manual_seed(0)
    model, path = torch.nn.Linear(2048, 2048), tmp_path / "a.h5"
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    batches = [torch.randn(1, 2048)] * 2
    train(model, optimizer, loss_of, batches, Capture(path, model, optimizer, loss_of, steps=2))
    for size, command, needs_of_it in (
        (210 << 20, "verify", ("64 MiB", "step in FP64")),
        (210 << 20, "replay", ("4 lanes of 4 196 352 parameters need at least",)),
    ):
        more = ["-o", tmp_path / "run.h5", "--lanes", "fp32,pure-bf16,torch-autocast-bf16"]
        told = limited(lockstep, size, command, path, *more * (command == "replay"))
        assert all(word in told for word in needs_of_it) and " is free" in told
    assert not (tmp_path / "run.h5").exists()
    lockstep("verify", path)
