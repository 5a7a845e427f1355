// See metric_keys.h.
#include "analysis/check/metric_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace lockstep {
namespace {

bool is_of_parameter(const SiteFacts& site) {
  constexpr std::string_view kRoles[] = {"weight", "grad_weight", "master_weight",
                                         "optimizer_state", "update"};
  return std::ranges::count(kRoles, site.role) > 0;
}

// The parameters of the layer itself, in their order.
std::vector<const ParameterFacts*> parameters_of(const RunFacts& run, const std::string& layer) {
  std::vector<const ParameterFacts*> found;
  for (const ParameterFacts& p : run.parameters) {
    const size_t dot = p.name.rfind('.');
    if (dot != std::string::npos && p.name.substr(0, dot) == layer) found.push_back(&p);
  }
  return found;
}

// Empty: the sites are not one for each parameter of the layer.
std::vector<std::string> parameter_names(const RunFacts& run, const std::vector<size_t>& sites) {
  const SiteFacts& first = run.sites[sites[0]];
  const auto parameters = parameters_of(run, first.layer);
  if (!is_of_parameter(first) || parameters.size() != sites.size()) return {};
  std::vector<std::string> names;
  for (size_t i = 0; i < sites.size(); ++i) {
    if (run.sites[sites[i]].shape != parameters[i]->shape) return {};
    names.push_back(parameters[i]->name.substr(first.layer.size() + 1));
  }
  return names;
}

std::map<std::string, std::vector<size_t>> by_text(const std::vector<std::string>& labels) {
  std::map<std::string, std::vector<size_t>> sites;
  for (size_t s = 0; s < labels.size(); ++s) sites[labels[s]].push_back(s);
  return sites;
}

}  // namespace

std::vector<std::string> unique_labels(const RunFacts& run) {
  std::vector<std::string> labels;
  for (const SiteFacts& site : run.sites) labels.push_back(site.label());
  for (const auto& [label, sites] : by_text(labels)) {
    if (sites.size() == 1) continue;
    const std::vector<std::string> names = parameter_names(run, sites);
    for (size_t i = 0; i < sites.size(); ++i) {
      labels[sites[i]] += names.empty() ? fmt::format(" {}", run.sites[sites[i]].index + 1)
                                        : fmt::format(" ({})", names[i]);
    }
  }
  for (const auto& [label, sites] : by_text(labels)) {
    for (size_t i = 0; i < sites.size() && sites.size() > 1; ++i) {
      labels[sites[i]] += fmt::format(" ({} of {})", i + 1, sites.size());
    }
  }
  return labels;
}

MetricKeys::MetricKeys(const Baseline& baseline)
    : run_(baseline.run), labels_(unique_labels(baseline.run)) {}

std::string MetricKeys::of(size_t lane, MetricId metric, size_t subject) const {
  const Metric& row = metric_row(metric);
  const std::string text =
      row.of == MetricOf::kSite ? labels_.at(subject) : subject_text(run_, row, subject);
  return fmt::format("{}/{}{}", run_.lanes[lane].name, row.name, text.empty() ? "" : "/" + text);
}

}  // namespace lockstep
