"""The modules of `--emit KIND` beyond one autocast: other 16-bit formats, TF32, torchao.

A stand-in records what torchao is asked for. Real torchao: test_emitted_torchao.py.
"""

import copy
import json
import pathlib
import subprocess
import sys
import types

import pytest
import torch
from recipes_in_torch import Products, captured_graph, emit, products_of_capture
from test_pytorch_module import NETWORKS, STEPS, made, train

nn = torch.nn
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")
SOURCE = pathlib.Path(__file__).resolve().parents[3]


def rule(layer, compute, op="*"):
    return f'[[rule]]\nlayer = {json.dumps(layer)}\nop = "{op}"\ncompute = "{compute}"\n'


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    """name -> capture of the plain model"""
    paths = {}
    for name in ("cnn", "encoder_decoder"):
        paths[name] = tmp_path_factory.mktemp(name) / "plain.h5"
        model, batches, loss_of = made(NETWORKS[name][0])
        train(model, batches, loss_of, None, capture=paths[name])
    return paths


@pytest.fixture(autouse=True)
def switches():
    """TF32 is off before and after each test."""

    def off():
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    off()
    yield
    off()


CPU = 'extends = "torch-autocast-{}-cpu:2.13"\n'
# Layers in BF16 and FP32, inner ones of a listed layer among them, and the formats that products have then.
POLICIES = {
    "bf16 in fp16": (
        "cnn",
        CPU.format("fp16") + rule("layer1.0.body.0", "bf16") + rule("fc", "fp32"),
        {"fp16", "bf16", "fp32"},
    ),
    "bf16 in fp32": ("cnn", rule("layer1.0.body.0", "bf16") + rule("fc", "bf16"), {"bf16", "fp32"}),
    "bf16 and fp32 in tf32": (
        "cnn",
        'extends = "tf32:1"\n' + rule("layer1.0.body.0", "bf16") + rule("layer1.1.body.*", "fp32"),
        {"bf16", "fp32", "tf32"},
    ),
    "tf32 for matrices": ("cnn", 'extends = "tf32-matmul:1"\n', {"tf32", "fp32"}),
    "tf32 for convolutions": ("cnn", 'extends = "tf32-conv:1"\n', {"tf32", "fp32"}),
    "inner layers": (
        "encoder_decoder",
        'extends = "tf32:1"\n'
        + rule("decoder.0.self_attn", "fp32")
        + rule("decoder.1.mlp.up", "bf16")
        + rule("decoder.1.cross_attn", "fp32")
        + rule("decoder.1.cross_attn.q", "fp32"),
        {"bf16", "fp32", "tf32"},
    ),
}


@pytest.mark.parametrize("case", POLICIES)
def test_every_product_runs_in_the_policys_format(lockstep, binary_dir, tmp_path, captures, case):
    name, policy, formats = POLICIES[case]
    amp = emit(binary_dir, tmp_path, policy, captured_graph(captures[name]))
    model, batches, loss_of = made(NETWORKS[name][0])
    for _ in range(2):  # the second call changes nothing
        assert amp.apply(model) is model
    with Products(model, tf32=True) as products:
        with amp.autocast("cpu"):
            loss = loss_of(model, batches[0])
        loss.backward()
    forward, backward = products_of_capture(lockstep, captures[name], tmp_path / "policy.toml")
    assert products.forward == forward and products.backward == backward
    assert {fmt for _, fmt in forward} == formats
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == getattr(
        amp, "TF32", (False, False)
    )


def test_bf16_layers_without_autocast_compute_as_by_hand(binary_dir, tmp_path, captures):
    amp = emit(binary_dir, tmp_path, rule("fc", "bf16"), captured_graph(captures["cnn"]))
    model, batches, loss_of = made(NETWORKS["cnn"][0])
    plain = copy.deepcopy(model)
    seen = []
    plain.fc.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    loss_of(plain, batches[0])
    by_hand = torch.nn.functional.linear(
        seen[0].bfloat16(), plain.fc.weight.bfloat16(), plain.fc.bias.bfloat16()
    ).float()
    amp.apply(model)
    assert torch.equal(model(batches[0][0]), by_hand) and by_hand.dtype == torch.float32
    assert "result is widened to FP32" in " ".join(amp.__doc__.split())


