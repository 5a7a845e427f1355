// A section for the layers that rules keep out, and one for products that [scaling] leaves out.
#include "reports/emit/inspect_config.h"

#include <fmt/format.h>

#include <string_view>

#include "reports/emit/comment_head.h"
#include "reports/pytorch/pytorch_module.h"
#include "reports/pytorch/pytorch_recipe.h"
#include "reports/pytorch/pytorch_scaling.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

// Letters, digits, '_' and bytes beyond ASCII mean themselves in Python's `re`.
std::string escaped(std::string_view name) {
  constexpr std::string_view kSpecial = ".^$*+?{}[]\\|()- #&~";
  std::string out;
  for (const char c : name) {
    if (kSpecial.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// infer_and_assign_layer_names() begins every name with "model.".
std::string pattern(const std::vector<std::string>& layers) {
  std::vector<std::string> names;
  for (const std::string& layer : layers) names.push_back(escaped(layer));
  return fmt::format("^(model\\.)?({})$", join(names, "|"));
}

std::string section(std::string_view name, const std::vector<std::string>& layers,
                    std::string_view feature, std::string_view more) {
  return fmt::format(
      "{}:\n"
      "  enabled: True\n"
      "  layers:\n"
      "    layer_name_regex_pattern: {}\n"
      "  transformer_engine:\n"
      "    {}:\n"
      "      enabled: True\n{}",
      name, python_string(pattern(layers)), feature, more);
}

}  // namespace

std::string inspect_config(const EmitFacts& facts, const std::string& module,
                           std::vector<std::string>& unsaid) {
  const FactorScaling& scaling = facts.policy.scaling;
  const bool is_known = pytorch_recipe(facts.policy, facts.graph,
                                       {.library = ScalingLibrary::kTransformerEngine}, unsaid)
                            .scaled.has_value();
  const ScaledLinears linears = find_scaled_layers(facts.policy, facts.graph, nullptr);
  std::vector<std::string> left_out;
  for (const ProductInfo& product : products()) {
    if (!scaling.of(product.product).is_scaled) left_out.emplace_back(product.name);
  }
  const bool scales = scaling.kind != ScalingKind::kNone;
  std::string sections;
  if (scales && !linears.kept.empty())
    sections += "\n" + section("kept_layers", linears.kept, "DisableQuantizationLayer", "");
  if (scales && !left_out.empty() && !linears.layers.empty())
    sections += "\n" + section("kept_products", linears.layers, "DisableQuantizationGEMM",
                               fmt::format("      gemms: [{}]\n", join(left_out, ", ")));
  if (is_known) {
    unsaid.push_back(
        fmt::format("The factors of linear layers are rounded to {}: the recipe of "
                    "transformer_engine.pytorch.autocast says so (--emit transformer-engine).",
                    linears.what));
  } else if (!scales) {
    unsaid.emplace_back(
        "Autocast, its layers in FP32 and the loss scale: --emit pytorch. No factors are scaled, "
        "so this file has no section.");
  }
  const std::vector<std::string> use = {
      "",
      "    import nvdlfw_inspect.api as debug_api",
      fmt::format("    debug_api.initialize(config_file={}, feature_dirs=[FEATURES])",
                  python_string(module + ".yaml")),
      "    debug_api.infer_and_assign_layer_names(model)",
      "",
      "FEATURES: the folder transformer_engine/debug/features of the installed package. Each",
      "training step ends with debug_api.step(). Lockstep never ran it."};
  return comment_head(facts, "What Transformer Engine leaves unrounded", use, unsaid) +
         (sections.empty() ? "{}\n" : sections);
}

}  // namespace lockstep
