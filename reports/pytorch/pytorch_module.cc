// The docstring and the constants say what the recipe is; all else is pytorch_body.h's.
#include "reports/pytorch/pytorch_module.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "reports/pytorch/pytorch_body.h"
#include "reports/pytorch/torch_dtype.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr size_t kLineWidth = 100;

constexpr std::string_view kInference = R"(
    model = amp.apply(model)  # before torch.compile
    with amp.autocast("cuda"):
        y = model(x)
)";
constexpr std::string_view kTraining = R"(
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
constexpr std::string_view kSharding =
    "    model = amp.shard(model, blocks=model.layers)  # after "
    "torch.distributed.init_process_group\n";

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
  return fmt::format(
      " The factors of {} linear layer{} are rounded to {}, by {}. All other products are those of "
      "autocast.{}{}",
      s.layers.size(), s.layers.size() == 1 ? "" : "s", s.what, s.library,
      s.call.remark.empty() ? "" : " ", s.call.remark);
}

std::string sharded_sentence(const PytorchRecipe& recipe) {
  if (!recipe.sharded) return "";
  const ShardedPrecision& s = *recipe.sharded;
  return fmt::format(
      " shard() calls FSDP2's fully_shard with param_dtype={}, reduce_dtype={}{}; blocks are yours "
      "to name.",
      s.param_dtype, s.reduce_dtype,
      s.modules.empty() ? "" : ", and with others for the modules of SHARDED_DTYPES");
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
  if (!recipe.trains) return "";
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
  out += wrapped(fmt::format("Mixed precision for {}, written by Lockstep.", model), "", "");
  out += "\n    " + docstring_text(import_line(recipe.name)) + "\n";
  std::string use(recipe.trains ? kTraining : kInference);
  if (recipe.sharded) use.insert(use.find('\n', 1) + 1, kSharding);
  out += use;
  out += "\n" + wrapped(autocast_sentence(recipe) + tf32_sentence(recipe) +
                            docstring_text(scaled_sentence(recipe) + sharded_sentence(recipe)) +
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

// "NAME = [...]" with one row a line.
std::string assigned(std::string_view name, std::string_view brackets,
                     const std::vector<std::string>& rows) {
  std::string out = fmt::format("{} = {}{}", name, brackets.front(), rows.empty() ? "" : "\n");
  for (const std::string& row : rows) out += "    " + row + ",\n";
  return out + brackets.back() + "\n";
}

std::string list_of(std::string_view name, const std::vector<std::string>& words) {
  std::vector<std::string> rows;
  for (const std::string& word : words) rows.push_back(python_string(word));
  return assigned(name, "[]", rows);
}

std::string table_of(std::string_view name, const PythonTable& table) {
  std::vector<std::string> rows;
  for (const auto& [key, value] : table) rows.push_back(python_string(key) + ": " + value);
  return assigned(name, "{}", rows);
}

std::string tf32_facts(const PytorchRecipe& recipe) {
  if (!recipe.tf32) return "";
  return fmt::format(
      "# torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32\n"
      "TF32 = ({}, {})\n",
      python_bool(recipe.tf32->matmul), python_bool(recipe.tf32->cudnn));
}

std::string scaled_facts(const PytorchRecipe& recipe) {
  if (!recipe.scaled) return "";
  const ScaledLinears& s = *recipe.scaled;
  std::string out = "# nn.Linear modules whose factors are scaled and rounded.\n";
  out += list_of("SCALED_LAYERS", s.layers);
  out += "# Others, which stay as they are.\n" + list_of("KEPT_LAYERS", s.kept);
  out += fmt::format("SCALED_MULTIPLE = {}  # of the sizes of their weights\n", s.call.multiple);
  for (const PythonFact& fact : s.call.facts) {
    if (!fact.comment.empty()) out += "# " + fact.comment + "\n";
    out += fact.value.empty() ? table_of(fact.name, fact.table)
                              : fmt::format("{} = {}\n", fact.name, fact.value);
  }
  return out;
}

std::string sharded_facts(const PytorchRecipe& recipe) {
  if (!recipe.sharded) return "";
  const ShardedPrecision& s = *recipe.sharded;
  return fmt::format(
             "# Of FSDP2's MixedPrecisionPolicy.\nPARAM_DTYPE: torch.dtype | None = {}\n"
             "REDUCE_DTYPE = {}\nOUTPUT_DTYPE: torch.dtype | None = {}\n"
             "CAST_FORWARD_INPUTS = {}\n# param_dtype of modules that are sharded by themselves.\n",
             s.param_dtype, s.reduce_dtype, s.output_dtype, python_bool(s.cast_forward_inputs)) +
         table_of("SHARDED_DTYPES", s.modules);
}

std::string facts(const PytorchRecipe& recipe) {
  std::string out = "# None: no autocast.\nDTYPE = ";
  out += recipe.format.empty() ? "None" : torch_dtype(recipe.format);
  out += fmt::format("\nWEIGHT_CACHE = {}\n", python_bool(recipe.weight_cache));
  out += "# Modules, by their names in model.named_modules().\n";
  out += list_of("FP32_LAYERS", recipe.fp32_layers);
  PythonTable low;
  for (const auto& [layer, format] : recipe.low_layers)
    low.emplace_back(layer, torch_dtype(format));
  out += "# Modules under an autocast of their own.\n" + table_of("LOW_LAYERS", low);
  out += tf32_facts(recipe) + scaled_facts(recipe) + sharded_facts(recipe);
  out += "# Arguments of GradScaler; None: no loss scale.\n";
  if (!recipe.scaler) return out + "SCALER = None\n";
  const GradScalerArguments& s = *recipe.scaler;
  return out + table_of("SCALER", {{"init_scale", fmt::to_string(s.init_scale)},
                                   {"growth_factor", fmt::to_string(s.growth_factor)},
                                   {"backoff_factor", fmt::to_string(s.backoff_factor)},
                                   {"growth_interval", fmt::to_string(s.growth_interval)}});
}

}  // namespace

bool is_python_name(std::string_view name) {
  return !name.empty() && !std::isdigit(static_cast<unsigned char>(name.front())) &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

std::string import_line(std::string_view name) {
  if (name == "amp") return "import amp";
  if (is_python_name(name)) return fmt::format("import {} as amp", name);
  return fmt::format("import importlib; amp = importlib.import_module({})", python_string(name));
}

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

std::string python_string(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c;
  }
  return '"' + printable(escaped) + '"';
}

std::string pytorch_module(const PytorchRecipe& recipe, const std::vector<std::string>& unsaid) {
  return docstring(recipe, unsaid) + pytorch_body(recipe, facts(recipe));
}

}  // namespace lockstep
