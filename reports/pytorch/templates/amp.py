# <sample>
"""The module that `lockstep recommend --emit-pytorch` writes, with everything that a recipe can need.

Lines from `# <tf32>` to `# </tf32>` are written for recipes with TF32 switches, and so on by the names in
reports/pytorch/pytorch_module.cc, which writes the docstring and the facts in place of the samples here.
"""
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
SCALED_MULTIPLE = 16
LIBRARY = "torchao"
GRADIENT_DTYPE = torch.float8_e5m2
POWER_OF_TWO_SCALES = False
RECIPE = {
    "class": "Float8CurrentScaling",
    "fp8_format": "HYBRID",
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
    # <scaled>
    library: str = LIBRARY,
    emulate: bool = False,
    # </scaled>
) -> torch.nn.Module:
    """Makes the listed layers compute as the policy says, and returns the model.

    Layers of FP32_LAYERS: their own operations run with autocast off, on operands widened to FP32.
    Layers of LOW_LAYERS: their own operations run under autocast to the format given there. The
    layers inside them that are not listed run as outside. Where autocast is off, it changes nothing.
    Parameters, names, hooks and the state_dict stay as they are. A second call changes nothing.

    # <scaled>
    Layers of SCALED_LAYERS: nn.Linear modules are replaced by those of the library, with the same
    parameters (those in MXFP8 stay, and get another forward()). Register hooks on them afterwards.
    emulate: with torchao, on devices without such products.

    # </scaled>
    # <tf32>
    Sets torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32.

    # </tf32>
    Does not fit nn.DataParallel, nor torch.utils.checkpoint called by the code of a listed layer.
    """
    # <scaled>
    _scale_factors(model, library, emulate)
    # </scaled>
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
# <scaled>
_LIBRARIES: dict[str, Callable[..., None]] = {}


def _scale_factors(model: torch.nn.Module, library: str, emulate: bool) -> None:
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
        if not emulate and (module.in_features % SCALED_MULTIPLE or module.out_features % SCALED_MULTIPLE):
            shape = f"{module.out_features} x {module.in_features}"
            sizes.append(f"{name!r}: {shape} weights, must be multiples of {SCALED_MULTIPLE}")
        chosen[id(module)] = module
    _raise(sizes)
    if others:
        text = "not an nn.Linear, so its factors keep the format of autocast"
        warnings.warn(f"amp.py: {text}: {', '.join(others)}", stacklevel=3)
    names = [name for name, module in modules.items() if id(module) in chosen]
    if library not in _LIBRARIES:
        raise ValueError(f"amp.py: library={library!r}, must be one of {sorted(_LIBRARIES)}")
    if names:
        _LIBRARIES[library](model, chosen, names, emulate)
    layer: Any
    for layer in map(model.get_submodule, names):
        layer.amp_is_scaled = True


# </scaled>
# <float8>
def torchao_config(emulate: bool = False) -> Any:
    """For torchao.float8.convert_to_float8_training. emulate: on devices without FP8 products."""
    from torchao.float8 import CastConfig, Float8GemmConfig, Float8LinearConfig

    return Float8LinearConfig(
        cast_config_input=CastConfig(target_dtype=torch.float8_e4m3fn),
        cast_config_weight=CastConfig(target_dtype=torch.float8_e4m3fn),
        cast_config_grad_output=CastConfig(target_dtype=GRADIENT_DTYPE),
        gemm_config_output=Float8GemmConfig(use_fast_accum=False),
        round_scales_to_power_of_2=POWER_OF_TWO_SCALES,
        emulate=emulate,
    )


def _to_float8(model: torch.nn.Module, chosen: Mapping[int, torch.nn.Linear], names: list[str], emulate: bool) -> None:
    from torchao.float8 import convert_to_float8_training

    def is_chosen(module: torch.nn.Module, name: str) -> bool:
        return id(module) in chosen

    convert_to_float8_training(model, config=torchao_config(emulate), module_filter_fn=is_chosen)


_LIBRARIES["torchao"] = _to_float8


# </float8>
# <mxfp8>
def _to_mxfp8(model: torch.nn.Module, chosen: Mapping[int, torch.nn.Linear], names: list[str], emulate: bool) -> None:
    linear: Any
    for linear in chosen.values():
        linear.forward = functools.partial(_mxfp8_linear, linear, emulate)


def _mxfp8_linear(linear: torch.nn.Linear, emulate: bool, x: torch.Tensor) -> torch.Tensor:
    """Factors are BF16 numbers before they are rounded to MXFP8, the weight, too. A prototype of torchao 0.18.

    Its quantize_() with an MXFP8TrainingOpConfig does not fit autocast: it leaves out biases, and its kernels take
    16-bit weights only.
    """
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common import KernelPreference

    kernels = KernelPreference.EMULATED if emulate else KernelPreference.AUTO
    y = _to_mxfp8_then_scaled_mm(x.to(DTYPE), linear.weight.to(DTYPE), kernels, ScaleCalculationMode.RCEIL)
    y = y if linear.bias is None else y + linear.bias.to(y.dtype)
    return y if _autocasts() else y.to(x.dtype)


_LIBRARIES["torchao"] = _to_mxfp8


# </mxfp8>
# <transformer_engine>
@functools.cache
def transformer_engine_recipe() -> Any:
    """For transformer_engine.pytorch.autocast(enabled=True, recipe=...)."""
    from transformer_engine.common import recipe

    arguments: dict[str, Any] = dict(RECIPE)
    made = getattr(recipe, arguments.pop("class"))
    if "fp8_format" in arguments:
        arguments["fp8_format"] = getattr(recipe.Format, arguments["fp8_format"])
    return made(**arguments)


def _to_transformer_engine(
    model: torch.nn.Module, chosen: Mapping[int, torch.nn.Linear], names: list[str], emulate: bool
) -> None:
    import transformer_engine.pytorch as te

    if emulate:
        raise ValueError("amp.py: Transformer Engine does not emulate")
    made = {}
    for key, linear in chosen.items():
        has_bias = linear.bias is not None
        sizes = (linear.in_features, linear.out_features)
        made[key] = te.Linear(*sizes, bias=has_bias, params_dtype=linear.weight.dtype, device="meta")
        made[key].weight = linear.weight
        if has_bias:
            made[key].bias = linear.bias
    modules = dict(model.named_modules(remove_duplicate=False))
    keys = {name: id(modules[name]) for name in names}
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made[keys[name]])
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


_LIBRARIES["transformer_engine"] = _to_transformer_engine
# </transformer_engine>
