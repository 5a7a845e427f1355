"""The module of `recommend --emit-pytorch` beyond one autocast: other 16-bit formats, TF32, torchao, Transformer Engine.

torchao and Transformer Engine are not installed: stand-ins record what they are asked for. Where torchao is there, the
emitted module runs with it, and its losses are compared with those of Lockstep's lane.
"""

import contextlib
import copy
import json
import pathlib
import subprocess
import sys
import types

import pytest
import torch
from lockstep_capture import read_run
from recipes_in_torch import Products, captured_graph, emit, products_of_policy
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
    program = json.loads(lockstep("explain", captures[name], "--policy", tmp_path / "policy.toml", "--json").stdout)
    forward, backward = products_of_policy(program, captured_graph(captures[name]))
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
VARIANTS = [
    "",
    *(policy for name, policy, _ in POLICIES.values() if name == "cnn"),
    *(f'extends = "{preset}:1"\n' for preset in ("fp8-delayed", "fp8-current", "mxfp8", "nvfp4")),
]


@pytest.mark.parametrize("policy", VARIANTS)
def test_the_module_is_formatted_and_knows_all_its_names(binary_dir, tmp_path, captures, policy):
    pytest.importorskip("ruff", reason="ruff is not installed")
    emit(binary_dir, tmp_path, policy, captured_graph(captures["cnn"]))
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


def amp_of(binary_dir, folder, capture, preset, *rules):
    return emit(binary_dir, folder, f'extends = "{preset}"\n' + "".join(rules), captured_graph(capture))


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

    def product(x, weight, kernels, scales):
        calls.append((tuple(x.shape), x.dtype, weight.dtype, kernels, scales))
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
        "torchao.prototype.moe_training.mxfp8_linear": {"_to_mxfp8_then_scaled_mm": product},
        "torchao.prototype.mx_formats.config": {"ScaleCalculationMode": types.SimpleNamespace(RCEIL="rceil")},
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
    e4m3, e5m2 = {"target_dtype": torch.float8_e4m3fn}, {"target_dtype": torch.float8_e5m2}
    config = {
        "cast_config_input": e4m3,
        "cast_config_weight": e4m3,
        "cast_config_grad_output": e5m2,
        "gemm_config_output": {"use_fast_accum": False},
        "round_scales_to_power_of_2": False,
    }
    assert torchao == [(config | {"emulate": False}, ["down"])]
    amp.apply(amp.apply(made(wide)[0], emulate=True))
    assert torchao[1:] == [(config | {"emulate": True}, ["down"])], "the second call changes nothing"
    said = " ".join(amp.__doc__.split())
    assert "torchao 0.18" in said and "attn: factors of linear are rounded to" in said and "head" not in said
    with pytest.raises(ValueError, match="library='fbgemm', must be one of"):
        amp.apply(made(wide)[0], library="fbgemm")


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
    low = (torch.bfloat16, torch.bfloat16, kernels, "rceil")
    assert torchao == [((4, 8, 32), *low), ((4, 8, 64), *low), ((4, 8, 32), *low)]
    assert model.up.weight.grad.dtype == model.up(x).dtype == torch.float32
    by_hand = nn.functional.linear(x.bfloat16(), plain.up.weight.bfloat16()) + plain.up.bias.bfloat16()
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.up.weight.zero_()
    assert torch.equal(model.up(x), by_hand.float()) and not torch.equal(other.up(x), model.up(x))
    assert list(model.state_dict()) == list(plain.state_dict())


def own_outputs():
    """Targets are the outputs of the untrained model in FP32, so the first loss is the error of the formats alone."""
    model, batches, loss_of = wide()
    with torch.no_grad():
        return model, [(x, model(x)) for x, _ in batches], loss_of


def test_the_real_torchao_computes_as_the_lane(lockstep, binary_dir, tmp_path):
    """Emulated on the CPU. It adds biases after a rounding, and in MXFP8 the weight is in BF16 first: 0.990 and 0.999 of the lane's loss."""
    pytest.importorskip("torchao", reason="torchao is not installed")
    path, run = tmp_path / "own.h5", tmp_path / "run.h5"
    model, batches, loss_of = made(own_outputs)
    train(model, batches, loss_of, None, capture=path)
    for preset in ("fp8-current:1", "mxfp8:1"):
        amp = amp_of(binary_dir, tmp_path, path, preset, rule("head", "bf16"), rule("attn", "bf16", "linear"))
        model, batches, loss_of = made(own_outputs)
        amp.apply(model, emulate=True)
        theirs = float(train(model, batches, loss_of, lambda: autocast_of_torchao(amp))[0])
        lockstep(
            "replay",
            path,
            "--lanes",
            f"fp32,torch-autocast-bf16,{tmp_path / 'policy.toml'}",
            "-o",
            run,
            "--overwrite",
            "--quiet",
        )
        first = dict(read_run(str(run)).steps["loss"].unstack("lane").iloc[0])
        bf16 = first["torch-autocast-bf16"]
        ours = next(
            loss for name, loss in first.items() if name not in ("fp32", "twin", "captured", "torch-autocast-bf16")
        )
        print(f"{preset}: loss {theirs:.3e} by torchao, {ours:.3e} in the lane, {bf16:.3e} in BF16")
        assert ours > 10 * bf16 and abs(theirs - ours) < 0.1 * ours