def test_an_error_restores_the_switches(binary_dir, tmp_path, captures):
    amp = emit(binary_dir, tmp_path, 'extends = "tf32:1"\n' + rule("fc", "fp32"), captured_graph(captures["cnn"]))
    model = amp.apply(made(NETWORKS["cnn"][0])[0])
    with pytest.raises(RuntimeError):
        model.fc(torch.ones(1, 3))
    assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32


# What a policy needs of the module: nothing, regions in 16 bits, TF32, each library.
SCALED = {
    "torchao": ["fp8-current", "fp8-rowwise", "fp8-rowwise-bf16-wgrad", "mxfp8", "nvfp4-hadamard"],
    "transformer-engine": ["fp8-delayed", "fp8-tensorwise", "mxfp8-nvfp4-backward", "nvfp4"],
    "fsdp2": ["torch-autocast-bf16", "pure-bf16-master"],
}
VARIANTS = [
    ("pytorch", ""),
    *(("pytorch", policy) for name, policy, _ in POLICIES.values() if name == "cnn"),
    *((kind, f'extends = "{preset}"\n') for kind, presets in SCALED.items() for preset in presets),
]


@pytest.mark.parametrize("kind,policy", VARIANTS)
def test_the_module_is_formatted_and_knows_all_its_names(binary_dir, tmp_path, captures, kind, policy):
    pytest.importorskip("ruff", reason="ruff is not installed")
    emit(binary_dir, tmp_path, policy, captured_graph(captures["cnn"]), kind)
    for check in (["format", "--diff"], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *check, "--config", SOURCE / ".ruff.toml", tmp_path / "amp.py"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr


# ---- torchao


class Wide(nn.Module):
    """Linear layers of sizes that FP8 products take, one of an nn.MultiheadAttention."""

    def __init__(self):
        super().__init__()
        self.up, self.attn, self.down = (
            nn.Linear(32, 64),
            nn.MultiheadAttention(64, 2, batch_first=True),
            nn.Linear(64, 32, bias=False),
        )
        self.head = nn.Linear(32, 32)

    def forward(self, x):
        h = torch.relu(self.up(x))
        return self.head(torch.relu(self.down(h + self.attn(h, h, h, need_weights=False)[0])))


def wide():
    g = torch.Generator().manual_seed(4)
    batches = [(torch.randn(4, 8, 32, generator=g), torch.randn(4, 8, 32, generator=g)) for _ in range(STEPS)]
    return Wide(), batches, lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])


@pytest.fixture(scope="module")
def wide_capture(tmp_path_factory):
    path = tmp_path_factory.mktemp("wide") / "wide.h5"
    model, batches, loss_of = made(wide)
    train(model, batches, loss_of, None, capture=path)
    return path


def amp_of(binary_dir, folder, capture, preset, *rules, kind="torchao"):
    return emit(binary_dir, folder, f'extends = "{preset}"\n' + "".join(rules), captured_graph(capture), kind)


@pytest.fixture
def torchao(monkeypatch):
    """A stand-in for torchao.float8 and for the parts of torchao that MXFP8 needs; the calls it got."""
    calls = []

    def convert(model, *, config, module_filter_fn):
        chosen = [
            name
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module_filter_fn(module, name)
        ]
        calls.append((config, chosen))

    def product(x, weight, kernels, scales, wgrad_with_hp):
        calls.append((tuple(x.shape), x.dtype, weight.dtype, kernels, scales, wgrad_with_hp))
        return nn.functional.linear(x, weight)

    def keep(**arguments):
        return arguments

    modules = {
        "torchao.float8": {
            "CastConfig": keep,
            "Float8GemmConfig": keep,
            "Float8LinearConfig": keep,
            "convert_to_float8_training": convert,
        },
        "torchao.float8.config": {
            "ScalingGranularity": {"TENSORWISE": "tensorwise", "AXISWISE": "axiswise"},
            "ScalingType": types.SimpleNamespace(DISABLED="disabled"),
        },
        "torchao.prototype.moe_training.config": {
            "MXFP8TrainingOpConfig": lambda **arguments: types.SimpleNamespace(**arguments)
        },
        "torchao.prototype.moe_training.mxfp8_linear": {"_to_mxfp8_then_scaled_mm": product},
        "torchao.prototype.mx_formats.config": {"ScaleCalculationMode": {"RCEIL": "rceil", "FLOOR": "floor"}},
        "torchao.quantization.quantize_.common": {
            "KernelPreference": types.SimpleNamespace(AUTO="auto", EMULATED="emulated")
        },
    }
    for name in list(modules):
        for dot in [i for i, letter in enumerate(name) if letter == "."]:
            modules.setdefault(name[:dot], {})
    for name, content in modules.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return calls


