"""Modules of `--emit transformer-engine` and files of `--emit te-debug`.

Transformer Engine does not import without a GPU. Stand-ins take the arguments that its source declares, and no others:
version 2.20, transformer_engine/common/recipe/__init__.py, pytorch/tensor/*.py, pytorch/module/linear.py and
pytorch/quantization.py.
"""

import argparse
import contextlib
import copy
import re
import subprocess
import sys
import types

import pytest
import torch
import yaml
from recipes_in_torch import captured_graph, write
from test_pytorch_module import made
from test_pytorch_scaled import amp_of, rule, wide, wide_capture  # noqa: F401  fixtures

nn = torch.nn
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")


class Linear(nn.Linear):
    """transformer_engine.pytorch.Linear: keeps what it was made with, and whether FP8 was on when it ran."""

    __module__ = "transformer_engine.pytorch.module.linear"
    fp8 = None  # (enabled, recipe) of the innermost autocast

    def __init__(self, in_features, out_features, bias=True, params_dtype=None, device="cuda", name=None):
        super().__init__(in_features, out_features, bias, device, params_dtype)
        self.ran_in, self.name = [], name

    def forward(self, x):
        self.ran_in.append(Linear.fp8)
        return super().forward(x)


@contextlib.contextmanager
def autocast(enabled=True, calibrating=False, recipe=None, amax_reduction_group=None):
    before, Linear.fp8 = Linear.fp8, (enabled, recipe if enabled else None)
    yield
    Linear.fp8 = before


# What each class takes: the defaults of its source.
RECIPES = {
    "DelayedScaling": {"margin": 0, "fp8_format": "hybrid", "amax_history_len": 1024, "amax_compute_algo": "max"},
    "Float8CurrentScaling": {
        "fp8_format": "hybrid",
        "fp8_gemm_fprop": "fast",
        "fp8_gemm_dgrad": "split",
        "fp8_gemm_wgrad": "split",
    },
    "Float8BlockScaling": {"fp8_format": "e4m3"},
    "MXFP8BlockScaling": {"fp8_format": "e4m3"},
    "NVFP4BlockScaling": {
        "disable_rht": False,
        "disable_stochastic_rounding": False,
        "disable_2d_quantization": False,
    },
    "CustomRecipe": {"qfactory": None},
}
QUANTIZERS = {
    "float8_tensor": {
        "Float8CurrentScalingQuantizer": {
            "fp8_dtype": None,
            "device": None,
            "force_pow_2_scales": False,
            "amax_epsilon": 0.0,
        }
    },
    "float8_blockwise_tensor": {
        "Float8BlockQuantizer": {
            "fp8_dtype": None,
            "rowwise": None,
            "columnwise": None,
            "amax_epsilon": 0.0,
            "force_pow_2_scales": True,
            "block_scaling_dim": 2,
        }
    },
    "mxfp8_tensor": {"MXFP8Quantizer": {"fp8_dtype": None}},
    "nvfp4_tensor": {
        "NVFP4Quantizer": {
            "with_rht": False,
            "with_post_rht_amax": False,
            "with_2d_quantization": False,
            "stochastic_rounding": False,
        }
    },
    "identity_tensor": {"IdentityQuantizer": {}},
    "hybrid_tensor": {
        "HybridQuantizer": {"rowwise_quantizer": None, "columnwise_quantizer": None, "columnwise_source": "original"}
    },
}


def stand_in(name, known):
    def make(**arguments):
        assert not arguments.keys() - known.keys(), f"{name}: {arguments}"
        return name, known | arguments

    return make


