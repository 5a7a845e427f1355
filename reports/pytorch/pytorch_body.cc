// The Python text of the emitted module, below its constants. Parts in @...@ depend on the recipe.
#include "reports/pytorch/pytorch_body.h"

#include "reports/pytorch/pytorch_scaled_body.h"

namespace lockstep {
namespace {

constexpr std::string_view kBody = R"PYTHON(

def autocast(device_type):
    """The context of the forward pass and the loss."""
    return torch.autocast(device_type, DTYPE, enabled=DTYPE is not None, cache_enabled=WEIGHT_CACHE)


def scaler(device="cuda"):
    """A GradScaler; one that is switched off if no loss scale is needed."""
    if SCALER is None:
        return torch.amp.GradScaler(device, enabled=False)
    return torch.amp.GradScaler(device, **SCALER)


def apply(model@PARAMETERS@):
    """Makes the listed layers compute as the policy says, and returns the model.

    Layers of FP32_LAYERS: their own operations run with autocast off, on operands widened to FP32.
    Layers of LOW_LAYERS: their own operations run under autocast to the format given there. The
    layers inside them that are not listed run as outside. Where autocast is off, it changes nothing.
    Parameters, names, hooks and the state_dict stay as they are. A second call changes nothing.
@ABOUT@
    Does not fit nn.DataParallel, nor torch.utils.checkpoint called by the code of a listed layer.
    """
@SCALE@    modules = dict(model.named_modules(remove_duplicate=False))
    _check(modules)
@SWITCH@    listed = {id(modules[name]): _in_fp32 for name in FP32_LAYERS}
    listed |= {id(modules[name]): functools.partial(_in_low, dtype) for name, dtype in LOW_LAYERS.items()}
    for name in (*FP32_LAYERS, *LOW_LAYERS):
        for module in modules[name].modules():
            _replace_forward(module, listed.get(id(module), _as_outside))
    return model


def trainer_callback():
    """For the Trainer of Transformers: Trainer(..., callbacks=[amp.trainer_callback()]).

    TrainingArguments must have fp16=True for torch.float16, bf16=True for torch.bfloat16, and neither
    without autocast. Sets the numbers of the Trainer's GradScaler when training starts at step 0.
    """
    from transformers import TrainerCallback

    class ApplyRecipe(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
            for option, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
                if bool(getattr(args, option)) != (DTYPE is dtype):
                    raise ValueError(f"amp.py: TrainingArguments needs {option}={DTYPE is dtype}")
            apply(model)
            if state.global_step == 0:
                _set_numbers(getattr(optimizer, "scaler", None))

    return ApplyRecipe()


def lightning_callback():
    """For Lightning: Trainer(precision=..., callbacks=[amp.lightning_callback()]).

    The precision must be "16-mixed" for torch.float16, "bf16-mixed" for torch.bfloat16, "32-true"
    without autocast. Sets the numbers of the Trainer's GradScaler before a checkpoint is restored.
    """
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class ApplyRecipe(Callback):
        def on_fit_start(self, trainer, pl_module):
            needed = {torch.float16: "16-mixed", torch.bfloat16: "bf16-mixed", None: "32-true"}[DTYPE]
            if trainer.precision != needed:
                raise ValueError(f"amp.py: Trainer needs precision={needed!r}, not {trainer.precision!r}")
            apply(pl_module)
            _set_numbers(getattr(trainer.precision_plugin, "scaler", None))

    return ApplyRecipe()


_DEVICES = "cpu cuda mps xpu".split()
_NARROW = (torch.float16, torch.bfloat16)


class _State(threading.local):
    outside = None  # (device, dtype) of each autocast around the listed layer being run; None: none is run
    called = None  # the module whose forward() is about to run


_state = _State()


def _check(modules):
    problems = []
    for name in (*FP32_LAYERS, *LOW_LAYERS):
        if name not in modules:
            problems.append(_missing(name, modules))
        elif type(modules[name]).forward is torch.nn.Module.forward:
            problems.append(f"{name!r}: a {type(modules[name]).__name__}, which has no forward()")
        elif name in FP32_LAYERS and any(p.dtype in _NARROW for p in modules[name].parameters(recurse=False)):
            problems.append(f"{name!r}: has 16-bit parameters, must have torch.float32")
    _raise(problems)


def _missing(name, modules):
    ending = [other for other in modules if other.endswith("." + name)]
    close = ending or difflib.get_close_matches(name, modules, 3)
    return f"{name!r}: not in the model" + (f"; close: {close}" if close else "")


def _raise(problems):
    if problems:
        raise ValueError("amp.py does not fit this model:\n" + "\n".join(problems))


def _replace_forward(module, run):
    done = getattr(module.forward, "func", None) in (_in_fp32, _in_low, _as_outside)
    if done or type(module).forward is torch.nn.Module.forward:
        return
    forward = functools.partial(run, module, module.forward)  # unlike a closure, it can be copied and pickled
    module.forward = functools.update_wrapper(forward, module.forward)
    module.register_forward_pre_hook(_call)


def _call(module, args):
    _state.called = module


def _is_called(module):
    """False in a direct call of forward(), whose operations count as the caller's, as in a capture."""
    called, _state.called = _state.called, None
    return called is module


def _autocasts():
    return tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))


def _in_fp32(module, forward, *args, **kwargs):
    if not _is_called(module):
        return forward(*args, **kwargs)
    before, on = _state.outside, _autocasts()
@UNCHANGED@    with contextlib.ExitStack() as stack:
        for device, _ in on:
            stack.enter_context(torch.autocast(device, enabled=False))
        _state.outside = on if before is None else before
        stack.callback(setattr, _state, "outside", before)
        args, kwargs = _widened(args), _widened(kwargs)
        return @WITHOUT_TF32@


def _in_low(dtype, module, forward, *args, **kwargs):
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


def _devices():
    accelerator = torch.accelerator.current_accelerator()
    return ["cpu"] if accelerator is None else ["cpu", accelerator.type]


def _as_outside(module, forward, *args, **kwargs):
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
        result = @WITH_TF32@
    return _widened(result)


def _widened(value):
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
        wide = [_widened(item) for item in value]
        if _same(wide, value):
            return value
        return type(value)(*wide) if hasattr(value, "_fields") else type(value)(wide)
    return value


def _same(ours, theirs):
    return all(a is b for a, b in zip(ours, theirs))


def _set_numbers(grad_scaler):
    if SCALER is not None and grad_scaler is not None and grad_scaler.is_enabled():
        grad_scaler.load_state_dict({
            "scale": SCALER["init_scale"], "growth_factor": SCALER["growth_factor"],
            "backoff_factor": SCALER["backoff_factor"], "growth_interval": SCALER["growth_interval"],
            "_growth_tracker": 0})
)PYTHON";

