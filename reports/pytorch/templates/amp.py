# <sample>
"""The modules that `lockstep recommend --emit` writes, with everything that a recipe can need.

Lines from `# <tf32>` to `# </tf32>` are written for recipes with TF32 switches, and so on by the names in
reports/pytorch/pytorch_body.cc. reports/pytorch/pytorch_module.cc writes the docstring and the facts in place of the
samples here.
"""
# mypy: disable-error-code="no-redef"
# </sample>

import contextlib
import copy
import dataclasses
import difflib
import functools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

# <facts>
DTYPE = torch.bfloat16
WEIGHT_CACHE = True
FP32_LAYERS = [
    "head",
]
LOW_LAYERS = {
    "embed": torch.float16,
}
TF32 = (True, True)
SCALED_LAYERS = [
    "up",
]
KEPT_LAYERS = [
    "head",
]
SCALED_MULTIPLE = 16
CASTS = {
    "input": ("TENSORWISE", torch.float8_e4m3fn),
}
POWER_OF_TWO_SCALES = False
FAST_SUMS = {
    "output": False,
    "grad_input": False,
    "grad_weight": False,
}
RECIPE_NAME = "tensorwise"
MX_SCALES = "RCEIL"
WGRAD_WITH_HP = False
HADAMARD_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
RECIPE = {
    "class": "Float8CurrentScaling",
    "fp8_format": "HYBRID",
}
QUANTIZERS = {
    "input.rowwise": {
        "class": "MXFP8Quantizer",
        "fp8_dtype": "kFloat8E4M3",
    },
    "input.columnwise": None,
}
PARAM_DTYPE: torch.dtype | None = torch.bfloat16
REDUCE_DTYPE = torch.float32
OUTPUT_DTYPE: torch.dtype | None = None
CAST_FORWARD_INPUTS = False
SHARDED_DTYPES = {
    "norm": torch.float32,
}
SCALER = {
    "init_scale": 65536.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
}
# </facts>


def autocast(device_type: str) -> torch.autocast:
    """The context of the forward pass and the loss."""
    return torch.autocast(device_type, DTYPE, enabled=DTYPE is not None, cache_enabled=WEIGHT_CACHE)


def scaler(device: str = "cuda") -> torch.amp.GradScaler:
    """A GradScaler; one that is switched off if no loss scale is needed."""
    arguments: dict[str, Any] = SCALER or {"enabled": False}
    return torch.amp.GradScaler(device, **arguments)


def apply(
    model: torch.nn.Module,
    # <emulation>
    emulate: bool = False,
    # </emulation>
) -> torch.nn.Module:
    """Makes the listed layers compute as the policy says, and returns the model.

    Layers of FP32_LAYERS: their own operations run with autocast off, on operands widened to FP32.
    Layers of LOW_LAYERS: their own operations run under autocast to the format given there. The
    layers inside them that are not listed run as outside. Where autocast is off, it changes nothing.
    Parameters, names, hooks and the state_dict stay as they are. A second call changes nothing.

    # <scaled>
    Layers of SCALED_LAYERS: nn.Linear modules are replaced by those of the library, with the same
    parameters (those in MXFP8 stay, and get another forward()). Register hooks on them afterwards.

    # </scaled>
    # <emulation>
    emulate: on devices without such products.

    # </emulation>
    # <tf32>
    Sets torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32.

    # </tf32>
    Does not fit nn.DataParallel, nor torch.utils.checkpoint called by the code of a listed layer.
    """
    # <emulation>
    _scale_factors(model, emulate)
    # </emulation>
    # <no emulation>
    _scale_factors(model, emulate=False)
    # </no emulation>
    modules = dict(model.named_modules(remove_duplicate=False))
    _check(modules)
    # <tf32>
    _tf32(TF32)
    # </tf32>
    listed: dict[int, Callable[..., Any]] = {id(modules[name]): _in_fp32 for name in FP32_LAYERS}
    listed |= {id(modules[name]): functools.partial(_in_low, dtype) for name, dtype in LOW_LAYERS.items()}
    for name in (*FP32_LAYERS, *LOW_LAYERS):
        for module in modules[name].modules():
            _replace_forward(module, listed.get(id(module), _as_outside))
    return model


