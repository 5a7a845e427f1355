"""Modules of `--emit torchao` in the real torchao on the CPU: layers, configurations, and a linear layer's y, dx, dw.

The products run in the order of Lockstep's sums, as in test_torchao_recipes.py; everything else is torchao's.
"""

import contextlib
import dataclasses

import lockstep_capture
import numpy as np
import pytest
import torch
from lockstep_capture import read_run
from recipes_in_torch import captured_graph, emit
from test_torchao_recipes import operands, ordered_mm, ours  # noqa: F401  fixtures

pytest.importorskip("torchao", reason="torchao is not installed")
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.quantization import quantize_

nn = torch.nn
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")


class Net(nn.Module):
    """Linear layers of the sizes of test_torchao_recipes.py's operands; `head.up` has a name that `up` is a part of."""

    def __init__(self, bias):
        super().__init__()
        self.up = nn.Linear(96, 128, bias=bias)
        self.head = nn.ModuleDict({"up": nn.Linear(128, 128, bias=bias), "out": nn.Linear(128, 32, bias=bias)})

    def forward(self, x):
        return self.head["out"](torch.relu(self.head["up"](torch.relu(self.up(x)))))


def net(bias=False):
    torch.manual_seed(7)
    return Net(bias)


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """The targets are the model's own outputs in FP32, so that the first loss is the error of the formats."""
    path = tmp_path_factory.mktemp("net") / "net.h5"
    model = net(bias=True)
    lockstep_capture.capture(
        path, model, torch.optim.SGD(model.parameters(), 0.01), batches(), loss_of, steps=2, quiet=True
    )
    return path


def batches():
    generator, model = torch.Generator().manual_seed(4), net(bias=True)
    inputs = [torch.randn(64, 96, generator=generator) for _ in range(2)]
    with torch.no_grad():
        return [(x, model(x)) for x in inputs]


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


KEPT = '[[rule]]\nlayer = "head.out"\ncompute = "bf16"\n'


@pytest.fixture
def amp_of(binary_dir, tmp_path, capture):
    def make(preset, more=KEPT):
        return emit(binary_dir, tmp_path, f'extends = "{preset}"\n{more}', captured_graph(capture), "torchao")

    return make


@contextlib.contextmanager
def autocast(amp):
    """Float8Linear asks for CUDA's autocast, whatever the device."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", amp.DTYPE)
    try:
        with amp.autocast("cpu"):
            yield
    finally:
        torch.set_autocast_enabled("cuda", False)


PRESETS = {
    "fp8-tensorwise": "tensorwise",
    "fp8-rowwise": "rowwise",
    "fp8-rowwise-bf16-wgrad": "rowwise_with_gw_hp",
    "mxfp8": None,
    "mxfp8-bf16-wgrad": None,
}
EXACT = [preset for preset in PRESETS if preset != "fp8-tensorwise"]  # whose scales are powers of two


def results(layer, operands):  # noqa: F811
    x, w, dy = (torch.tensor(a).bfloat16() for a in operands)
    x.requires_grad_()
    with torch.no_grad():
        layer.weight.copy_(w)
    y = layer(x)
    y.backward(dy)
    return [a.detach().float().numpy() for a in (y, x.grad, layer.weight.grad)]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_linear_layer_of_the_module_computes_as_the_lane(ordered_mm, operands, amp_of, preset):  # noqa: F811
    amp = amp_of(preset)
    model = amp.apply(net().bfloat16(), emulate=True)
    with autocast(amp):
        theirs = results(model.up, operands)
    mine = ours(preset, operands)
    for name, a, b in zip(("y", "dx", "dw"), mine, theirs):
        if preset in EXACT:
            assert np.array_equal(a, b), f"{name}: {(a != b).mean():.2%} differ"
        else:  # as in test_torchao_recipes.py
            bound = 2.0**-7 * np.abs(b) + 2 * 130 * 2.0**-24 * np.abs(b).max()
            assert (np.abs(a - b) <= bound).all() and (a == b).mean() > 0.97
    others = [results(amp_of(other).apply(net().bfloat16(), emulate=True).up, operands) for other in EXACT]
    assert sum(all(map(np.array_equal, mine, other)) for other in others) == (preset in EXACT)


@pytest.mark.parametrize("preset", PRESETS)
def test_the_network_has_the_lanes_loss(lockstep, tmp_path, capture, amp_of, preset):
    """torchao adds biases after a rounding, and in MXFP8 the weight is in BF16 first: a tenth of the formats' error."""
    amp, run = amp_of(preset), tmp_path / "run.h5"
    model = amp.apply(net(bias=True), emulate=True)
    with autocast(amp):
        theirs = float(loss_of(model, batches()[0]))
    lanes = f"fp32,torch-autocast-bf16,{tmp_path / 'policy.toml'}"
    lockstep("replay", capture, "--lanes", lanes, "-o", run, "--quiet")
    first = dict(read_run(str(run)).steps["loss"].unstack("lane").iloc[0])
    bf16 = first["torch-autocast-bf16"]
    (mine,) = (loss for lane, loss in first.items() if lane.endswith("policy.toml"))
    print(f"{preset}: loss {theirs:.3e} by torchao, {mine:.3e} in the lane, {bf16:.3e} in BF16")
    assert mine > 10 * bf16 and abs(theirs - mine) < 0.1 * mine