@contextlib.contextmanager
def autocast_of_torchao(amp):
    """Float8Linear asks for CUDA's autocast, whatever the device."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", amp.DTYPE)
    try:
        with amp.autocast("cpu"):
            yield
    finally:
        torch.set_autocast_enabled("cuda", False)


# ---- Transformer Engine


class StandIn(nn.Linear):
    """transformer_engine.pytorch.Linear: keeps what it was made with, and whether FP8 was on when it ran."""

    __module__ = "transformer_engine.pytorch.module.linear"
    fp8 = None  # (enabled, recipe) of the innermost autocast

    def __init__(self, in_features, out_features, bias, params_dtype, device):
        super().__init__(in_features, out_features, bias, device, params_dtype)
        self.ran_in = []

    def forward(self, x):
        self.ran_in.append(StandIn.fp8)
        return super().forward(x)


@contextlib.contextmanager
def stand_in_autocast(enabled, recipe):
    before, StandIn.fp8 = StandIn.fp8, (enabled, recipe if enabled else None)
    yield
    StandIn.fp8 = before


@pytest.fixture
def transformer_engine(monkeypatch):
    def named(name):
        return lambda **numbers: (name, tuple(sorted(numbers.items())))

    recipe = types.SimpleNamespace(
        Format=types.SimpleNamespace(HYBRID="hybrid", E4M3="e4m3"),
        **{
            name: named(name)
            for name in ("DelayedScaling", "Float8CurrentScaling", "MXFP8BlockScaling", "NVFP4BlockScaling")
        },
    )
    contents = {
        "transformer_engine": {},
        "transformer_engine.common": {"recipe": recipe},
        "transformer_engine.pytorch": {"Linear": StandIn, "autocast": stand_in_autocast},
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["transformer_engine"].pytorch = sys.modules["transformer_engine.pytorch"]


RECIPES = {
    "fp8-delayed:1": (
        "DelayedScaling",
        (("amax_compute_algo", "max"), ("amax_history_len", 1024), ("fp8_format", "hybrid"), ("margin", 0)),
    ),
    "fp8-current:1": ("Float8CurrentScaling", (("fp8_format", "hybrid"),)),
    "mxfp8:1": ("MXFP8BlockScaling", (("fp8_format", "e4m3"),)),
    "nvfp4:1": (
        "NVFP4BlockScaling",
        (("disable_2d_quantization", False), ("disable_rht", True), ("disable_stochastic_rounding", False)),
    ),
}


@pytest.mark.parametrize("preset", RECIPES)
def test_transformer_engine_gets_the_layers_and_the_recipe(
    binary_dir, tmp_path, wide_capture, transformer_engine, preset
):
    amp = amp_of(binary_dir, tmp_path, wide_capture, preset, rule("up", "fp32"))
    model, batches, loss_of = made(wide)
    plain = copy.deepcopy(model)
    model.attn.extra = StandIn(4, 4, False, torch.float32, "cpu")  # the user's own, not in the policy
    weight = model.down.weight
    library = {} if preset in ("fp8-delayed:1", "nvfp4:1") else {"library": "transformer_engine"}
    amp.apply(amp.apply(model, **library), **library)
    assert [name for name, module in model.named_modules() if isinstance(module, StandIn)] == [
        "attn.extra",
        "down",
        "head",
    ]
    assert model.down.weight is weight and model.down.bias is None and model.head.bias is not None
    with amp.autocast("cpu"):
        loss_of(model, batches[0])
    assert model.down.ran_in == model.head.ran_in == [(True, RECIPES[preset])]
    model.attn.extra(torch.ones(1, 4))
    assert model.attn.extra.ran_in == [(False, None)] and StandIn.fp8 is None
    assert amp.FP32_LAYERS == ["up"] and torch.equal(model(batches[0][0]), plain(batches[0][0]))
    assert "Lockstep never ran Transformer Engine" in " ".join(amp.__doc__.split())