def trainer_callback() -> Any:
    """For the Trainer of Transformers: Trainer(..., callbacks=[amp.trainer_callback()]).

    TrainingArguments must have fp16=True for torch.float16, bf16=True for torch.bfloat16, and neither
    without autocast. Sets the numbers of the Trainer's GradScaler when training starts at step 0.
    """
    from transformers import TrainerCallback

    class ApplyRecipe(TrainerCallback):
        def on_train_begin(
            self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
        ) -> None:
            for option, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
                if bool(getattr(args, option)) != (DTYPE is dtype):
                    raise ValueError(f"amp.py: TrainingArguments needs {option}={DTYPE is dtype}")
            apply(model)
            if state.global_step == 0:
                _set_numbers(getattr(optimizer, "scaler", None))

    return ApplyRecipe()


def lightning_callback() -> Any:
    """For Lightning: Trainer(precision=..., callbacks=[amp.lightning_callback()]).

    The precision must be "16-mixed" for torch.float16, "bf16-mixed" for torch.bfloat16, "32-true"
    without autocast. Sets the numbers of the Trainer's GradScaler before a checkpoint is restored.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class ApplyRecipe(Callback):
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            needed = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed", None: "32-true"}[DTYPE]
            if trainer.precision != needed:
                raise ValueError(f"amp.py: Trainer needs precision={needed!r}, not {trainer.precision!r}")
            apply(pl_module)
            _set_numbers(getattr(trainer.precision_plugin, "scaler", None))

    return ApplyRecipe()


_DEVICES = ("cpu", "cuda", "mps", "xpu")
_NARROW = (torch.float16, torch.bfloat16)
_Autocasts = tuple[tuple[str, torch.dtype], ...]  # (device, dtype) of each that is on
_Forward = Callable[..., Any]


class _State(threading.local):
    outside: _Autocasts | None = None  # those around the listed layer being run; None: none is run
    called: torch.nn.Module | None = None  # the module whose forward() is about to run


_state = _State()


def _check(modules: Mapping[str, torch.nn.Module]) -> None:
    problems = []
    for name in (*FP32_LAYERS, *LOW_LAYERS):
        if name not in modules:
            problems.append(_missing(name, modules))
        elif type(modules[name]).forward is torch.nn.Module.forward:
            problems.append(f"{name!r}: a {type(modules[name]).__name__}, which has no forward()")
        elif name in FP32_LAYERS and any(p.dtype in _NARROW for p in modules[name].parameters(recurse=False)):
            problems.append(f"{name!r}: has 16-bit parameters, must have torch.float32")
    _raise(problems)


def _missing(name: str, modules: Iterable[str]) -> str:
    ending = [other for other in modules if other.endswith("." + name)]
    close = ending or difflib.get_close_matches(name, modules, 3)
    return f"{name!r}: not in the model" + (f"; close: {close}" if close else "")


def _raise(problems: list[str]) -> None:
    if problems:
        raise ValueError("amp.py does not fit this model:\n" + "\n".join(problems))


def _replace_forward(module: torch.nn.Module, run: Callable[..., Any]) -> None:
    done = getattr(module.forward, "func", None) in (_in_fp32, _in_low, _as_outside)
    if done or type(module).forward is torch.nn.Module.forward:
        return
    forward = functools.partial(run, module, module.forward)  # unlike a closure, it can be copied and pickled
    module.forward = functools.update_wrapper(forward, module.forward)
    module.register_forward_pre_hook(_call)


def _call(module: torch.nn.Module, args: Any) -> None:
    _state.called = module


def _is_called(module: torch.nn.Module) -> bool:
    """False in a direct call of forward(), whose operations count as the caller's, as in a capture."""
    called, _state.called = _state.called, None
    return called is module


def _autocasts() -> _Autocasts:
    return tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))


