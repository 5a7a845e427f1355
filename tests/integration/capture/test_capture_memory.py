"""Memory follows the file: masks, which are one bit an element there, are nowhere kept unpacked for more than a moment."""

import gc
import os
import subprocess
import sys

import pytest
import torch
from capture_loops import Images, image_batches, image_loss, train
from conftest import SOURCE
from lockstep_capture import Capture
from lockstep_capture.trace.traced import Traced
from lockstep_capture.write.recorder import Recorder

ELEMENTS = 2**20  # of the mask of one micro-batch
FEW, MANY = 2, 26
# What masks of the micro-batches more would take unpacked, as floats or as int32. As bits they take a 32nd of it.
UNPACKED = (MANY - FEW) * ELEMENTS * 4
BOUND = UNPACKED / 4

TRAIN = """
import sys
sys.path[:0] = sys.argv[1:2]
import torch, lockstep_capture
torch.set_num_threads(1)
path, steps, micro, elements = sys.argv[2], *map(int, sys.argv[3:6])
model = torch.nn.Sequential(torch.nn.Linear(1, 1024), torch.nn.Dropout(0.3))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
loss_of = lambda model, batch: model(batch).square().mean()
cap = lockstep_capture.Capture(path, model, optimizer, loss_of, steps=steps, verify=[0])
for i in range(steps * micro):
    batch = torch.full((elements // 1024, 1), 1.0 + i)
    with cap.step(batch):
        (loss_of(model, batch) / micro).backward()
        if (i + 1) % micro == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def peak(*arguments, **environment):
    """Bytes: the most that was resident at once in the process or in one that it waited for."""
    process = subprocess.Popen([str(a) for a in arguments], stdout=subprocess.DEVNULL, env=os.environ | environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def capture_peak(path, steps, micro):
    package = SOURCE / "python"
    # Large tensors in pages of their own: what glibc's heap keeps between them is PyTorch's affair.
    return peak(sys.executable, "-c", TRAIN, package, path, steps, micro, ELEMENTS, MALLOC_MMAP_THRESHOLD_="65536")


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """Of few and of many steps, and what making them took."""
    folder = tmp_path_factory.mktemp("memory")
    paths = [folder / f"{steps}.h5" for steps in (FEW, MANY)]
    return paths, [capture_peak(path, steps, 1) for path, steps in zip(paths, (FEW, MANY), strict=True)]


def test_a_captures_memory_does_not_grow_with_its_steps(captures):
    few, many = captures[1]
    assert many - few < BOUND


def test_a_captures_memory_does_not_grow_with_the_masks_of_a_step(tmp_path):
    few, many = (capture_peak(tmp_path / "net.h5", 1, micro) for micro in (FEW, MANY))
    assert many - few < BOUND


@pytest.mark.parametrize(
    "command", [["verify"], ["replay", "--lanes", "fp32", "--quiet", "--overwrite"]], ids=["verify", "replay"]
)
def test_a_readers_memory_grows_with_the_file_alone(binary_dir, tmp_path, captures, command):
    output = ["-o", tmp_path / "run.h5"] if command[0] == "replay" else []
    few, many = (peak(binary_dir / "lockstep", *command, path, *output) for path in captures[0])
    assert many - few < BOUND


def test_a_capture_that_is_over_holds_nothing(tmp_path):
    model = Images()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    cap = Capture(tmp_path / "net.h5", model, optimizer, image_loss, steps=2)
    train(model, optimizer, image_loss, image_batches(3), cap)
    assert cap.finished
    gc.collect()
    held = [thing for thing in gc.get_objects() if type(thing) in (Recorder, Traced)]
    assert not [
        thing for thing in held if (thing._subject if isinstance(thing, Recorder) else thing.subject).model is model
    ]
