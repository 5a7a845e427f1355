// See part_effects.h.
#include "analysis/parts/part_effects.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string_view>

#include "emulation/format/format.h"
#include "src/core/error.h"
#include "src/graph/json.h"
#include "src/graph/site.h"
#include "src/jobs/joined_run.h"

namespace lockstep {
namespace {

bool is_below(std::string_view layer, std::string_view module) {
  return layer == module ||
         (layer.starts_with(module) && layer.size() > module.size() && layer[module.size()] == '.');
}

// The sites of values, by value id, where they are formed.
std::map<std::string, size_t> output_sites(const SiteTable& sites) {
  std::map<std::string, size_t> found;
  for (const Site& site : sites.sites) {
    if (site.point == Point::kOutput && is_in_graph(site)) {
      found.emplace(site.value, static_cast<size_t>(site.id));
    }
  }
  return found;
}

// The sums over each token's features, which the loss adds up: on the way back from it the first
// values that are no scalars, where something larger was summed.
void find_token_sums(const Graph& graph, const std::string& value,
                     const std::map<std::string, size_t>& outputs, std::vector<size_t>& found) {
  const Node* node = graph.producer_of(value);
  if (node == nullptr) return;
  const auto size_of = [&](const std::string& id) {
    return element_count(graph.type_of(id).shape);
  };
  const int64_t size = size_of(value);
  if (size == 1) {
    for (const std::string& input : node->inputs) find_token_sums(graph, input, outputs, found);
    return;
  }
  const auto is_larger = [&](const std::string& input) { return size_of(input) > size; };
  const auto site = outputs.find(value);
  if (site != outputs.end() && std::ranges::any_of(node->inputs, is_larger)) {
    found.push_back(site->second);
  }
}

// The largest number of a format narrower than FP32; 0: any other, and block formats, whose scales
// follow the values.
double largest_of(const std::string& name) {
  if (name.empty()) return 0;
  try {
    const Format& format = find_format(name);
    return format.is_fp32() || format.is_fp64() ? 0 : format.max_finite;
  } catch (const InputError&) {
    return 0;
  }
}

double ratio_of_norms(double error_sq, double sq) {
  return sq > 0 ? std::sqrt(error_sq / sq) : PartEffect::kNone;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

std::vector<PartPlaces> part_places(const RunFile& run) {
  if (run.options().part.empty()) return {};
  const Graph graph = graph_from_json(run.graph_json());
  const SiteTable& sites = run.sites();
  const std::map<std::string, size_t> outputs = output_sites(sites);
  const std::vector<std::string> names = loss_names(graph);
  std::vector<PartPlaces> places;
  for (size_t pass = 0; pass < pass_count(graph); ++pass) {
    PartPlaces place;
    const bool is_joined = !graph.passes.empty();
    place.name = is_joined ? graph.passes[pass].name : run.options().part;
    if (is_joined) {
      place.loss = static_cast<int>(std::ranges::find(names, place.name) - names.begin());
    } else {
      place.loss_factor = static_cast<double>(run.options().accumulate);
    }
    for (const auto& [parameter, value] : pass_gradients(graph, pass)) {
      const auto site = outputs.find(value);
      if (site != outputs.end()) place.weight_gradients.push_back(site->second);
    }
    std::set<std::string> inputs;
    for (const GraphInput& input : graph.inputs) {
      if (input.requires_grad) inputs.insert(input.id);
    }
    std::map<std::string, std::string> gradients;  // of each input: the last addend joins them
    for (const Node& node : graph.nodes) {
      if (!node.is_backward() || node.pass != static_cast<int>(pass)) continue;
      for (size_t i = 0; i < node.gradient_of.size(); ++i) {
        if (inputs.contains(node.gradient_of[i])) {
          gradients[node.gradient_of[i]] = output_id(node, i);
        }
      }
    }
    for (const auto& [input, value] : gradients) {
      const auto site = outputs.find(value);
      if (site != outputs.end()) place.input_gradients.push_back(site->second);
    }
    find_token_sums(graph, is_joined ? graph.passes[pass].loss : graph.loss, outputs,
                    place.token_sums);
    for (size_t w = 0; w < run.watched().size(); ++w) {
      if (!is_joined || run.watched()[w].starts_with(place.name + " ")) place.watched.push_back(w);
    }
    places.push_back(std::move(place));
  }
  for (const Site& site : sites.sites) {  // of the innermost part: one may contain another
    PartPlaces* own = graph.passes.empty() ? &places.front() : nullptr;
    for (PartPlaces& place : places) {
      const bool is_closer = own == nullptr || place.name.size() > own->name.size();
      if (is_closer && is_below(site.layer, place.name)) own = &place;
    }
    if (own != nullptr) own->sites.push_back(static_cast<size_t>(site.id));
  }
  return places;
}

bool PartEffect::is_alone() const {
  return name.find(kAlone) != std::string::npos;
}

PartTally::PartTally(const RunFile& run, const std::vector<PartPlaces>& places, int lane)
    : run_(run), places_(places), lane_(lane), sums_(places.size()) {
  const LaneInfo& info = run.lanes()[static_cast<size_t>(lane)];
  largest_.resize(run.sites().sites.size(), 0);
  roundings_.resize(run.sites().sites.size(), 0);
  std::map<std::string, double> known;
  for (size_t s = 0; s < info.site_formats.size(); ++s) {
    const std::string& name = info.site_formats[s];
    if (!known.contains(name)) known[name] = largest_of(name);
    largest_[s] = known[name];
  }
}

void PartTally::add(const PartPlaces& place, const StepRecord& record, Sums& sums) const {
  const LaneStep& lane = record.lanes[static_cast<size_t>(lane_)];
  const LaneStep& reference = record.lanes[kReferenceIndex];
  const auto loss_of = [&](const LaneStep& of) {
    return place.loss < 0 ? of.loss : of.losses[static_cast<size_t>(place.loss)];
  };
  const double first = (loss_of(lane) - loss_of(reference)) * place.loss_factor;
  double second = 0;
  for (const size_t s : place.token_sums) {
    const SiteRecord& site = lane.sites[s];
    second += static_cast<double>(site.stats.count) / 2 * site.error.err_sq;
  }
  if (std::isfinite(first) && std::isfinite(second)) {
    sums.first.push_back(first);
    sums.second.push_back(second);
  } else {
    ++sums.nonfinite;
  }
  const auto add_errors = [&](const std::vector<size_t>& at, double& error_sq, double& sq) {
    for (const size_t s : at) {
      const bool is_whole = lane.sites[s].error.compared >= reference.sites[s].error.compared;
      error_sq += is_whole ? lane.sites[s].error.err_sq : std::numeric_limits<double>::infinity();
      sq += reference.sites[s].stats.sum_sq / (reference.sites[s].scale * reference.sites[s].scale);
    }
  };
  add_errors(place.input_gradients, sums.input_error_sq, sums.input_sq);
  add_errors(place.weight_gradients, sums.weight_error_sq, sums.weight_sq);
  for (const size_t w : place.watched) {
    const bool is_finite = lane.watched[w].nonfinite == 0;
    sums.output_error +=
        is_finite ? lane.watched[w].error_sum : std::numeric_limits<double>::infinity();
    sums.output += lane.watched[w].reference_sum;
  }
  for (const size_t s : place.sites) {
    const SiteRecord& site = lane.sites[s];
    if (!site.measured || site.stats.count == 0) continue;
    const auto nonzero = static_cast<double>(site.stats.count - site.stats.source_zero);
    if (nonzero > 0) {
      sums.to_zero = std::max(sums.to_zero, static_cast<double>(site.stats.to_zero) / nonzero);
    }
    const auto out = static_cast<double>(site.stats.to_infinity + site.stats.saturated);
    sums.out_of_range = std::max(sums.out_of_range, out / static_cast<double>(site.stats.count));
    const bool is_meant = run_.sites().sites[s].stat_exempt;
    if (largest_[s] > 0 && site.stats.abs_max > 0 && !is_meant) {
      sums.headroom = std::min(sums.headroom, std::log2(largest_[s] / site.stats.abs_max));
    }
  }
}

void PartTally::on_step(const StepRecord& record) {
  const LaneStep& lane = record.lanes[static_cast<size_t>(lane_)];
  const LaneStep& reference = record.lanes[kReferenceIndex];
  if (!reference.alive || !lane.alive) return;
  for (size_t p = 0; p < places_.size(); ++p) {
    const auto is_measured = [&](size_t s) { return reference.sites[s].measured; };
    const auto is_measured_here = [&](size_t s) { return lane.sites[s].measured; };
    // Only what both have: a lane may have died in a part's own run.
    const bool is_there = std::ranges::any_of(places_[p].sites, is_measured) &&
                          std::ranges::any_of(places_[p].sites, is_measured_here);
    if (is_there) add(places_[p], record, sums_[p]);
  }
  for (size_t s = 0; s < lane.sites.size(); ++s) {
    const LossEffect& effect = lane.sites[s].effect;
    const double size = std::abs(effect.rounding) + std::abs(effect.range);
    if (std::isfinite(size)) roundings_[s] += size;
  }
}

std::vector<PartEffect> PartTally::effects() const {
  std::vector<PartEffect> found;
  for (size_t p = 0; p < places_.size(); ++p) {
    const PartPlaces& place = places_[p];
    const Sums& sums = sums_[p];
    PartEffect& part = found.emplace_back();
    part.name = place.name;
    const int64_t finite = std::ssize(sums.first);
    part.batches = finite + sums.nonfinite;
    part.nonfinite = sums.nonfinite;
    if (part.batches == 0) {
      part.first_order = part.second_order = PartEffect::kNone;
      continue;
    }
    part.first_order = mean(sums.first);  // NaN: none is finite
    part.second_order = place.token_sums.empty() ? PartEffect::kNone : mean(sums.second);
    if (finite > 1) {
      double squares = 0;
      for (size_t b = 0; b < sums.first.size(); ++b) {
        const double now = sums.first[b] + (place.token_sums.empty() ? 0 : sums.second[b]);
        squares += (now - part.effect()) * (now - part.effect());
      }
      const auto n = static_cast<double>(finite);
      part.spread = std::sqrt(squares / (n - 1) / n);
    }
    if (sums.output > 0) part.output_error = sums.output_error / sums.output;
    part.input_gradient_error = ratio_of_norms(sums.input_error_sq, sums.input_sq);
    part.weight_gradient_error = ratio_of_norms(sums.weight_error_sq, sums.weight_sq);
    part.to_zero = sums.to_zero;
    part.out_of_range = sums.out_of_range;
    if (std::isfinite(sums.headroom)) part.headroom = sums.headroom;
    std::map<std::string, double> layers;
    double all = 0;
    for (const size_t s : place.sites) {
      layers[run_.sites().sites[s].layer] += roundings_[s];
      all += roundings_[s];
    }
    const auto largest =
        std::ranges::max_element(layers, {}, [](const auto& layer) { return layer.second; });
    if (all > 0 && largest != layers.end()) {
      part.layer = largest->first;
      part.layer_share = largest->second / all;
    }
  }
  return found;
}

}  // namespace lockstep