def _in_fp32(module: torch.nn.Module, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
    if not _is_called(module):
        return forward(*args, **kwargs)
    before, on = _state.outside, _autocasts()
    # <no tf32>
    if not on and before is None:
        return forward(*args, **kwargs)
    # </no tf32>
    with contextlib.ExitStack() as stack:
        for device, _ in on:
            stack.enter_context(torch.autocast(device, enabled=False))
        _state.outside = on if before is None else before
        stack.callback(setattr, _state, "outside", before)
        # <tf32>
        forward = functools.partial(_switched, (False, False), forward)
        # </tf32>
        return forward(*_widened(args), **_widened(kwargs))


def _in_low(dtype: torch.dtype, module: torch.nn.Module, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
    if not _is_called(module):
        return forward(*args, **kwargs)
    before, on = _state.outside, _autocasts()
    if DTYPE is not None and not on and before is None:
        return forward(*args, **kwargs)
    outside = on if before is None else before
    with contextlib.ExitStack() as stack:
        for device in [d for d, _ in outside] or _devices():
            stack.enter_context(torch.autocast(device, dtype))
        _state.outside = outside
        stack.callback(setattr, _state, "outside", before)
        result = forward(*args, **kwargs)
    return result if outside else _widened(result)  # other layers do not take 16 bits without autocast


def _devices() -> list[str]:
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def _as_outside(module: torch.nn.Module, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
    before = _state.outside
    if not _is_called(module) or before is None:
        return forward(*args, **kwargs)
    with contextlib.ExitStack() as stack:
        for device, _ in _autocasts():
            stack.enter_context(torch.autocast(device, enabled=False))
        for device, dtype in before:
            stack.enter_context(torch.autocast(device, dtype))
        _state.outside = None
        stack.callback(setattr, _state, "outside", before)
        # <tf32>
        forward = functools.partial(_switched, TF32, forward)
        # </tf32>
        result = forward(*args, **kwargs)
    return _widened(result)


def _widened(value: Any) -> Any:
    """16-bit tensors as FP32, in containers too; whatever holds none is returned itself."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype in _NARROW else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
        wide = {name: _widened(item) for name, item in fields.items()}
        return value if _same(wide.values(), fields.values()) else dataclasses.replace(value, **wide)
    if isinstance(value, dict):
        wide = {key: _widened(item) for key, item in value.items()}
        if _same(wide.values(), value.values()):
            return value
        result = copy.copy(value)
        result.update(wide)
        return result
    if isinstance(value, (list, tuple)):
        items = [_widened(item) for item in value]
        if _same(items, value):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _same(ours: Iterable[Any], theirs: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(ours, theirs, strict=True))


def _set_numbers(grad_scaler: torch.amp.GradScaler | None) -> None:
    if SCALER is None or grad_scaler is None or not grad_scaler.is_enabled():
        return
    numbers = {**SCALER, "_growth_tracker": 0}
    numbers["scale"] = numbers.pop("init_scale")
    grad_scaler.load_state_dict(numbers)


# <tf32>
def _tf32(switches: tuple[bool, bool]) -> tuple[bool, bool]:
    """Sets whether products may read their factors as TF32, and returns what was set before."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches
    return before


def _switched(switches: tuple[bool, bool], forward: _Forward, *args: Any, **kwargs: Any) -> Any:
    """With these switches, in the backward pass of what it computes, too. Not for torch.compile."""
    autograd: Any = torch.autograd
    first, before = autograd._get_sequence_nr(), _tf32(switches)
    try:
        result = forward(*args, **kwargs)
    finally:
        _tf32(before)
    left: list[Any] = [t.grad_fn for t in _tensors(result) if t.grad_fn is not None]
    seen = set()
    while left:
        node = left.pop()
        # Nodes without next ones are weights.
        if node in seen or not node.next_functions or node._sequence_nr() < first:
            continue
        seen.add(node)
        left += [other for other, _ in node.next_functions if other is not None]
        if "amp_tf32" not in node.metadata:  # else one of an inner layer, which has its own switches
            node.metadata["amp_tf32"] = switches
            node.register_prehook(functools.partial(_before_backward, node))
            node.register_hook(functools.partial(_after_backward, node))
    return result


def _before_backward(node: Any, gradients: Any) -> None:
    node.metadata["amp_tf32_before"] = _tf32(node.metadata["amp_tf32"])


def _after_backward(node: Any, inputs: Any, outputs: Any) -> None:
    _tf32(node.metadata["amp_tf32_before"])


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for item in items for t in _tensors(item)]


# </tf32>
# <sharded>
def precision(dtype: torch.dtype | None = PARAM_DTYPE, output_dtype: torch.dtype | None = None) -> Any:
    """The MixedPrecisionPolicy of one call of fully_shard."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return MixedPrecisionPolicy(
        param_dtype=dtype,
        reduce_dtype=REDUCE_DTYPE,
        output_dtype=output_dtype,
        cast_forward_inputs=CAST_FORWARD_INPUTS and dtype is PARAM_DTYPE,
    )


def shard(model: torch.nn.Module, blocks: Iterable[torch.nn.Module] = (), **arguments: Any) -> torch.nn.Module:
    """Calls fully_shard for the modules of SHARDED_DTYPES, then for `blocks`, then for the model, and returns it.

    arguments: others of fully_shard, such as mesh. Modules that share a parameter are sharded together.
    """
    from torch.distributed.fsdp import fully_shard

    shard_any: Any = fully_shard
    for group, dtype in _shared(model):
        shard_any(group if len(group) > 1 else group[0], mp_policy=precision(dtype), **arguments)
    for block in blocks:
        shard_any(block, mp_policy=precision(), **arguments)
    shard_any(model, mp_policy=precision(output_dtype=OUTPUT_DTYPE), **arguments)
    return model


def _shared(model: torch.nn.Module) -> list[tuple[list[torch.nn.Module], torch.dtype]]:
    modules = dict(model.named_modules(remove_duplicate=False))
    _raise([_missing(name, modules) for name in SHARDED_DTYPES if name not in modules])
    groups: list[tuple[list[torch.nn.Module], torch.dtype]] = []
    seen: set[int] = set()
    for name, dtype in SHARDED_DTYPES.items():
        if id(modules[name]) in seen:
            continue
        own = {id(p) for p in modules[name].parameters()}
        others = [m for m in modules.values() if own & {id(p) for p in m.parameters(recurse=False)}]
        inside = {id(m) for m in modules[name].modules()}
        group = [modules[name], *{id(m): m for m in others if id(m) not in inside}.values()]
        seen.update(id(m) for m in group)
        groups.append((group, dtype))
    return groups


# </sharded>
# <scaled>
def module_filter_fn(module: torch.nn.Module, name: str) -> bool:
    """Whether the factors of this module are scaled: the filter of torchao's functions."""
    return name in SCALED_LAYERS


def filter_fqns(model: torch.nn.Module) -> list[str]:
    """The other linear layers, for programs that leave out a layer if its name contains one of these (torchtitan)."""
    linears = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    kept = [name for name in linears if name not in SCALED_LAYERS]
    _raise([f"{name!r}: is part of {other!r}" for name in kept for other in SCALED_LAYERS if name in other])
    return kept


# </scaled>
# <scaled>
def _scale_factors(model: torch.nn.Module, emulate: bool) -> None:
    chosen, names = _chosen(model, 1 if emulate else SCALED_MULTIPLE)
    if names:
        _replace_products(model, chosen, names, emulate)
    layer: Any
    for layer in map(model.get_submodule, names):
        layer.amp_is_scaled = True


def _chosen(model: torch.nn.Module, multiple: int) -> tuple[dict[int, torch.nn.Linear], list[str]]:
    """The modules to replace by id, and all their names. multiple: of the sizes of their weights."""
    import warnings

    modules = dict(model.named_modules(remove_duplicate=False))
    _raise([_missing(name, modules) for name in SCALED_LAYERS if name not in modules])
    chosen: dict[int, torch.nn.Linear] = {}
    others, sizes = [], []
    for name in SCALED_LAYERS:
        module = modules[name]
        if getattr(module, "amp_is_scaled", False):
            continue
        if not isinstance(module, torch.nn.Linear) or type(module).forward is not torch.nn.Linear.forward:
            others.append(f"{name} ({type(module).__name__})")
            continue
        if module.in_features % multiple or module.out_features % multiple:
            shape = f"{module.out_features} x {module.in_features}"
            sizes.append(f"{name!r}: {shape} weights, must be multiples of {multiple}")
        chosen[id(module)] = module
    _raise(sizes)
    if others:
        text = "not an nn.Linear, so its factors keep the format of autocast"
        warnings.warn(f"amp.py: {text}: {', '.join(others)}", stacklevel=4)
    return chosen, [name for name, module in modules.items() if id(module) in chosen]


# </scaled>
# <float8>
def torchao_config(emulate: bool = False) -> Any:
    """For torchao.float8.convert_to_float8_training. emulate: on devices without FP8 products."""
    from torchao.float8 import CastConfig, Float8GemmConfig, Float8LinearConfig
    from torchao.float8.config import ScalingGranularity, ScalingType

    casts: dict[str, Any] = {}
    for name, (granularity, dtype) in CASTS.items():
        if granularity == "DISABLED":
            casts[f"cast_config_{name}"] = CastConfig(scaling_type=ScalingType.DISABLED, target_dtype=dtype)
        else:
            made = CastConfig(scaling_granularity=ScalingGranularity[granularity], target_dtype=dtype)
            casts[f"cast_config_{name}"] = made
    sums: dict[str, Any] = {}
    for product, is_fast in FAST_SUMS.items():
        sums[f"gemm_config_{product}"] = Float8GemmConfig(use_fast_accum=is_fast)
    return Float8LinearConfig(
        **casts,
        **sums,
        round_scales_to_power_of_2=POWER_OF_TWO_SCALES,
        emulate=emulate,
    )


def _replace_products(
    model: torch.nn.Module, chosen: Mapping[int, torch.nn.Linear], names: list[str], emulate: bool
) -> None:
    from torchao.float8 import convert_to_float8_training

    def is_chosen(module: torch.nn.Module, name: str) -> bool:
        return id(module) in chosen

    convert_to_float8_training(model, config=torchao_config(emulate), module_filter_fn=is_chosen)


# </float8>
# <mxfp8>
def torchao_config(emulate: bool = False) -> Any:
    """For torchao.quantization.quantize_ with module_filter_fn, on BF16 models without biases: it leaves biases out."""
    from torchao.prototype.moe_training.config import MXFP8TrainingOpConfig
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common import KernelPreference

    return MXFP8TrainingOpConfig(
        kernel_preference=KernelPreference.EMULATED if emulate else KernelPreference.AUTO,
        wgrad_with_hp=WGRAD_WITH_HP,
        scale_calculation_mode=ScaleCalculationMode[MX_SCALES],
    )


def _replace_products(
    model: torch.nn.Module, chosen: Mapping[int, torch.nn.Linear], names: list[str], emulate: bool
) -> None:
    linear: Any
    for linear in chosen.values():
        linear.forward = functools.partial(_mxfp8_linear, linear, torchao_config(emulate))


def _mxfp8_linear(linear: torch.nn.Linear, config: Any, x: torch.Tensor) -> torch.Tensor:
    """Factors are BF16 numbers before they are rounded to MXFP8, the weight, too. A prototype of torchao 0.18.

    Its quantize_() does not fit autocast: it leaves out biases, and its kernels take 16-bit weights only.
    """
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm

    y = _to_mxfp8_then_scaled_mm(
        x.to(DTYPE),
        linear.weight.to(DTYPE),
        config.kernel_preference,
        config.scale_calculation_mode,
        config.wgrad_with_hp,
    )
    y = y if linear.bias is None else y + linear.bias.to(y.dtype)
    return y if _autocasts() else y.to(x.dtype)


# </mxfp8>
# <nvfp4>
def torchao_config() -> Any:
    """For torchao.quantization.quantize_ with module_filter_fn."""
    from torchao.prototype.moe_training.nvfp4_training.nvfp4_training import NVFP4TrainingConfig

    return NVFP4TrainingConfig(rht_sign_vector=HADAMARD_SIGNS)


def _replace_products(
    model: torch.nn.Module, chosen: Mapping[int, torch.nn.Linear], names: list[str], emulate: bool
) -> None:
    from torchao.quantization import quantize_

    def is_chosen(module: torch.nn.Module, name: str) -> bool:
        return id(module) in chosen

    quantize_(model, torchao_config(), filter_fn=is_chosen)


# </nvfp4>
# <te_delayed>
def quantizer_factory(role: Any) -> Any:
    """For transformer_engine.common.recipe.CustomRecipe. role: a QuantizerRole, or None."""
    from transformer_engine.common import recipe
    from transformer_engine.pytorch.quantization import DelayedScalingRequest
    from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer

    if role is not None and role.name in KEPT_LAYERS:
        return IdentityQuantizer()
    arguments: dict[str, Any] = {key: value for key, value in RECIPE.items() if key != "class"}
    arguments["fp8_format"] = getattr(recipe.Format, arguments["fp8_format"])
    return DelayedScalingRequest(**arguments)


# </te_delayed>
# <te_quantizers>
def quantizer_factory(role: Any) -> Any:
    """For transformer_engine.common.recipe.CustomRecipe and Megatron's --fp8-quantizer-factory.

    role: a QuantizerRole, or None. Layers of KEPT_LAYERS, by the name that they were made with, and whatever is not a
    factor of a linear layer are not rounded.
    """
    from transformer_engine.pytorch.tensor.hybrid_tensor import HybridQuantizer

    is_linear = role is not None and role.module_type in ("linear", "grouped_linear")
    if not is_linear or role.name in KEPT_LAYERS or f"{role.tensor_type}.rowwise" not in QUANTIZERS:
        return _quantizer(None)
    rows, columns = QUANTIZERS[f"{role.tensor_type}.rowwise"], QUANTIZERS[f"{role.tensor_type}.columnwise"]
    if _without_transform(rows) == _without_transform(columns):  # the transform is that of columns in any case
        return _quantizer(columns)
    return HybridQuantizer(
        rowwise_quantizer=_quantizer(rows), columnwise_quantizer=_quantizer(columns), columnwise_source="original"
    )


def _without_transform(arguments: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (arguments or {}).items() if "rht" not in key}


def _quantizer(arguments: Mapping[str, Any] | None) -> Any:
    from transformer_engine.pytorch.constants import DType
    from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer
    from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
    from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer
    from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
    from transformer_engine.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

    if arguments is None:
        return IdentityQuantizer()
    numbers: dict[str, Any] = dict(arguments)
    made = numbers.pop("class")
    if "fp8_dtype" in numbers:
        numbers["fp8_dtype"] = getattr(DType, numbers["fp8_dtype"])
    if made == "MXFP8Quantizer":
        return MXFP8Quantizer(**numbers)
    if made == "NVFP4Quantizer":
        return NVFP4Quantizer(**numbers)
    if made == "Float8BlockQuantizer":
        return Float8BlockQuantizer(rowwise=True, columnwise=True, **numbers)
    return Float8CurrentScalingQuantizer(device=torch.device("cuda"), **numbers)


# </te_quantizers>
# <transformer_engine>
@functools.cache
def transformer_engine_recipe() -> Any:
    """For transformer_engine.pytorch.autocast(enabled=True, recipe=...)."""
    from transformer_engine.common import recipe

    arguments: dict[str, Any] = dict(RECIPE)
    made = getattr(recipe, arguments.pop("class"))
    if not arguments:
        return made(qfactory=quantizer_factory)
    if "fp8_format" in arguments:
        arguments["fp8_format"] = getattr(recipe.Format, arguments["fp8_format"])
    if "use_split_accumulator" in arguments:
        sums = recipe.MMParams(use_split_accumulator=arguments.pop("use_split_accumulator"))
        arguments |= {f"fp8_gemm_{product}": sums for product in ("fprop", "dgrad", "wgrad")}
    return made(**arguments)


def _replace_products(
    model: torch.nn.Module, chosen: Mapping[int, torch.nn.Linear], names: list[str], emulate: bool
) -> None:
    import transformer_engine.pytorch as te

    modules = dict(model.named_modules(remove_duplicate=False))
    made: dict[int, Any] = {}
    for name in names:
        linear = modules[name]
        if id(linear) not in made:
            sizes = (linear.in_features, linear.out_features)
            has_bias = linear.bias is not None
            new = te.Linear(*sizes, bias=has_bias, params_dtype=linear.weight.dtype, device="meta", name=name)
            new.weight = linear.weight
            if has_bias:
                new.bias = linear.bias
            made[id(linear)] = new
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made[id(linear)])
    for name, module in modules.items():  # your own layers of Transformer Engine that are not listed
        is_theirs = type(module).__module__.startswith("transformer_engine.") and not list(module.children())
        if is_theirs and name not in SCALED_LAYERS:
            _surround(module, False)
    _surround(model, True)


def _surround(module: torch.nn.Module, enabled: bool) -> None:
    if getattr(module.forward, "func", None) is not _in_fp8:
        forward = functools.partial(_in_fp8, enabled, module.forward)
        module.forward = functools.update_wrapper(forward, module.forward)


def _in_fp8(enabled: bool, forward: _Forward, *args: Any, **kwargs: Any) -> Any:
    import transformer_engine.pytorch as te

    with te.autocast(enabled=enabled, recipe=transformer_engine_recipe()):
        return forward(*args, **kwargs)


# </transformer_engine>
