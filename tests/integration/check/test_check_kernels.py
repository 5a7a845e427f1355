"""Mutation test of `lockstep check`: wrong kernels are red, and the report names the layer or stage that runs them.

`lockstep_planted` is `lockstep` with one wrong kernel, chosen by LOCKSTEP_PLANT (tests/tools/planted).
"""

import dataclasses
import re
import subprocess

import pytest
from conftest import assert_same_run

OVERFLOWING = 'extends = "torch-autocast-fp16"\n[loss_scale]\ninit_scale = 1099511627776.0\n'
LANES = ["--lanes", "fp32,torch-autocast-fp16,overflowing.toml"]
SUBJECTS = {
    "lenet": ["lenet", "--data", "synthetic:500", "--steps", 5, "--batch", 16, *LANES],
    "bert": [
        "bert",
        "--data",
        "grammar:10000",
        "--size",
        "layers=1,width=32,heads=4,context=16",
        "--optimizer",
        "adamw",
        "--steps",
        4,
        "--batch",
        8,
        *LANES,
    ],
    "gpt": [
        "gpt",
        "--data",
        "grammar:10000",
        "--size",
        "layers=1,width=32,heads=4,context=16",
        "--steps",
        4,
        "--batch",
        8,
        *LANES,
    ],
}


@dataclasses.dataclass
class Red:
    subject: str
    verdict: str  # a regular expression, found in the verdict's sentence
    first: str  # and one for the first place with other bits


RED = {
    "truncating_casts": Red(
        "lenet",
        "step 0: conv1 conv2d input operand: the rounding error",
        "step 0, lane torch-autocast-fp16, site conv1 conv2d input operand",
    ),
    "flushing_casts": Red(
        "lenet",
        "lane torch-autocast-fp16, step 0: .* are rounded to zero",
        "step 0, lane torch-autocast-fp16, site conv1 conv2d",
    ),
    "stale_casts": Red(
        "lenet",
        r"step 1: fc3 linear weight operand|limit is conv1 conv2d weight operand \(error, step 1\)",
        "step 1, lane torch-autocast-fp16, site conv1 conv2d weight operand",
    ),
    "fp16_sums": Red("lenet", "step 0: (fc1 linear|relu3 relu) output", "step 0, lane fp32, site fc1 linear"),
    "short_sums": Red("lenet", "step 0: fc1 linear output", "step 0, lane fp32, site fc1 linear"),
    "short_bias_gradients": Red("lenet", "fc3 linear_backward_bias grad_weight", "fc3 linear_backward_bias"),
    "biased_variance": Red("lenet", "bn1 batch_norm buffer output", "bn1 batch_norm buffer output"),
    "conv_border": Red("lenet", "conv1 conv2d output", "conv1 conv2d"),
    "conv_backward_tap": Red("lenet", "conv2 conv2d_backward_input", "conv2 conv2d_backward_input"),
    "relu_gradient_at_zero": Red("lenet", r"relu\d relu_backward", r"relu\d relu_backward"),
    "gradient_of_sum": Red("lenet", "loss cross_entropy_backward", "loss cross_entropy_backward"),
    "unscale_forgets_a_tensor": Red(
        "lenet",
        r"the first place beyond its limit is fc3 optimizer update operand \(error, step 0\)",
        "step 0.* fc3 optimizer update",
    ),
    "forgotten_momentum": Red("lenet", "step 1: .* optimizer", "step 1, lane fp32, site .* optimizer"),
    "found_inf_misses_nan": Red(
        "gpt",
        "lane overflowing.toml, step 0: .* at loss scale",
        "step 0, lane overflowing.toml, site .* optimizer update",
    ),
    "unbiased_variance": Red("bert", "embeddings.ln layer_norm output", "embeddings.ln layer_norm"),
    "tanh_gelu": Red("bert", r"encoder\.0\.mlp\.gelu gelu", r"encoder\.0\.mlp\.gelu gelu"),
    "short_softmax": Red("bert", r"encoder\.0\.attn\.softmax softmax", r"encoder\.0\.attn\.softmax softmax"),
    "dropout_scaled_by_p": Red("bert", "embeddings.dropout dropout output", "embeddings.dropout dropout"),
    "overwritten_embedding_gradient": Red("bert", "embeddings.token embedding_backward", "embedding_backward"),
    "no_bias_correction": Red("bert", "optimizer update", "step 0.* optimizer"),
    "coupled_weight_decay": Red("bert", "optimizer update", "step 0.* optimizer"),
}
# Not red: subject, verdict.
HARMLESS = {"reordered_sums": ("bert", "WITHIN NOISE|IMPROVED")}
KNOWN_MISSES = {
    "unshifted_softmax": ("bert", "WITHIN NOISE|IMPROVED"),  # differs by roundings until a score reaches 89
}


