"""Defects planted in a lane's arithmetic: `lockstep check` is red, names the lane, and says what was changed.

A policy file plays the kernels: the baseline is recorded with it, then one of its keys goes wrong.
"""

import re

import pytest

LANE = "kernels.toml"
GOOD = {
    "extends": '"torch-autocast-fp16"',
    "[gemm]": {"accumulator": '"fp32_fused"'},
    "[reduce]": {"accumulator": '"fp32_fused"'},
    "[storage]": {"rounding": '"nearest_even"'},
    "[loss_scale]": {"init_scale": "65536.0"},
}


def text_of(policy):
    lines = []
    for key, value in policy.items():
        if isinstance(value, dict):
            lines += [key] + [f"{name} = {number}" for name, number in value.items()]
        else:
            lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"


def changed(section, **keys):
    policy = {name: dict(value) if isinstance(value, dict) else value for name, value in GOOD.items()}
    policy.setdefault(section, {}).update(keys)
    return policy


DEFECTS = {
    "truncating rounding": changed("[storage]", rounding='"toward_zero"'),
    "rounding away at ties and beyond": changed("[storage]", rounding='"up"'),
    "stochastic rounding": changed("[storage]", rounding='"stochastic"'),
    "sums of products in fp16": changed("[gemm]", accumulator='"fp16"'),
    "other sums in fp16": changed("[reduce]", accumulator='"fp16"'),
    "subnormals flushed to zero": changed("[autocast]", format='"fp16+flush_in"'),
    "products in bf16": changed("[autocast]", format='"bf16"'),
    "a stale cast of the weights: stored in fp16 without masters": changed("[storage]", weight='"fp16"'),
    "fp8 factors": changed("[gemm]", operand='"fp8_e4m3"'),
    "a loss scale too small": changed("[loss_scale]", init_scale="1.0"),
    "a loss scale that overflows": changed("[loss_scale]", init_scale="1073741824.0"),
}


@pytest.fixture(scope="module")
def baseline(lockstep, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    (folder / LANE).write_text(text_of(GOOD))
    lockstep(
        "baseline",
        "record",
        "lenet",
        "--steps",
        6,
        "--batch",
        16,
        "--lanes",
        f"fp32,{LANE}",
        "-o",
        "good.json",
        "--quiet",
        cwd=folder,
    )
    return folder


def test_the_unchanged_policy_is_identical(lockstep, baseline):
    (baseline / LANE).write_text(text_of(GOOD))
    assert "IDENTICAL" in lockstep("check", "lenet", "--baseline", "good.json", cwd=baseline).stdout


def test_comments_and_order_of_a_policy_do_not_matter(lockstep, baseline):
    turned = dict(reversed([(key, value) for key, value in GOOD.items() if key != "extends"]))
    (baseline / LANE).write_text("# the same\n" + text_of({"extends": GOOD["extends"], **turned}))
    assert "REGRESSION" not in lockstep("check", "lenet", "--baseline", "good.json", cwd=baseline).stdout


@pytest.mark.parametrize("defect", DEFECTS)
def test_planted_defect(lockstep, baseline, defect):
    (baseline / LANE).write_text(text_of(DEFECTS[defect]))
    said = lockstep("check", "lenet", "--baseline", "good.json", cwd=baseline, code=1).stdout
    first = " ".join(re.search(r"^REGRESSION: [\s\S]*?(?=\n\n)", said, re.M).group(0).split())
    assert f"lane {LANE}" in first, said
    assert "its policy differs" in said
