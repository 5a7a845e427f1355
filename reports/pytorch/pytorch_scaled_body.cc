// Plain text; the calls of torchao and Transformer Engine come from pytorch_scaling.cc.
#include "reports/pytorch/pytorch_scaled_body.h"

namespace lockstep {
namespace {

constexpr std::string_view kTf32 = R"PYTHON(

def _tf32(switches):
    """Sets whether products may read their factors as TF32, and returns what was set before."""
    before = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches
    return before


def _switched(switches, forward, *args, **kwargs):
    """With these switches, in the backward pass of what it computes, too. Not for torch.compile."""
    first, before = torch.autograd._get_sequence_nr(), _tf32(switches)
    try:
        result = forward(*args, **kwargs)
    finally:
        _tf32(before)
    left, seen = [t.grad_fn for t in _tensors(result) if t.grad_fn is not None], set()
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


def _before_backward(node, gradients):
    node.metadata["amp_tf32_before"] = _tf32(node.metadata["amp_tf32"])


def _after_backward(node, inputs, outputs):
    _tf32(node.metadata["amp_tf32_before"])


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, f.name) for f in dataclasses.fields(value)]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for item in items for t in _tensors(item)]
)PYTHON";

constexpr std::string_view kScaled = R"PYTHON(

def _scale_factors(model, library, emulate):
    modules = dict(model.named_modules(remove_duplicate=False))
    _raise([_missing(name, modules) for name in SCALED_LAYERS if name not in modules])
    chosen, others, sizes = {}, [], []
    for name in SCALED_LAYERS:
        module = modules[name]
        if getattr(module, "amp_is_scaled", False):
            continue
        if not isinstance(module, torch.nn.Linear) or type(module).forward is not torch.nn.Linear.forward:
            others.append(f"{name} ({type(module).__name__})")
            continue
        if not emulate and (module.in_features % SCALED_MULTIPLE or module.out_features % SCALED_MULTIPLE):
            sizes.append(f"{name!r}: {module.out_features} x {module.in_features} weights, must be multiples of {SCALED_MULTIPLE}")
        chosen[id(module)] = module
    _raise(sizes)
    if others:
        warnings.warn(f"amp.py: not an nn.Linear, so its factors keep the format of autocast: {', '.join(others)}", stacklevel=3)
    names = [name for name, module in modules.items() if id(module) in chosen]
    if library not in _LIBRARIES:
        raise ValueError(f"amp.py: library={library!r}, must be one of {sorted(_LIBRARIES)}")
    if names:
        _LIBRARIES[library](model, chosen, names, emulate)
    for name in names:
        model.get_submodule(name).amp_is_scaled = True
)PYTHON";

constexpr std::string_view kFloat8 = R"PYTHON(

def torchao_config(emulate=False):
    """For torchao.float8.convert_to_float8_training. emulate: on devices without FP8 products."""
    from torchao.float8 import CastConfig, Float8GemmConfig, Float8LinearConfig
    return Float8LinearConfig(
        @TORCHAO_ARGUMENTS@,
        emulate=emulate)


def _to_torchao(model, chosen, names, emulate):
    from torchao.float8 import convert_to_float8_training
    convert_to_float8_training(model, config=torchao_config(emulate), module_filter_fn=lambda module, name: id(module) in chosen)
)PYTHON";

// quantize_() with an MXFP8TrainingOpConfig does not fit autocast: it leaves out biases, and its
// kernels take 16-bit weights only.
constexpr std::string_view kMxfp8 = R"PYTHON(

def _to_torchao(model, chosen, names, emulate):
    for linear in chosen.values():
        linear.forward = functools.partial(_mxfp8_linear, linear, emulate)


def _mxfp8_linear(linear, emulate, x):
    """Factors are BF16 numbers before they are rounded to MXFP8, the weight, too. A prototype of torchao 0.18."""
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common import KernelPreference
    kernels = KernelPreference.EMULATED if emulate else KernelPreference.AUTO
    y = _to_mxfp8_then_scaled_mm(x.to(DTYPE), linear.weight.to(DTYPE), kernels, ScaleCalculationMode.RCEIL)
    y = y if linear.bias is None else y + linear.bias.to(y.dtype)
    return y if _autocasts() else y.to(x.dtype)
)PYTHON";

constexpr std::string_view kTransformerEngine = R"PYTHON(

@functools.cache
def transformer_engine_recipe():
    """For transformer_engine.pytorch.autocast(enabled=True, recipe=...)."""
    from transformer_engine.common import recipe
    return @RECIPE@


def _to_transformer_engine(model, chosen, names, emulate):
    import transformer_engine.pytorch as te
    if emulate:
        raise ValueError("amp.py: Transformer Engine does not emulate")
    made = {}
    for key, linear in chosen.items():
        has_bias = linear.bias is not None
        made[key] = te.Linear(linear.in_features, linear.out_features, bias=has_bias,
                              params_dtype=linear.weight.dtype, device="meta")
        made[key].weight = linear.weight
        if has_bias:
            made[key].bias = linear.bias
    modules = dict(model.named_modules(remove_duplicate=False))
    keys = {name: id(modules[name]) for name in names}
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, made[keys[name]])
    for name, module in modules.items():  # your own layers of Transformer Engine that are not listed
        if type(module).__module__.startswith("transformer_engine.") and not list(module.children()) and name not in SCALED_LAYERS:
            _surround(module, False)
    _surround(model, True)


def _surround(module, enabled):
    if getattr(module.forward, "func", None) is not _in_fp8:
        forward = functools.partial(_in_fp8, enabled, module.forward)
        module.forward = functools.update_wrapper(forward, module.forward)


def _in_fp8(enabled, forward, *args, **kwargs):
    import transformer_engine.pytorch as te
    with te.autocast(enabled=enabled, recipe=transformer_engine_recipe()):
        return forward(*args, **kwargs)
)PYTHON";

}  // namespace

std::string filled(std::string_view text, const Parts& parts) {
  std::string out(text);
  for (const auto& [name, value] : parts) {
    for (size_t at = out.find(name); at != std::string::npos; at = out.find(name, at)) {
      out.replace(at, name.size(), value);
      at += value.size();
    }
  }
  return out;
}

std::string scaled_body(const ScaledLinears& scaled) {
  std::string out(kScaled), libraries;
  if (scaled.torchao != ScaledLinears::Torchao::kNone) {
    const bool is_float8 = scaled.torchao == ScaledLinears::Torchao::kFloat8;
    out +=
        filled(is_float8 ? kFloat8 : kMxfp8, {{"@TORCHAO_ARGUMENTS@", scaled.torchao_arguments}});
    libraries += "    \"torchao\": _to_torchao,\n";
  }
  if (!scaled.transformer_engine.empty()) {
    out += filled(kTransformerEngine, {{"@RECIPE@", scaled.transformer_engine}});
    libraries += "    \"transformer_engine\": _to_transformer_engine,\n";
  }
  return out + "\n\n_LIBRARIES = {\n" + libraries + "}\n";
}

std::string_view tf32_body() {
  return kTf32;
}

}  // namespace lockstep
