// See joined_parameters.h.
#include "analysis/check/joined_parameters.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "analysis/pair/parameter_state.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

// "blocks.0.attention.q", "weight".
std::pair<std::string_view, std::string_view> parts_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

double elements_of(const std::string& shape) {
  double elements = 1;
  for (const std::string& extent : split(shape, 'x')) {
    if (extent != "scalar") elements *= std::stod(extent);
  }
  return elements;
}

struct Candidate {
  size_t parameter;
  std::string_view kind;  // "weight": the last word of its name
  double elements, square_sum;
};

std::vector<Candidate> candidates(const RunFacts& run, const std::vector<size_t>& free,
                                  std::span<const double> octaves) {
  std::vector<Candidate> found;
  for (const size_t p : free) {
    const double elements = elements_of(run.parameters[p].shape);
    const double square_sum = std::isnan(octaves[p]) ? 0 : elements * std::exp2(2 * octaves[p]);
    found.push_back({p, parts_of(run.parameters[p].name).second, elements, square_sum});
  }
  return found;
}

// The successive ones of `parts` of the same kind that are `whole`; erased from `parts`.
std::vector<size_t> take_parts(const Candidate& whole, std::vector<Candidate>& parts,
                               double tolerance) {
  std::vector<size_t> of_kind;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind == whole.kind) of_kind.push_back(i);
  }
  for (size_t first = 0; first < of_kind.size(); ++first) {
    double elements = 0, square_sum = 0;
    for (size_t last = first; last < of_kind.size() && elements < whole.elements; ++last) {
      elements += parts[of_kind[last]].elements;
      square_sum += parts[of_kind[last]].square_sum;
      const bool is_as_large = square_sum == whole.square_sum ||
                               std::fabs(std::log2(square_sum / whole.square_sum)) / 2 < tolerance;
      if (elements != whole.elements || last == first || !is_as_large) continue;
      std::vector<size_t> taken;
      for (size_t k = first; k <= last; ++k) taken.push_back(parts[of_kind[k]].parameter);
      std::erase_if(parts, [&](const Candidate& part) {
        return std::ranges::count(taken, part.parameter) > 0;
      });
      return taken;
    }
  }
  return {};
}

}  // namespace

std::vector<JoinedParameter> joined_parameters(const RunFacts& before, const RunFacts& after,
                                               const Pairing& parameters,
                                               std::span<const double> before_octaves,
                                               std::span<const double> after_octaves,
                                               double tolerance) {
  std::vector<Candidate> ours = candidates(before, parameters.free_before(), before_octaves);
  std::vector<Candidate> theirs = candidates(after, parameters.free_after(), after_octaves);
  std::vector<JoinedParameter> joined;
  for (const Candidate& whole : std::vector<Candidate>(ours)) {
    const std::vector<size_t> parts = take_parts(whole, theirs, tolerance);
    if (!parts.empty()) joined.push_back({.before = {whole.parameter}, .after = parts});
  }
  for (const Candidate& whole : theirs) {
    const std::vector<size_t> parts = take_parts(whole, ours, tolerance);
    if (!parts.empty()) joined.push_back({.before = parts, .after = {whole.parameter}});
  }
  return joined;
}

int stored_site(const RunFacts& run, size_t parameter) {
  const std::string_view layer = parts_of(run.parameters[parameter].name).first;
  size_t same_before = 0;  // parameters of the layer and shape, in the order of the sites
  for (size_t p = 0; p < parameter; ++p) {
    same_before += parts_of(run.parameters[p].name).first == layer &&
                   run.parameters[p].shape == run.parameters[parameter].shape;
  }
  for (size_t s = 0; s < run.sites.size(); ++s) {
    const SiteFacts& site = run.sites[s];
    const bool is_like_it = is_stored_weight(site) && site.layer == layer &&
                            site.shape == run.parameters[parameter].shape;
    if (is_like_it && same_before-- == 0) return static_cast<int>(s);
  }
  return -1;
}

}  // namespace lockstep
