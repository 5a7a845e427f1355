// The head of the module says what the recipe is; its body is the same for every recipe.
#include "reports/pytorch/pytorch_module.h"

#include <fmt/format.h>

#include "reports/pytorch/pytorch_body.h"
#include "src/core/text.h"
#include "src/graph/json.h"

namespace lockstep {
namespace {

constexpr size_t kLineWidth = 100;
// What the products of torchao and Transformer Engine take; MXFP8 has blocks of 32.
constexpr int kFp8Multiple = 16, kMxfp8Multiple = 32;

constexpr std::string_view kUsage = R"(
    import amp

    model = amp.apply(model)  # before torch.compile and DistributedDataParallel
    scaler = amp.scaler("cuda")
    for batch in loader:
        with amp.autocast("cuda"):
            loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
)";

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

std::string layers_run(size_t count) {
  return fmt::format("{} layer{}", count, count == 1 ? " runs" : "s run");
}

std::string tf32_sentence(const PytorchRecipe& recipe) {
  if (!recipe.tf32) return "";
  const auto [matmul, cudnn] = *recipe.tf32;
  return fmt::format(" apply() lets {} read their factors as TF32{}.",
                     matmul && cudnn ? "matrix products and convolutions"
                     : matmul        ? "matrix products, but not convolutions,"
                     : cudnn         ? "convolutions, but not matrix products,"
                                     : "no products",
                     recipe.fp32_layers.empty() ? "" : ", but for the layers in FP32");
}

std::string scaled_sentence(const PytorchRecipe& recipe) {
  if (!recipe.scaled) return "";
  const ScaledLinears& s = *recipe.scaled;
  const bool is_torchao = s.torchao != ScaledLinears::Torchao::kNone;
  std::string out = fmt::format(
      " The factors of {} linear layer{} are rounded to {}, by {}: apply(model{}). All other "
      "products "
      "are those of autocast.",
      s.layers.size(), s.layers.size() == 1 ? "" : "s", s.what,
      is_torchao ? "torchao 0.18" : "Transformer Engine 2.20",
      is_torchao && !s.transformer_engine.empty()
          ? "), or by Transformer Engine 2.20: apply(model, library=\"transformer_engine\""
          : "");
  if (is_torchao) out += " torchao adds a bias after the product is rounded, the policy before.";
  if (!s.transformer_engine.empty()) out += " Lockstep never ran Transformer Engine.";
  return out;
}

std::string layers_sentence(const PytorchRecipe& recipe, bool says_all) {
  const std::string low =
      recipe.low_layers.empty()
          ? ""
          : fmt::format(" {} under an autocast of {} own.", layers_run(recipe.low_layers.size()),
                        recipe.low_layers.size() == 1 ? "its" : "their");
  if (recipe.format.empty() && recipe.fp32_layers.empty()) return low;
  if (recipe.fp32_layers.empty()) {
    return low + (says_all ? " No layer must stay in FP32."
                           : " No layer stays in FP32 by this module: see below.");
  }
  const size_t count = recipe.fp32_layers.size();
  return low + fmt::format(" {} layer{} in FP32.", count, count == 1 ? " stays" : "s stay");
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
  out += "\n" + wrapped(autocast_sentence(recipe) + tf32_sentence(recipe) +
                            docstring_text(scaled_sentence(recipe)) +
                            layers_sentence(recipe, unsaid.empty()) + scaler_sentence(recipe),
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

std::string tf32_constant(const PytorchRecipe& recipe) {
  if (!recipe.tf32) return "";
  const auto word = [](bool on) { return on ? "True" : "False"; };
  return fmt::format(
      "# torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32\n"
      "TF32 = ({}, {})\n",
      word(recipe.tf32->matmul), word(recipe.tf32->cudnn));
}

std::string scaled_constants(const PytorchRecipe& recipe) {
  if (!recipe.scaled) return "";
  std::string out =
      "# nn.Linear modules whose factors are scaled and rounded.\nSCALED_LAYERS = [\n";
  for (const std::string& layer : recipe.scaled->layers) {
    out += "    " + python_string(layer) + ",\n";
  }
  const bool is_mxfp8 = recipe.scaled->transformer_engine.find("MXFP8") != std::string::npos;
  return out + fmt::format("]\nSCALED_MULTIPLE = {}  # of the sizes of their weights\n",
                           is_mxfp8 ? kMxfp8Multiple : kFp8Multiple);
}

std::string constants(const PytorchRecipe& recipe) {
  std::string out = "\n# None: no autocast.\nDTYPE = ";
  out += recipe.format.empty() ? "None" : torch_dtype(recipe.format);
  out += fmt::format("\nWEIGHT_CACHE = {}\n", recipe.weight_cache ? "True" : "False");
  out += "# Modules, by their names in model.named_modules().\nFP32_LAYERS = [\n";
  for (const std::string& layer : recipe.fp32_layers) {
    out += "    " + python_string(layer) + ",\n";
  }
  out += "]\n# Modules under an autocast of their own.\nLOW_LAYERS = {";
  if (!recipe.low_layers.empty()) out += "\n";
  for (const auto& [layer, format] : recipe.low_layers) {
    out += "    " + python_string(layer) + ": " + torch_dtype(format) + ",\n";
  }
  out += "}\n" + tf32_constant(recipe) + scaled_constants(recipe);
  out += "# Arguments of GradScaler; None: no loss scale.\n";
  if (!recipe.scaler) return out + "SCALER = None\n";
  const GradScalerArguments& s = *recipe.scaler;
  return out + fmt::format(
                   "SCALER = {{\n    \"init_scale\": {},\n    \"growth_factor\": {},\n"
                   "    \"backoff_factor\": {},\n    \"growth_interval\": {},\n}}\n",
                   s.init_scale, s.growth_factor, s.backoff_factor, s.growth_interval);
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
         "import threading\n" +
         (recipe.scaled ? "import warnings\n" : "") + "\nimport torch\n" + constants(recipe) +
         pytorch_body(recipe);
}

std::string pytorch_module(const RunFile& run, const Policy& policy, const std::string& evidence,
                           std::vector<std::string>& unsaid) {
  PytorchRecipe recipe = pytorch_recipe(policy, graph_from_json(run.graph_json()), unsaid);
  recipe.model = run.options().model;
  recipe.evidence = evidence;
  return pytorch_module(recipe, unsaid);
}

}  // namespace lockstep
