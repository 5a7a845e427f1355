"""A causal mask writes -inf into the scores. That is meant: no site of it may be blamed for anything."""

import h5py
import numpy as np

GPT = ["gpt", "--size", "layers=1,width=32", "--batch", 4]


def policy(path, init_scale):
    path.write_text(
        f'extends = "torch-autocast-fp16"\n[loss_scale]\ninit_scale = {init_scale:.1f}\ngrowth_interval = 1000\n'
    )
    return path


def sites(file):
    names = [f"{layer.decode()} {op.decode()}" for layer, op in zip(file["sites/layer"], file["sites/op"])]
    return names, np.array(file["sites/stat_exempt"], bool)


def test_a_healthy_masked_run_has_no_cause(lockstep, tmp_path):
    run = tmp_path / "healthy.h5"
    lockstep("replay", *GPT, "--steps", 25, "--lanes", f"fp32,{policy(tmp_path / 'p.toml', 1024)}", "-o", run)
    with h5py.File(run) as file:
        names, exempt = sites(file)
        assert {names[i] for i in np.flatnonzero(exempt)} == {"h.0.attn.mask masked_fill", "h.0.attn.softmax softmax"}
        for lane in file["lanes"].values():
            peaks = np.array(lane["moments/abs_max"])
            assert np.isinf(peaks[:, exempt]).any(), "the mask must be there for the test to mean something"
            assert not np.isinf(peaks[:, ~exempt]).any()
            # The first 20 steps and every tenth: none kept because of something not finite.
            assert lane["exponent_histogram"].shape[0] == 21
    text = lockstep("report", run, "--format", "text").stdout
    verdict = text.split("What rounding did")[0]
    assert "attn.mask" not in verdict and "infinit" not in verdict, verdict


def test_an_overflow_behind_a_mask_is_named(lockstep, tmp_path):
    run = tmp_path / "overflow.h5"
    lockstep("replay", *GPT, "--steps", 1, "--lanes", f"fp32,{policy(tmp_path / 'p.toml', 2.0**40)}", "-o", run)
    with h5py.File(run) as file:
        names, exempt = sites(file)
        lane = next(group for name, group in file["lanes"].items() if name != "fp32")
        assert lane["loss_scale/skipped"][0, 0] == 1
        culprit = lane["loss_scale/culprit_site"][0, 0]
        assert culprit >= 0 and not exempt[culprit]
        assert file["sites/scaled"][culprit] == 1, names[culprit]