def test_torchao_gets_the_layers_and_the_formats(binary_dir, tmp_path, wide_capture, torchao):
    amp = amp_of(binary_dir, tmp_path, wide_capture, "fp8-current:1", rule("head", "bf16"), rule("up", "fp32"))
    assert amp.SCALED_LAYERS == ["down"] and amp.FP32_LAYERS == ["up"] and amp.DTYPE is torch.bfloat16
    model = made(wide)[0]
    assert amp.apply(model) is model
    e4m3, e5m2 = (
        {"scaling_granularity": "tensorwise", "target_dtype": dtype}
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    )
    config = {
        "cast_config_input": e4m3,
        "cast_config_input_for_grad_weight": e4m3,
        "cast_config_weight": e4m3,
        "cast_config_weight_for_grad_input": e4m3,
        "cast_config_grad_output": e5m2,
        "cast_config_grad_output_for_grad_weight": e5m2,
        **{f"gemm_config_{product}": {"use_fast_accum": False} for product in ("output", "grad_input", "grad_weight")},
        "round_scales_to_power_of_2": False,
    }
    assert torchao == [(config | {"emulate": False}, ["down"])]
    amp.apply(amp.apply(made(wide)[0], emulate=True))
    assert torchao[1:] == [(config | {"emulate": True}, ["down"])], "the second call changes nothing"
    said = " ".join(amp.__doc__.split())
    assert "torchao 0.18" in said and "attn: factors of linear are rounded to" in said and "head" not in said


def test_powers_of_two_and_e4m3_gradients_are_torchaos_too(binary_dir, tmp_path, wide_capture, torchao):
    more = '[scaling]\npower_of_two = true\ngrad_operand = "fp8_e4m3+saturate"\n'
    amp_of(binary_dir, tmp_path, wide_capture, "fp8-current:1", more).apply(made(wide)[0])
    config, layers = torchao[0]
    assert (
        config["round_scales_to_power_of_2"]
        and config["cast_config_grad_output"]["target_dtype"] is torch.float8_e4m3fn
    )
    assert layers == ["up", "down", "head"]


def test_what_no_library_can_replace_is_told(binary_dir, tmp_path, wide_capture, torchao):
    amp = amp_of(binary_dir, tmp_path, wide_capture, "fp8-current:1")
    model = made(wide)[0]
    model.up, model.head = nn.Linear(32, 63), nn.Sequential(nn.Linear(32, 32))
    with pytest.raises(ValueError, match="'up': 63 x 32 weights, must be multiples of 16"):
        amp.apply(model)
    with pytest.warns(UserWarning, match=r"not an nn.Linear.*head \(Sequential\)"):
        amp.apply(model, emulate=True)
    assert torchao[0][1] == ["up", "down"]
    del model.down
    with pytest.raises(ValueError, match="'down': not in the model"):
        amp.apply(model)


@pytest.mark.parametrize("emulate", [False, True])
def test_mxfp8_of_torchao_under_autocast(binary_dir, tmp_path, wide_capture, torchao, emulate):
    amp = amp_of(binary_dir, tmp_path, wide_capture, "mxfp8:1", rule("head", "bf16"))
    assert amp.SCALED_LAYERS == ["up", "down"] and amp.SCALED_MULTIPLE == 32
    model, batches, loss_of = made(wide)
    plain, x = copy.deepcopy(model), batches[0][0]
    amp.apply(amp.apply(model, emulate=emulate), emulate=emulate)
    with amp.autocast("cpu"):
        loss_of(model, batches[0]).backward()
        assert model.up(x).dtype == torch.bfloat16
    kernels = "emulated" if emulate else "auto"
    low = (torch.bfloat16, torch.bfloat16, kernels, "rceil", False)
    assert torchao == [((4, 8, 32), *low), ((4, 8, 64), *low), ((4, 8, 32), *low)]
    assert model.up.weight.grad.dtype == model.up(x).dtype == torch.float32
    by_hand = nn.functional.linear(x.bfloat16(), plain.up.weight.bfloat16()) + plain.up.bias.bfloat16()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.up.weight.zero_()
    assert torch.equal(model.up(x), by_hand.float()) and not torch.equal(other.up(x), model.up(x))
    assert list(model.state_dict()) == list(plain.state_dict())