@pytest.fixture
def transformer_engine(monkeypatch):
    recipes = {name: stand_in(name, known) for name, known in RECIPES.items()}
    recipe = types.SimpleNamespace(Format=types.SimpleNamespace(HYBRID="hybrid", E4M3="e4m3"), **recipes)
    recipe.MMParams = lambda use_split_accumulator: "split" if use_split_accumulator else "fast"
    contents = {
        "transformer_engine": {},
        "transformer_engine.common": {"recipe": recipe},
        "transformer_engine.pytorch": {"Linear": Linear, "autocast": autocast},
        "transformer_engine.pytorch.constants": {
            "DType": types.SimpleNamespace(kFloat8E4M3="e4m3", kFloat8E5M2="e5m2")
        },
        "transformer_engine.pytorch.quantization": {
            "DelayedScalingRequest": stand_in("DelayedScalingRequest", RECIPES["DelayedScaling"])
        },
        "transformer_engine.pytorch.tensor": {},
    }
    for file, classes in QUANTIZERS.items():
        made = {name: stand_in(name, known) for name, known in classes.items()}
        contents[f"transformer_engine.pytorch.tensor.{file}"] = made
    for name, content in contents.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules["transformer_engine"].pytorch = sys.modules["transformer_engine.pytorch"]


def module_of(binary_dir, folder, capture, preset, *rules):
    return amp_of(binary_dir, folder, capture, preset, *rules, kind="transformer-engine")


# The recipe of each preset: a class and what differs from its defaults.
RECIPE_OF = {
    "fp8-delayed": ("DelayedScaling", {}),
    "fp8-current": ("Float8CurrentScaling", {"fp8_gemm_fprop": "split"}),
    "fp8-blockwise": ("Float8BlockScaling", {}),
    "mxfp8": ("MXFP8BlockScaling", {}),
    "nvfp4": ("NVFP4BlockScaling", {"disable_rht": True}),
    "nvfp4-hadamard": ("NVFP4BlockScaling", {}),
    **{
        preset: ("CustomRecipe", {})
        for preset in (
            "fp8-tensorwise",
            "mxfp8-bf16-wgrad",
            "mxfp8-bf16-backward",
            "bf16-mxfp8-backward",
            "mxfp8-nvfp4-backward",
        )
    },
}


@pytest.mark.parametrize("preset", RECIPE_OF)
def test_transformer_engine_gets_the_layers_and_the_recipe(
    binary_dir,
    tmp_path,
    wide_capture,  # noqa: F811
    transformer_engine,
    preset,
):
    amp = module_of(binary_dir, tmp_path, wide_capture, preset, rule("up", "fp32"))
    model, batches, loss_of = made(wide)
    if preset == "fp8-blockwise":
        with pytest.raises(ValueError, match="must be multiples of 128"):
            amp.apply(model)
        amp.SCALED_MULTIPLE = 16
    plain = copy.deepcopy(model)
    model.attn.extra = Linear(4, 4, False, torch.float32, "cpu")  # the user's own, not in the policy
    weight = model.down.weight
    amp.apply(amp.apply(model))
    assert [name for name, m in model.named_modules() if isinstance(m, Linear)] == ["attn.extra", "down", "head"]
    assert model.down.weight is weight and model.down.bias is None and model.head.bias is not None
    assert model.down.name == "down" and amp.KEPT_LAYERS == ["up"]
    with amp.autocast("cpu"):
        loss_of(model, batches[0])
    name, arguments = RECIPE_OF[preset]
    expected = RECIPES[name] | arguments
    if name == "CustomRecipe":
        expected["qfactory"] = amp.quantizer_factory
    assert model.down.ran_in == model.head.ran_in == [(True, (name, expected))]
    model.attn.extra(torch.ones(1, 4))
    assert model.attn.extra.ran_in == [(False, None)] and Linear.fp8 is None
    assert amp.FP32_LAYERS == ["up"] and torch.equal(model(batches[0][0]), plain(batches[0][0]))
    assert "Lockstep never ran Transformer Engine" in " ".join(amp.__doc__.split())


