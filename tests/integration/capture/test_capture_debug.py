"""debug(): the answer in one call, with no files left."""

import os

import lockstep_capture
import pytest
import torch
import torch.nn.functional as F

WIDTH = 16


class Net(torch.nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor, self.inner, self.head = factor, torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(F.layer_norm(self.inner(x * self.factor), (WIDTH,)))


def loss_of(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def debug(factor, lockstep_path, **options):
    torch.manual_seed(0)
    model = Net(factor)
    batches = [(torch.randn(8, WIDTH), torch.randint(4, (8,))) for _ in range(3)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = lockstep_capture.debug(model, optimizer, batches, loss_of, steps=3, program=lockstep_path, **options)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not optimizer.state, "a copy was trained"
    return found


@pytest.fixture
def program(binary_dir):
    return binary_dir / "lockstep"


def test_the_first_line_says_what_broke(program, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = debug(1e6, program)
    assert capsys.readouterr().out == f"{found.text}\n"
    assert found.text.startswith("torch-autocast-fp16")
    first = found.text.partition("\n\n")[0].replace("\n", " ")
    assert "inner linear" in first and "fp16 ends at 65504" in first and "test_capture_debug.py:" in first
    assert found.faithful and "`lockstep verify` passed." in found.text
    assert "  lockstep recommend FOLDER/debug.h5 --fix torch-autocast-fp16\n" in found.text
    assert str(tmp_path) not in found.text and found.text.endswith("keeps the files.")
    lanes = {lane["name"]: lane["findings"] for lane in found.lanes}
    assert lanes["torch-autocast-fp16"][0]["kind"] == "overflow" and not lanes["torch-autocast-bf16"]
    assert not os.listdir(tmp_path), "nothing remains"


def test_a_healthy_model_and_files_that_are_kept(program, tmp_path):
    found = debug(1.0, program, lanes=["torch-autocast-bf16"], keep=tmp_path / "kept")
    assert [lane["name"] for lane in found.lanes if lane["findings"]] == []
    assert {"debug.h5", "debug.lscap.h5", "debug.txt"} <= set(os.listdir(tmp_path / "kept"))


def test_more_steps_than_were_captured_and_the_files_that_are_kept(program, tmp_path):
    found = debug(1e6, program, keep=tmp_path, cycle=9, threads=1)
    command = f"lockstep recommend {tmp_path}/debug.h5 --fix torch-autocast-fp16"
    assert command in " ".join(found.text.replace("\\\n", "").split())
    run = lockstep_capture.read_run(tmp_path / "debug.h5")
    assert len(run.steps.loc["fp32"]) == 9


def test_the_lane_of_pytorchs_own_run_has_empty_tables(program, tmp_path):
    debug(1.0, program, keep=tmp_path, autocast="bfloat16", lanes=["torch-autocast-bf16"])
    run = lockstep_capture.read_run(tmp_path / "debug.h5")
    for by_step in (False, True):
        assert run.layer_table("captured", by_step=by_step).empty
        assert list(run.layer_table("captured", by_step)) == list(run.layer_table("fp32", by_step))
    run.to_tensorboard(tmp_path / "events", program=program)
    assert "captured" in os.listdir(tmp_path / "events")


def test_errors(program, monkeypatch):
    monkeypatch.delenv("LOCKSTEP", raising=False)
    with pytest.raises(lockstep_capture.CaptureError, match="no-such-program.*set LOCKSTEP"):
        debug(1.0, "no-such-program")
    with pytest.raises(lockstep_capture.CaptureError, match="lockstep replay: .*unheard-of"):
        debug(1.0, program, lanes=["unheard-of"])


def test_the_program_of_the_wheel(monkeypatch, tmp_path):
    from lockstep_capture import program

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("LOCKSTEP", raising=False)
    monkeypatch.setattr(program, "program_path", lambda: None)
    with pytest.raises(lockstep_capture.CaptureError, match="'lockstep' is not a program here; install the wheel"):
        program.find_program()
    monkeypatch.setattr(program, "program_path", lambda: tmp_path / "bin" / "lockstep")
    assert program.find_program() == str(tmp_path / "bin" / "lockstep")
    with pytest.raises(lockstep_capture.CaptureError, match="'other' is not a program here"):
        program.find_program("other")
    on_path = tmp_path / "lockstep"
    on_path.touch(mode=0o755)
    assert program.find_program() == str(on_path)