@pytest.fixture(scope="module")
def planted(binary_dir, baselines):
    """Runs lockstep_planted with a defect; returns the exit code and the text."""

    def run(defect, *args):
        done = subprocess.run(
            [binary_dir / "lockstep_planted", *map(str, args)],
            capture_output=True,
            text=True,
            cwd=baselines,
            env={"LOCKSTEP_PLANT": defect, "OMP_NUM_THREADS": "1"},
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def baselines(lockstep, tmp_path_factory):
    """The folder with SUBJECT.json, the baseline, and SUBJECT.h5, the same run."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "overflowing.toml").write_text(OVERFLOWING)
    for subject, run in SUBJECTS.items():
        lockstep("baseline", "record", *run, "--members", 6, "-o", f"{subject}.json", "--quiet", cwd=folder)
        lockstep("replay", *run, "--twins", 0, "-o", f"{subject}.h5", "--quiet", cwd=folder)
    return folder


def verdict_of(text):
    return " ".join(re.search(r"^[A-Z ]+: [\s\S]*?(?=\n\n|\Z)", text, re.M).group(0).split())


def replay(planted, subject, defect):
    run = f"{subject}.{defect or 'nothing'}.h5"
    code, text = planted(defect, "replay", *SUBJECTS[subject], "--twins", 0, "-o", run, "--quiet")
    assert code == 0, text
    return run


@pytest.mark.parametrize("subject", SUBJECTS)
def test_without_a_defect_every_bit_is_the_same(planted, baselines, subject):
    run = replay(planted, subject, "")
    assert_same_run(baselines / run, baselines / f"{subject}.h5")
    code, text = planted("", "check", run, "--baseline", f"{subject}.json")
    assert code == 0 and verdict_of(text).startswith("IDENTICAL"), text


def test_an_unknown_defect_is_an_error_and_every_known_one_is_tried(planted):
    code, text = planted("nonsense", "replay", *SUBJECTS["lenet"], "-o", "nonsense.h5")
    assert code == 2 and "LOCKSTEP_PLANT 'nonsense': unknown" in text
    known = re.search(r"known: (.*)", text).group(1).split(", ")
    assert set(known) == RED.keys() | HARMLESS.keys() | KNOWN_MISSES.keys()


@pytest.mark.parametrize("defect", RED)
def test_defect_is_red_and_named(lockstep, planted, baselines, defect):
    wanted = RED[defect]
    run = replay(planted, wanted.subject, defect)
    said = lockstep("check", run, "--baseline", f"{wanted.subject}.json", cwd=baselines, code=1).stdout
    assert re.search(wanted.verdict, verdict_of(said)), said
    said = lockstep("check", run, "--baseline", f"{wanted.subject}.h5", "--exact", cwd=baselines, code=1).stdout
    first = re.search(r"^First difference:\s+(.*)", said, re.M).group(1)
    assert re.search(wanted.first, first), said


@pytest.mark.parametrize("defect", HARMLESS | KNOWN_MISSES)
def test_what_is_harmless_or_invisible_is_not_red(lockstep, planted, baselines, defect):
    subject, verdict = (HARMLESS | KNOWN_MISSES)[defect]
    run = replay(planted, subject, defect)
    said = lockstep("check", run, "--baseline", f"{subject}.json", cwd=baselines).stdout
    assert re.match(verdict, verdict_of(said)), said


@pytest.mark.parametrize("defect", ["conv_border", "stale_casts"])
def test_two_programs_in_one_job(lockstep, binary_dir, baselines, defect):
    options = " ".join(map(str, SUBJECTS["lenet"][1:-2] + LANES[:1] + ["fp32,torch-autocast-fp16"]))
    said = lockstep(
        "check",
        "--a",
        binary_dir / "lockstep",
        "--b",
        binary_dir / "lockstep_planted",
        "lenet",
        "--replay",
        options,
        cwd=baselines,
        env={"LOCKSTEP_PLANT": defect, "OMP_NUM_THREADS": "1"},
        code=1,
    ).stdout
    assert re.search(RED[defect].verdict, verdict_of(said)), said
    assert re.search(
        RED[defect].first,
        " ".join(re.search(r"The first difference in bits: (.*?)\n\n", said, re.DOTALL).group(1).split()),
    ), said
