"""Recurrent layers and strided linears in the CPU autocast lane against PyTorch 2.13's own BF16 kernels.

One op at a time, values and all gradients. What is compared is where the kernels round, which a policy states as
[recurrent] cells = "torch_cpu" (emulation/kernels/args/recurrent_rounding.h) and a capture as separate_bias; a sum of
products keeps its own order in FP32, so that a few results fall on the other side of a BF16 rounding. Bounds:
    equal bits        at least 0.95 of a tensor (seen: 0.98 and more); of what PyTorch keeps in FP32, up to 16 of its
                      unit roundoffs. One rounding left out, or one too many, leaves
                      at most 0.83 of an LSTM's and 0.56 of a GRU's.
    norm of the rest  at most u / 4, u = 2^-8 BF16's unit roundoff (seen: u / 12)
    largest distance  one ulp of BF16 at the tensor's largest magnitude, 2 u
As a control, the fused cell of the CUDA presets must fail them.
"""

import numpy as np
import pytest
import torch
from cpu_kernels import need_low_precision_lstm
from op_tool import run_op

POLICY = "torch-autocast-bf16-cpu:2.13"
EQUAL, UNIT_ROUNDOFF, FP32_DIGITS = 0.95, 2.0**-8, 16 * 2.0**-24
TIME, BATCH, IN, HIDDEN = 14, 6, 16, 32

torch.set_num_threads(1)

CASES = {
    "lstm": (torch.nn.LSTM, {}),
    "lstm_of_two_layers": (torch.nn.LSTM, {"num_layers": 2}),
    "lstm_both_ways": (torch.nn.LSTM, {"num_layers": 2, "bidirectional": True, "bias": False}),
    "lstm_projected": (torch.nn.LSTM, {"proj_size": 12}),
    "lstm_projected_both_ways": (torch.nn.LSTM, {"proj_size": 12, "num_layers": 2, "bidirectional": True}),
    "gru": (torch.nn.GRU, {}),
    "gru_of_two_layers": (torch.nn.GRU, {"num_layers": 2, "batch_first": True}),
    "gru_both_ways": (torch.nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}),
}


def missed(name, ours, theirs):
    """Which bounds a tensor misses."""
    ours, theirs = np.asarray(ours, np.float64), theirs.detach().double().numpy()
    equal = np.mean(np.abs(ours - theirs) <= FP32_DIGITS * np.abs(theirs))
    rest = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    ulps = np.abs(ours - theirs).max() / (2 * UNIT_ROUNDOFF * np.abs(theirs).max())
    print(f"  {name:24} equal {equal:.4f}  rest {rest / UNIT_ROUNDOFF:.3f} u  largest {ulps:.3f} ulp")
    bad = equal < EQUAL or rest > UNIT_ROUNDOFF / 4 or ulps > 1
    return [f"{name}: equal {equal:.3f}, rest {rest:.1e}, largest {ulps:.2f} ulp"] if bad else []


def compare(name, policy):
    """All misses of y and of the gradients of operands and weights."""
    make, options = CASES[name]
    if make is torch.nn.LSTM and not options.get("proj_size"):  # with projections it is single ops
        need_low_precision_lstm()
    torch.manual_seed(1)
    module = make(IN, HIDDEN, **options)
    cells = module.num_layers * (2 if module.bidirectional else 1)
    first = module.batch_first
    x = torch.randn((BATCH, TIME, IN) if first else (TIME, BATCH, IN), requires_grad=True)
    sizes = [module.proj_size or HIDDEN] + ([HIDDEN] if make is torch.nn.LSTM else [])
    states = [torch.randn(cells, BATCH, size, requires_grad=True) for size in sizes]
    with torch.autocast("cpu", torch.bfloat16):
        # x is no leaf, as in any model: of a leaf autocast would keep one cast for both directions.
        y, _ = module(x * 1, tuple(states) if len(states) == 2 else states[0])
    dy = torch.randn(y.shape).to(y.dtype)
    y.backward(dy)
    attrs = {
        "layers": module.num_layers,
        "bidirectional": module.bidirectional,
        "batch_first": first,
        "has_bias": module.bias,
        "separate_bias": first,
    }
    if module.proj_size:
        attrs["proj_size"] = module.proj_size
    named = {"x": x, **{f"state{i}": s for i, s in enumerate(states)}, **dict(module.named_parameters())}
    outputs, gradients = run_op(
        "lstm" if make is torch.nn.LSTM else "gru",
        [p.detach().numpy() for p in named.values()],
        attrs,
        dy.float().numpy(),
        dtype="fp32",
        policy=policy,
    )
    found = missed("y", outputs[0], y)
    for (label, p), gradient in zip(named.items(), gradients, strict=True):
        found += missed("d " + label, gradient, p.grad)
    return found


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", CASES)
def test_rounds_where_pytorch_does(name):
    print(f"\n{name}")
    assert compare(name, POLICY) == []


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_a_fused_cell_rounds_elsewhere(name, tmp_path):
    fused = tmp_path / "fused.toml"
    fused.write_text(
        f'extends = "{POLICY}"\n[autocast]\nlow_precision = ["lstm", "gru"]\n[recurrent]\ncells = "fused"\n'
    )
    assert any("d " in line for line in compare(name, str(fused))), "the comparison cannot tell the models apart"


@pytest.mark.parametrize("strided", [False, True])
def test_a_strided_linear_rounds_before_its_bias(strided):
    torch.manual_seed(2)
    module = torch.nn.Linear(IN, HIDDEN)
    x = torch.randn(BATCH, TIME, IN, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x.transpose(0, 1) if strided else x)
    dy = torch.randn(y.shape).to(y.dtype)
    y.backward(dy)
    seen = x.detach().transpose(0, 1) if strided else x.detach()

    def ours(attrs):
        return run_op(
            "linear",
            [p.detach().numpy() for p in (seen, module.weight, module.bias)],
            attrs,
            dy.float().numpy(),
            dtype="fp32",
            policy=POLICY,
        )

    (result,), gradients = ours({"separate_bias": strided})
    dx = x.grad.transpose(0, 1) if strided else x.grad
    found = missed("y", result, y)
    for name, gradient, theirs in zip(("dx", "dw", "db"), gradients, (dx, module.weight.grad, module.bias.grad)):
        found += missed(name, gradient, theirs)
    assert found == []
    (other,), _ = ours({"separate_bias": not strided})
    assert missed("y otherwise", other, y), "the comparison cannot tell the models apart"
