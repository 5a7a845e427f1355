// A row for each kind of region; regions are not nested.
#include "reports/pytorch/pytorch_body.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <string_view>

#include "src/core/text.h"

namespace lockstep {
namespace {

struct TemplateFile {
  std::string_view name, text;
};
constexpr TemplateFile kTemplates[] = {
#include "embedded_pytorch.inc"
};

bool has_call(const PytorchRecipe& recipe, std::string_view region) {
  return recipe.scaled && recipe.scaled->call.region == region;
}

// What the text of one region is for; is_kept gets the region's own name, too.
struct Region {
  std::string_view name;
  bool (*is_kept)(const PytorchRecipe& recipe, std::string_view name);
};
constexpr auto kNever = [](const PytorchRecipe&, std::string_view) { return false; };
constexpr auto kIsScaled = [](const PytorchRecipe& r, std::string_view) {
  return r.scaled.has_value();
};
constexpr auto kHasTf32 = [](const PytorchRecipe& r, std::string_view) {
  return r.tf32.has_value();
};
constexpr Region kRegions[] = {
    {.name = "sample", .is_kept = kNever},
    {.name = "facts", .is_kept = kNever},
    {.name = "tf32", .is_kept = kHasTf32},
    {.name = "no tf32",
     .is_kept = [](const PytorchRecipe& r, std::string_view) { return !r.tf32.has_value(); }},
    {.name = "sharded",
     .is_kept = [](const PytorchRecipe& r, std::string_view) { return r.sharded.has_value(); }},
    {.name = "scaled", .is_kept = kIsScaled},
    {.name = "emulation",
     .is_kept = [](const PytorchRecipe& r,
                   std::string_view) { return has_call(r, "float8") || has_call(r, "mxfp8"); }},
    {.name = "no emulation",
     .is_kept =
         [](const PytorchRecipe& r, std::string_view) {
           return r.scaled && !has_call(r, "float8") && !has_call(r, "mxfp8");
         }},
    {.name = "torchao",
     .is_kept =
         [](const PytorchRecipe& r, std::string_view) {
           return has_call(r, "float8") || has_call(r, "mxfp8") || has_call(r, "nvfp4");
         }},
    {.name = "float8", .is_kept = has_call},
    {.name = "mxfp8", .is_kept = has_call},
    {.name = "nvfp4", .is_kept = has_call},
    {.name = "transformer_engine",
     .is_kept =
         [](const PytorchRecipe& r, std::string_view) {
           return has_call(r, "te_delayed") || has_call(r, "te_quantizers");
         }},
    {.name = "te_delayed", .is_kept = has_call},
    {.name = "te_quantizers", .is_kept = has_call},
};

const Region& find_region(std::string_view name) {
  for (const Region& region : kRegions) {
    if (region.name == name) return region;
  }
  throw std::logic_error(fmt::format("templates/amp.py: no region {}", name));
}

// "tf32" of "  # <tf32>", "/tf32" of "  # </tf32>", "" of all other lines.
std::string_view tag_of(std::string_view line) {
  constexpr std::string_view kBegin = "# <";
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  if (!line.starts_with(kBegin) || !line.ends_with('>')) return "";
  return line.substr(kBegin.size(), line.size() - kBegin.size() - 1);
}

}  // namespace

std::string pytorch_body(const PytorchRecipe& recipe, const std::string& facts) {
  std::string out;
  bool is_kept = true;
  for (const std::string& line : split(std::string(kTemplates[0].text), '\n')) {
    const std::string_view tag = tag_of(line);
    if (tag.empty()) {
      if (is_kept) out += line + "\n";
      continue;
    }
    is_kept = tag.front() == '/' || find_region(tag).is_kept(recipe, tag);
    if (tag == "facts") out += facts;
  }
  out.resize(out.find_last_not_of('\n') + 1);  // the blank lines between the regions
  return out + "\n";
}

}  // namespace lockstep
