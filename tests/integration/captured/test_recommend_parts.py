"""`lockstep recommend PARTS/`: the policy does in a replay what the answer says, in the layers that it names."""

import json
import re
import shutil
import signal
import subprocess

import h5py
import pytest
import torch
from lockstep_capture import Parts
from part_networks import VOCABULARY, loss_of, network

MODULES = ["blocks.0", "blocks.2", "head"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("recommend") / "parts"
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    parts = Parts(path, model, MODULES, optimizer=optimizer, quiet=True, steps=3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        tokens = torch.randint(VOCABULARY, (4, 17), generator=generator)  # 64 rows, which fill FP8's tiles
        with parts.step(tokens):
            optimizer.zero_grad()
            loss_of(model, tokens).backward()
            optimizer.step()
    assert parts.finished
    return path


def advice(lockstep, folder, *args, code=0):
    return json.loads(lockstep("recommend", folder, "--json", *args, code=code).stdout)


def effects_in_replay(lockstep, folder, policy, path):
    """{part: (effect, standard error)} of the policy."""
    lockstep("replay", folder, "--lanes", f"fp32,{policy}", "-o", path, "--overwrite")
    report = json.loads(lockstep("report", path, "--format", "json").stdout)
    lane = next(lane for lane in report["lanes"] if lane["name"].endswith(policy.name))
    return {part["name"]: (part["effect"], part["effect_error"]) for part in lane["parts"]}


def scaled_layers(path):
    """Linear layers whose products have FP8 factors."""
    with h5py.File(path) as file:
        lane = next(file["lanes"][lane] for lane in file["lanes"] if lane.endswith("toml"))
        formats = [name.decode() for name in lane["site_formats"][()]]
        layers = [layer.decode() for layer in file["sites/layer"][()]]
    return {layer for layer, name in zip(layers, formats, strict=True) if name.startswith("fp8")}


def test_the_policy_does_what_the_answer_says(tmp_path, lockstep, folder):
    policy = tmp_path / "all.toml"
    said = advice(lockstep, folder, "--formats", "bf16,fp8", "--tolerance", "0.5", "-o", policy)
    assert said["answer"] == "narrow" and said["batches"] == 3
    (chosen,) = said["tried"]
    # The head has 50 columns, which FP8's tiles do not divide.
    assert [part["choice"] for part in chosen["parts"]] == ["narrow", "narrow", "base"]
    replayed = effects_in_replay(lockstep, folder, policy, tmp_path / "all.h5")
    for part in chosen["parts"]:
        effect, error = replayed[part["part"]]
        assert part["effect"] == pytest.approx(effect, rel=1e-9)
        assert part["error"] == pytest.approx(2 * 2**0.5 * error, rel=1e-9)
    assert chosen["chosen"]["effect"] == pytest.approx(sum(effect for effect, _ in replayed.values()), rel=1e-9)
    bound = 2 * (2 * sum(error**2 for _, error in replayed.values())) ** 0.5
    assert chosen["chosen"]["error"] == pytest.approx(bound, rel=1e-9)
    narrow = scaled_layers(tmp_path / "all.h5")
    assert {f"blocks.{i}.{name}" for i in (0, 2) for name in ("up", "down", "attention.q")} <= narrow
    assert "head" not in narrow


def test_parts_that_cost_too_much_stay_wide(tmp_path, lockstep, folder):
    """The bound is set between what all parts cost and what the best does."""
    said = advice(lockstep, folder, "--formats", "bf16,fp8", "--tolerance", "0.5")
    base = abs(said["base"]["chosen"]["effect"]) + said["base"]["chosen"]["error"]
    whole = abs(said["tried"][0]["chosen"]["effect"]) + said["tried"][0]["chosen"]["error"]
    assert base < whole / 2
    policy = tmp_path / "some.toml"
    tolerance = 0.9 * whole
    said = advice(lockstep, folder, "--formats", "bf16,fp8", "--tolerance", f"{tolerance:.9f}", "-o", policy)
    (chosen,) = said["tried"]
    assert chosen["passes"] and abs(chosen["chosen"]["effect"]) + chosen["chosen"]["error"] <= tolerance
    choices = {part["part"]: part for part in chosen["parts"]}
    assert [choices[name]["choice"] for name in ("blocks.0", "blocks.2")] != ["narrow"] * 2
    effects_in_replay(lockstep, folder, policy, tmp_path / "some.h5")
    narrow = scaled_layers(tmp_path / "some.h5")
    for name, part in choices.items():
        own = {layer for layer in narrow if layer == name or layer.startswith(name + ".")}
        assert bool(own) == (part["choice"] != "base"), (name, narrow)
        assert part.get("kept") not in own
    assert not {layer for layer in narrow if layer.startswith("blocks.1")}


def test_a_bound_that_the_base_does_not_keep(tmp_path, lockstep, folder):
    policy = tmp_path / "none.toml"
    said = lockstep("recommend", folder, "--tolerance", "1e-9", "-o", policy, code=3)
    assert re.match(r"(No answer|Unclear): bf16 ", said.stdout) and not policy.exists()
    assert "there is no policy to write" in said.stderr


def test_between_captured_parts_only_where_asked(tmp_path, lockstep, folder):
    args = ["--formats", "bf16,nvfp4", "--tolerance", "5", "-o"]
    plain, between = tmp_path / "plain.toml", tmp_path / "between.toml"
    advice(lockstep, folder, *args, plain)
    assert "blocks.1" not in plain.read_text(encoding="utf-8")
    said = advice(lockstep, folder, *args, between, "--interpolate")
    assert 'layer = "blocks.1.*"' in between.read_text(encoding="utf-8")
    rows = {part["part"]: part for part in said["tried"][0]["parts"]}
    assert rows["blocks.1"]["interpolated"] and "interpolated" not in rows["blocks.2"]
    middle = (rows["blocks.0"]["effect"] + rows["blocks.2"]["effect"]) / 2
    assert rows["blocks.1"]["effect"] == pytest.approx(middle, rel=1e-9)
    text = " ".join(lockstep("recommend", folder, *args[:-1], "--interpolate").stdout.split())
    assert "With 1 part that was not captured, interpolated:" in text and "blocks.1 *" in text


def test_what_is_interpolated_counts(lockstep, folder):
    said = advice(lockstep, folder, "--formats", "bf16,nvfp4", "--tolerance", "5", "--interpolate")["tried"][0]
    own = abs(said["chosen"]["effect"]) + said["chosen"]["error"]
    squares = sum(part["error"] ** 2 for part in said["parts"])
    whole = abs(sum(part["effect"] for part in said["parts"])) + squares**0.5
    assert whole > 1.01 * own
    tolerance = f"{(own + whole) / 2:.12f}"
    said = lockstep("recommend", folder, "--formats", "bf16,nvfp4", "--interpolate", "--tolerance", tolerance)
    text = " ".join(said.stdout.split())
    assert "What was not captured stays in bf16: with it, interpolated," in text and "blocks.1" not in text


def test_a_slash_at_the_end_is_the_same_folder(lockstep, folder):
    args = ["--formats", "bf16,fp8", "--tolerance", "0.5"]
    first = lockstep("recommend", folder, *args).stdout
    again = lockstep("recommend", f"{folder}/", *args)
    assert "part " not in again.stderr and again.stdout.split("replays")[0] == first.split("replays")[0]


def test_a_search_that_was_killed_goes_on(tmp_path, lockstep, folder, binary_dir):
    runs = folder.parent / "parts.recommend"
    shutil.rmtree(runs, ignore_errors=True)
    args = ["recommend", folder, "--formats", "bf16,fp8-rowwise", "--tolerance", "0.5"]
    process = subprocess.Popen([binary_dir / "lockstep", *map(str, args)], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "parts-fp8-rowwise" in line and "part 4/" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stderr.close()
    again = lockstep(*args)
    assert "part 1/9: " not in again.stderr.split("parts-fp8-rowwise-1")[0]  # the base was complete
    assert "part 9/9: " in again.stderr
    whole = lockstep(*args)
    assert "part " not in whole.stderr
    assert whole.stdout.split("replays of")[0] == again.stdout.split("replays of")[0]


def test_what_it_refuses(tmp_path, lockstep, folder):
    said = lockstep("recommend", folder, "--fix", "fp8-current", "--prove", "--steps", "5", code=2).stderr
    assert all(f"{name}: {folder} is a folder of parts" in said for name in ("--fix", "--prove", "--steps"))
    said = lockstep("recommend", folder, "--formats", "fp16,bf16", code=2).stderr
    assert "of parts, one of 16 bits and at least one narrower" in said
    said = lockstep("recommend", folder, "--formats", "tf32,fp8", code=2).stderr
    assert "of parts, one of 16 bits and at least one narrower" in said
    said = lockstep("recommend", folder, "--gpu", "a100", code=2).stderr
    assert "--gpu a100: has no unit for a format of less than 16 bits" in said
    assert "--interpolate" in lockstep("recommend", "lenet", "--interpolate", code=2).stderr
    with open(next(folder.glob("rank0/step*/head.lscap.h5")), "r+b") as file:
        file.seek(5000)
        before = file.read(1)
        file.seek(5000)
        file.write(bytes([before[0] ^ 1]))
    try:
        assert "head.lscap.h5" in lockstep("recommend", folder, code=2).stderr
    finally:
        with open(next(folder.glob("rank0/step*/head.lscap.h5")), "r+b") as file:
            file.seek(5000)
            file.write(before)