# What the factors of each product are rounded to, in the words of this test:
# (fprop: input, weight), (dgrad: gradient, weight), (wgrad: gradient, input).
MX, FP4, FP4_TURNED, FP4_SQUARE = "mxfp8", "nvfp4", "nvfp4 turned", "nvfp4 square"
PLAIN = (None, None)
FACTORS_OF = {
    "fp8-current": (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e5m2", "e4m3")),
    "fp8-tensorwise": (("e4m3 least", "e4m3 least"), ("e5m2 least", "e4m3 least"), ("e5m2 least", "e4m3 least")),
    "fp8-blockwise": (("block 1", "block 2"), ("block 1", "block 2"), ("block 1", "block 1")),
    "mxfp8": ((MX, MX), (MX, MX), (MX, MX)),
    "mxfp8-bf16-wgrad": ((MX, MX), (MX, MX), PLAIN),
    "mxfp8-bf16-backward": ((MX, MX), PLAIN, PLAIN),
    "bf16-mxfp8-backward": (PLAIN, (MX, MX), (MX, MX)),
    "nvfp4": ((FP4, FP4_SQUARE), ("random nvfp4", FP4_SQUARE), ("random nvfp4", FP4)),
    "nvfp4-hadamard": ((FP4, FP4_SQUARE), ("random nvfp4", FP4_SQUARE), ("random nvfp4 turned", FP4_TURNED)),
    "mxfp8-nvfp4-backward": ((MX, MX), ("random nvfp4", FP4_SQUARE), ("random nvfp4 turned", FP4_TURNED)),
}


def in_words(quantizer, columns):
    """What a quantizer makes of a tensor along rows or along columns; the transform of NVFP4 is that of columns."""
    name, arguments = quantizer
    if name == "HybridQuantizer":
        assert arguments["columnwise_source"] == "original"
        return in_words(arguments["columnwise_quantizer" if columns else "rowwise_quantizer"], columns)
    if name == "NVFP4Quantizer":
        assert arguments["with_rht"] == arguments["with_post_rht_amax"]
        words = ["random"] * arguments["stochastic_rounding"] + ["nvfp4"]
        return " ".join(
            words + ["square"] * arguments["with_2d_quantization"] + ["turned"] * (arguments["with_rht"] and columns)
        )
    if name == "Float8CurrentScalingQuantizer":
        assert not arguments["force_pow_2_scales"] and arguments["device"].type == "cuda"
        return arguments["fp8_dtype"] + {0.0: "", 1e-12: " least"}[arguments["amax_epsilon"]]
    if name == "Float8BlockQuantizer":
        assert arguments["force_pow_2_scales"] and arguments["fp8_dtype"] == "e4m3" and arguments["amax_epsilon"] == 0
        return f"block {arguments['block_scaling_dim']}"
    if name == "MXFP8Quantizer":
        assert arguments["fp8_dtype"] == "e4m3"
        return MX
    assert name == "IdentityQuantizer"
    return None


@pytest.mark.parametrize("preset", FACTORS_OF)
def test_the_factory_rounds_the_factors_of_each_product(
    binary_dir,
    tmp_path,
    wide_capture,  # noqa: F811
    transformer_engine,
    preset,
):
    amp = module_of(binary_dir, tmp_path, wide_capture, preset, rule("up", "bf16"))

    def role(tensor_type, name="down", module_type="linear"):
        return types.SimpleNamespace(module_type=module_type, tensor_type=tensor_type, name=name)

    x, w, dy = (amp.quantizer_factory(role(tensor)) for tensor in ("input", "weight", "grad_output"))
    rows, columns = (lambda q: in_words(q, False)), (lambda q: in_words(q, True))
    found = (rows(x), rows(w)), (rows(dy), columns(w)), (columns(dy), columns(x))
    assert found == FACTORS_OF[preset]
    others = [role("input", "up"), role("qkv", module_type="dpa"), role("output"), None]
    assert [amp.quantizer_factory(other)[0] for other in others] == ["IdentityQuantizer"] * 4
    assert amp.quantizer_factory(role("weight", "", "grouped_linear")) == w


def test_delayed_scales_are_requested(binary_dir, tmp_path, wide_capture, transformer_engine):  # noqa: F811
    more = "[scaling]\namax_history = 16\n"
    amp = module_of(binary_dir, tmp_path, wide_capture, "fp8-delayed", more, rule("up", "bf16"))
    role = types.SimpleNamespace(module_type="linear", tensor_type="input", name="down")
    assert amp.quantizer_factory(role) == (
        "DelayedScalingRequest",
        RECIPES["DelayedScaling"] | {"amax_history_len": 16},
    )
    role.name = "up"
    assert amp.quantizer_factory(role) == ("IdentityQuantizer", {})


def test_fast_sums_are_those_of_the_recipe(binary_dir, tmp_path, wide_capture, transformer_engine):  # noqa: F811
    fast = '[gemm]\naccumulator = "hopper_fp8"\n'
    amp = module_of(binary_dir, tmp_path, wide_capture, "fp8-current", fast)
    name, arguments = amp.transformer_engine_recipe()
    assert {arguments[f"fp8_gemm_{product}"] for product in ("fprop", "dgrad", "wgrad")} == {"fast"}
    assert "hopper_fp8" not in amp.__doc__
    delayed = module_of(binary_dir, tmp_path, wide_capture, "fp8-delayed", fast)
    assert "accumulator hopper_fp8" in " ".join(delayed.__doc__.split())


def test_a_recipe_that_it_lacks_is_listed(binary_dir, tmp_path, wide_capture):  # noqa: F811
    amp = module_of(binary_dir, tmp_path, wide_capture, "fp8-rowwise")
    said = " ".join(amp.__doc__.split())
    assert "no configuration of Transformer Engine 2.20 is known to be the same; --emit torchao does" in said
    assert not hasattr(amp, "quantizer_factory")


# ---- te-debug: nvidia-dlfw-inspect, nvdlfw_inspect/config_manager.py (layers are matched by `re.search`) and api.py
# (names begin with "model."); transformer_engine/debug/features/disable_quantization_*.py


def debug_file(binary_dir, folder, capture, preset, *rules):
    unsaid = write(
        binary_dir,
        folder,
        f'extends = "{preset}"\n' + "".join(rules),
        captured_graph(capture),
        "te-debug",
        "debug.yaml",
    )
    text = (folder / "debug.yaml").read_text()
    return yaml.safe_load(text), " ".join(unsaid.split()), text


def layers_of(section, names):
    assert section["enabled"] and list(section["layers"]) == ["layer_name_regex_pattern"]
    pattern = re.compile(section["layers"]["layer_name_regex_pattern"])
    return [name for name in names if pattern.search(name)]


def test_the_debug_file_names_what_is_not_rounded(binary_dir, tmp_path, wide_capture):  # noqa: F811
    names = [f"model.{name}" for name in ("up", "upper", "down", "head", "my.head", "xhead")]
    sections, unsaid, text = debug_file(binary_dir, tmp_path, wide_capture, "mxfp8-bf16-wgrad", rule("up", "bf16"))
    kept, products = sections["kept_layers"], sections["kept_products"]
    assert layers_of(kept, names) == ["model.up"] and kept["transformer_engine"] == {
        "DisableQuantizationLayer": {"enabled": True}
    }
    assert layers_of(products, names) == ["model.down", "model.head"] and products["transformer_engine"] == {
        "DisableQuantizationGEMM": {"enabled": True, "gemms": ["wgrad"]}
    }
    assert "the recipe of transformer_engine.pytorch.autocast says so" in unsaid
    assert "does not do" in text and 'config_file="debug.yaml"' in text


def test_a_debug_file_without_exceptions_has_no_section(binary_dir, tmp_path, wide_capture):  # noqa: F811
    assert debug_file(binary_dir, tmp_path, wide_capture, "mxfp8")[0] == {}
    sections, unsaid, _ = debug_file(binary_dir, tmp_path, wide_capture, "torch-autocast-bf16:2.12", rule("up", "fp32"))
    assert sections == {} and "No factors are scaled" in unsaid


# ---- megatron: megatron/core/transformer/transformer_config.py and megatron/training/arguments.py

MEGATRON = {
    "--bf16": None,
    "--fp16": None,
    "--fp8-format": ["e4m3", "hybrid"],
    "--fp8-recipe": ["tensorwise", "delayed", "mxfp8", "blockwise", "custom"],
    "--fp8-margin": int,
    "--fp8-amax-history-len": int,
    "--fp8-amax-compute-algo": ["most_recent", "max"],
    "--fp8-quantizer-factory": str,
    "--fp4-format": ["e2m1"],
    "--fp4-recipe": ["nvfp4", "custom"],
    "--fp4-quantizer-factory": str,
    "--first-last-layers-bf16": None,
    "--num-layers-at-start-in-bf16": int,
    "--num-layers-at-end-in-bf16": int,
    "--loss-scale": float,
    "--initial-loss-scale": float,
    "--min-loss-scale": float,
    "--loss-scale-window": float,
    "--hysteresis": int,
    "--attention-softmax-in-fp32": None,
    "--accumulate-allreduce-grads-in-fp32": None,
    "--grad-reduce-in-bf16": None,
}


def flags(folder):
    """What bash makes of the file, as Megatron's parser reads it."""
    command = 'source "$1" && printf "%s\\n" "${LOCKSTEP_FLAGS[@]}"'
    done = subprocess.run(
        ["bash", "-euc", command, "bash", folder / "mine.sh"], capture_output=True, text=True, check=True
    )
    parser = argparse.ArgumentParser(exit_on_error=False)
    for flag, kind in MEGATRON.items():
        if kind is None:
            parser.add_argument(flag, action="store_true")
        elif isinstance(kind, list):
            parser.add_argument(flag, choices=kind)
        else:
            parser.add_argument(flag, type=kind)
    words = [word for word in done.stdout.split("\n") if word]
    return {name: value for name, value in vars(parser.parse_args(words)).items() if value not in (None, False)}


@pytest.mark.parametrize("preset", [*RECIPE_OF, "torch-autocast-fp16", "pure-bf16-master", "apex-o2", "fp32"])
def test_megatron_knows_the_flags(lockstep, tmp_path, preset):
    policy = "" if preset in ("fp32", "apex-o2") else rule("h.0.*", "bf16", "linear")
    (tmp_path / "policy.toml").write_text(f'extends = "{preset}"\n{policy}')
    said = lockstep("explain", "gpt", "--policy", tmp_path / "policy.toml", "--emit", "megatron", tmp_path / "mine.sh")
    found = flags(tmp_path)
    name, arguments = RECIPE_OF.get(preset, (None, {}))
    if name is None:
        assert not any(flag.startswith(("fp8", "fp4")) for flag in found)
    else:
        keys = {"CustomRecipe": "custom", "DelayedScaling": "delayed", "Float8CurrentScaling": "tensorwise"}
        keys |= {"Float8BlockScaling": "blockwise", "MXFP8BlockScaling": "mxfp8"}
        if name == "NVFP4BlockScaling":
            assert found["fp4_recipe"] == ("custom" if arguments else "nvfp4") and found["fp4_format"] == "e2m1"
        else:
            assert found["fp8_recipe"] == keys[name] and found["fp8_format"]
        assert ("num_layers_at_start_in_bf16" in found) == (name != "DelayedScaling")
    assert ("fp16" in found, "bf16" in found) == (
        preset in ("torch-autocast-fp16", "apex-o2"),
        name is not None or preset == "pure-bf16-master",
    )
    text = " ".join((tmp_path / "mine.sh").read_text().replace("\n#", "").split())
    for line in said.stderr.splitlines():
        assert " ".join(line.partition("cannot do: ")[2].replace("\\", "").split()) in text.replace(" -  ", " ")