@pytest.mark.parametrize("preset,recipe", [(p, r) for p, r in PRESETS.items() if r])
def test_a_named_recipe_is_the_configuration(amp_of, preset, recipe):
    amp = amp_of(preset)
    assert recipe == amp.RECIPE_NAME
    theirs = Float8LinearConfig.from_recipe_name(recipe)
    assert theirs.gemm_config_output.use_fast_accum and not amp.torchao_config().gemm_config_output.use_fast_accum
    assert (
        dataclasses.replace(theirs, gemm_config_output=amp.torchao_config().gemm_config_output) == amp.torchao_config()
    )
    fast = amp_of(preset, KEPT + '[gemm]\naccumulator = "hopper_fp8"\n')
    sums = fast.torchao_config()
    products = (sums.gemm_config_output, sums.gemm_config_grad_input, sums.gemm_config_grad_weight)
    assert all(product.use_fast_accum for product in products) and "hopper_fp8" not in fast.__doc__
    other = amp_of(preset, KEPT + '[scaling.dgrad]\nkind = "none"\n')
    assert other.RECIPE_NAME is None and other.torchao_config() != amp.torchao_config()


def test_only_the_layers_of_the_policy_are_replaced(amp_of):
    amp = amp_of("fp8-rowwise")
    model = net()
    names = dict(model.named_modules())
    chosen = [name for name, module in names.items() if amp.module_filter_fn(module, name)]
    assert chosen == amp.SCALED_LAYERS == ["up", "head.up"] and amp.KEPT_LAYERS == ["head.out"]
    assert amp.filter_fqns(model) == ["head.out"]
    weights = {name: id(p) for name, p in model.named_parameters()}
    amp.apply(amp.apply(model, emulate=True), emulate=True)
    replaced = [name for name, module in model.named_modules() if isinstance(module, Float8Linear)]
    assert replaced == chosen and weights == {name: id(p) for name, p in model.named_parameters()}
    inside = amp_of("fp8-rowwise", KEPT.replace("head.out", "up"))
    with pytest.raises(ValueError, match="'up': is part of 'head.up'"):
        inside.filter_fqns(net())


@pytest.mark.parametrize("rule", ["floor", "ceil", "rceil", "round"])
def test_quantize_with_the_mxfp8_configuration_computes_as_the_lane(ordered_mm, operands, amp_of, rule):  # noqa: F811
    more = f'[scaling]\noperand = "mxfp8_e4m3+{rule}"\ngrad_operand = "mxfp8_e4m3+{rule}"\n'
    amp = amp_of("mxfp8", more + KEPT)
    model = net().bfloat16()
    with torch.no_grad():
        model.up.weight.copy_(torch.tensor(operands[1]).bfloat16())
    quantize_(model, amp.torchao_config(emulate=True), filter_fn=amp.module_filter_fn)
    wrapped = [
        name for name, p in model.named_parameters() if type(p.data).__name__ == "MXFP8TrainingWeightWrapperTensor"
    ]
    assert wrapped == ["up.weight", "head.up.weight"]
    x = torch.tensor(operands[0]).bfloat16().requires_grad_()
    y = model.up(x)
    y.backward(torch.tensor(operands[2]).bfloat16())
    expected = ours_of(amp, operands, more)
    for a, b in zip(expected, (y, x.grad, model.up.weight.grad)):
        assert np.array_equal(a, b.detach().float().numpy())


def ours_of(amp, operands, more):  # noqa: F811
    import pathlib

    policy = pathlib.Path(amp.__file__).parent / "plain.toml"
    policy.write_text(f'extends = "mxfp8"\n{more}')
    return ours(policy, operands)


def test_nvfp4_replaces_the_layers(amp_of):
    """torchao's NVFP4 needs a GPU to run: layers, signs and weights are those of the policy."""
    from torchao.prototype.moe_training.nvfp4_training.nvfp4_training import NVFP4Linear

    amp = amp_of("nvfp4-hadamard")
    model = net()
    with pytest.raises(ValueError, match="'up': 128 x 96 weights, must be multiples of 128"):
        amp.apply(model)
    amp.SCALED_LAYERS.remove("up")
    weight = model.head["up"].weight
    amp.apply(model)
    assert [name for name, module in model.named_modules() if isinstance(module, NVFP4Linear)] == ["head.up"]
    assert model.head["up"].weight is weight
    signs = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)  # reference page of the recipes
    assert model.head["up"].rht_sign_vector == signs


@pytest.mark.parametrize(
    "preset,kind",
    [("fp8-blockwise", "transformer-engine"), ("nvfp4", "transformer-engine"), ("fp8-delayed", "transformer-engine")],
)
def test_a_recipe_that_torchao_lacks_is_listed(amp_of, preset, kind):
    amp = amp_of(preset)
    said = " ".join(amp.__doc__.split())
    assert "no configuration of torchao 0.18 is known to be the same" in said and f"--emit {kind} does" in said
    assert not hasattr(amp, "SCALED_LAYERS")