constexpr std::string_view kAboutScaled = R"(
    Layers of SCALED_LAYERS: nn.Linear modules are replaced by those of the library, with the same
    parameters (those in MXFP8 stay, and get another forward()). Register hooks on them afterwards.
    emulate: with torchao, on devices without such products.
)";

constexpr std::string_view kAboutTf32 = R"(
    Sets torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32.
)";

// Leaves FP32 layers unchanged where there is no autocast. A module with TF32 switches lacks these
// lines, because it changes them there, too.
constexpr const char* kUnchanged =
    "    if not on and before is None:\n        return forward(*args, **kwargs)\n";

std::string parameters_of_apply(const PytorchRecipe& recipe) {
  if (!recipe.scaled) return "";
  return ", library=\"" + std::string(first_library(*recipe.scaled)) + "\", emulate=False";
}

}  // namespace

std::string_view first_library(const ScaledLinears& scaled) {
  return scaled.torchao != ScaledLinears::Torchao::kNone ? "torchao" : "transformer_engine";
}

std::string pytorch_body(const PytorchRecipe& recipe) {
  const bool has_tf32 = recipe.tf32.has_value(), is_scaled = recipe.scaled.has_value();
  const auto switched = [&](const std::string& switches) {
    return has_tf32 ? "_switched(" + switches + ", forward, *args, **kwargs)"
                    : std::string("forward(*args, **kwargs)");
  };
  std::string about;
  if (is_scaled) {
    about = kAboutScaled;
  } else if (has_tf32) {
    about = kAboutTf32;
  }
  std::string out =
      filled(kBody, {{"@PARAMETERS@", parameters_of_apply(recipe)},
                     {"@ABOUT@", about},
                     {"@SCALE@", is_scaled ? "    _scale_factors(model, library, emulate)\n" : ""},
                     {"@SWITCH@", has_tf32 ? "    _tf32(TF32)\n" : ""},
                     {"@UNCHANGED@", has_tf32 ? "" : kUnchanged},
                     {"@WITHOUT_TF32@", switched("(False, False)")},
                     {"@WITH_TF32@", switched("TF32")}});
  if (has_tf32) out += tf32_body();
  if (is_scaled) out += scaled_body(*recipe.scaled);
  return out;
}

}  // namespace lockstep
