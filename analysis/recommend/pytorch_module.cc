// The head of the module says what the recipe is; its body is the same for every recipe.
#include "analysis/recommend/pytorch_module.h"

#include <fmt/format.h>

#include "src/core/text.h"
#include "src/graph/json.h"

namespace lockstep {
namespace {

constexpr size_t kLineWidth = 100;

constexpr std::string_view kUsage = R"(
    import amp

    amp.apply(model)  # before torch.compile and DistributedDataParallel
    scaler = amp.scaler("cuda")
    for batch in loader:
        with amp.autocast("cuda"):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
)";

constexpr std::string_view kBody = R"PYTHON(

def autocast(device_type):
    """The context of the forward pass and the loss."""
    return torch.autocast(device_type, DTYPE, enabled=DTYPE is not None, cache_enabled=WEIGHT_CACHE)


def scaler(device="cuda"):
    """A GradScaler; one that is switched off if no loss scale is needed."""
    if SCALER is None:
        return torch.amp.GradScaler(device, enabled=False)
    return torch.amp.GradScaler(device, **SCALER)


def apply(model):
    """Makes the layers of FP32_LAYERS compute in FP32 under autocast, and returns the model.

    Their own operations run with autocast off, on operands widened to FP32. The layers inside them
    that are not listed stay under autocast. Without autocast nothing changes. Parameters, names,
    hooks and the state_dict stay as they are. A second call changes nothing.

    Does not fit nn.DataParallel, nor torch.utils.checkpoint called by the code of a listed layer.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    _check(modules)
    listed = {id(modules[name]) for name in FP32_LAYERS}
    for name in FP32_LAYERS:
        for module in modules[name].modules():
            _replace_forward(module, _in_fp32 if id(module) in listed else _under_autocast)
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


_DEVICES = ("cpu", "cuda", "mps", "xpu")
_NARROW = (torch.float16, torch.bfloat16)


class _State(threading.local):
    switched_off = ()  # (device, dtype) of each autocast that the FP32 layer being run switched off


_state = _State()


def _check(modules):
    problems = []
    for name in FP32_LAYERS:
        if name not in modules:
            ending = [other for other in modules if other.endswith("." + name)]
            close = ending or difflib.get_close_matches(name, modules, 3)
            problems.append(f"{name!r}: not in the model" + (f"; close: {close}" if close else ""))
        elif type(modules[name]).forward is torch.nn.Module.forward:
            problems.append(f"{name!r}: a {type(modules[name]).__name__}, which has no forward()")
        elif any(p.dtype in _NARROW for p in modules[name].parameters(recurse=False)):
            problems.append(f"{name!r}: has 16-bit parameters, must have torch.float32")
    if problems:
        raise ValueError("amp.py does not fit this model:\n" + "\n".join(problems))


def _replace_forward(module, run):
    done = getattr(module.forward, "func", None) in (_in_fp32, _under_autocast)
    if done or type(module).forward is torch.nn.Module.forward:
        return
    forward = functools.partial(run, module.forward)  # unlike a closure, it can be copied and pickled
    module.forward = functools.update_wrapper(forward, module.forward)


def _in_fp32(forward, *args, **kwargs):
    before = _state.switched_off
    on = tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))
    if not on and not before:
        return forward(*args, **kwargs)
    with contextlib.ExitStack() as stack:
        for device, _ in on:
            stack.enter_context(torch.autocast(device, enabled=False))
        _state.switched_off = on or before
        stack.callback(setattr, _state, "switched_off", before)
        return forward(*_widened(args), **_widened(kwargs))


def _under_autocast(forward, *args, **kwargs):
    before = _state.switched_off
    if not before:
        return forward(*args, **kwargs)
    with contextlib.ExitStack() as stack:
        for device, dtype in before:
            stack.enter_context(torch.autocast(device, dtype))
        _state.switched_off = ()
        stack.callback(setattr, _state, "switched_off", before)
        result = forward(*args, **kwargs)
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

// Words in lines of at most kLineWidth columns; `first` begins the first line, `rest` all others.
std::string wrapped(std::string_view text, const std::string& first, const std::string& rest) {
  std::string out, line = first;
  bool is_empty = true;
  for (const std::string& word : split(text, ' ')) {
    if (!is_empty && line.size() + 1 + word.size() > kLineWidth) {
      out += line + "\n";
      line = rest;
      is_empty = true;
    }
    line += (is_empty ? "" : " ") + word;
    is_empty = false;
  }
  return out + line + "\n";
}

// For a docstring in triple quotes.
std::string docstring_text(std::string_view text) {
  std::string out;
  for (const char c : printable(text)) {
    if (c == '\\' || c == '"') out += '\\';
    out += c;
  }
  return out;
}

std::string autocast_sentence(const PytorchRecipe& recipe) {
  if (recipe.format.empty()) return "No autocast: every layer runs in the format of its weights.";
  return fmt::format("Autocast to {} with torch's own op lists, as the preset {} has them{}.",
                     recipe.format, recipe.op_lists,
                     recipe.weight_cache ? "" : ", without its cache of weights");
}

std::string layers_sentence(const PytorchRecipe& recipe, bool says_all) {
  if (recipe.format.empty()) return "";
  if (recipe.fp32_layers.empty()) {
    return says_all ? " No layer must stay in FP32."
                    : " No layer stays in FP32 by this module: see below.";
  }
  const size_t count = recipe.fp32_layers.size();
  return fmt::format(" {} layer{} in FP32.", count, count == 1 ? " stays" : "s stay");
}

std::string scaler_sentence(const PytorchRecipe& recipe) {
  if (!recipe.scaler) return " No loss scale is needed: scaler() returns a GradScaler that is off.";
  const GradScalerArguments& s = *recipe.scaler;
  if (s.is_static) {
    return fmt::format(
        " A static loss scale of {:g}: an overflow skips the step and the scale stays. "
        "GradScaler wants a backoff factor below 1; the one here is so near to 1 that "
        "the scale, an FP32 number, does not change.",
        s.init_scale);
  }
  return fmt::format(
      " A dynamic loss scale that starts at {:g}: an overflow skips the step and "
      "multiplies the scale by {:g}; {} steps without one multiply it by {:g}.",
      s.init_scale, s.backoff_factor, s.growth_interval, s.growth_factor);
}

std::string docstring(const PytorchRecipe& recipe, const std::vector<std::string>& unsaid) {
  const std::string model = recipe.model.empty() ? "a model" : docstring_text(recipe.model);
  std::string out = "\"\"\"";
  out += wrapped(fmt::format("Mixed precision for {}, written by `lockstep recommend`.", model), "",
                 "");
  out += kUsage;
  out += "\n" + wrapped(autocast_sentence(recipe) + layers_sentence(recipe, unsaid.empty()) +
                            scaler_sentence(recipe),
                        "", "");
  if (!recipe.evidence.empty()) {
    const std::string of = unsaid.empty() ? "Evidence: " : "Evidence for the policy as a whole: ";
    out += "\n" + wrapped(of + docstring_text(recipe.evidence) + ".", "", "");
  }
  if (!unsaid.empty()) {
    out += "\nThe policy also says what this module does not do:\n";
    for (const std::string& sentence : unsaid) out += wrapped(docstring_text(sentence), "- ", "  ");
  }
  return out + "\"\"\"\n";
}

std::string constants(const PytorchRecipe& recipe) {
  std::string out = "\n# None: no autocast.\nDTYPE = ";
  out += recipe.format.empty() ? "None" : torch_dtype(recipe.format);
  out += fmt::format("\nWEIGHT_CACHE = {}\n", recipe.weight_cache ? "True" : "False");
  out += "# Modules, by their names in model.named_modules().\nFP32_LAYERS = [\n";
  for (const std::string& layer : recipe.fp32_layers) {
    out += "    " + python_string(layer) + ",\n";
  }
  out += "]\n# Arguments of GradScaler; None: no loss scale.\n";
  if (!recipe.scaler) return out + "SCALER = None\n";
  const GradScalerArguments& s = *recipe.scaler;
  return out + fmt::format(
                   "SCALER = {{\n    \"init_scale\": {},\n    \"growth_factor\": {},\n"
                   "    \"backoff_factor\": {},\n    \"growth_interval\": {},\n}}\n",
                   s.init_scale, s.growth_factor, s.backoff_factor, s.growth_interval);
}

std::string transformer_engine(const PytorchRecipe& recipe) {
  if (recipe.transformer_engine.empty()) return "";
  return "\n\ndef transformer_engine_recipe():\n"
         "    \"\"\"For layers of transformer_engine.pytorch, inside autocast():\n"
         "    transformer_engine.pytorch.fp8_autocast(enabled=True, fp8_recipe=...). Not tried by "
         "Lockstep.\"\"\"\n"
         "    from transformer_engine.common import recipe\n\n    return " +
         recipe.transformer_engine + "\n";
}

}  // namespace

std::string python_string(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return '"' + printable(escaped) + '"';
}

std::string pytorch_module(const PytorchRecipe& recipe, const std::vector<std::string>& unsaid) {
  return docstring(recipe, unsaid) +
         "\nimport contextlib\nimport copy\nimport dataclasses\nimport difflib\nimport functools\n"
         "import threading\n\nimport torch\n" +
         constants(recipe) + std::string(kBody) + transformer_engine(recipe);
}

std::string pytorch_module(const RunFile& run, const Policy& policy, const std::string& evidence,
                           std::vector<std::string>& unsaid) {
  PytorchRecipe recipe = pytorch_recipe(policy, graph_from_json(run.graph_json()), unsaid);
  recipe.model = run.options().model;
  recipe.evidence = evidence;
  return pytorch_module(recipe, unsaid);
}

}  // namespace lockstep
