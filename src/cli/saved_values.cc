// See saved_values.h.
#include "src/cli/saved_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <vector>

#include "src/core/npy.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/graph/site_labels.h"

namespace lockstep {
namespace {

// Several passes come one after the other along a new first axis.
Tensor joined_passes(const std::vector<Tensor>& passes) {
  if (passes.size() == 1) return passes.front();
  Shape shape = passes.front().shape();
  shape.insert(shape.begin(), std::ssize(passes));
  Tensor all(shape, passes.front().container());
  char* to = static_cast<char*>(all.raw());
  for (const Tensor& pass : passes) {
    if (pass.shape() != passes.front().shape()) {
      throw InputError(fmt::format("--save-values: passes of shapes {} and {} in one step",
                                   to_string(passes.front().shape()), to_string(pass.shape())));
    }
    std::memcpy(to, pass.raw(), pass.bytes());
    to += pass.bytes();
  }
  return all;
}

int32_t find_site(const SiteTable& sites, const std::string& text) {
  std::vector<std::string> found;
  int32_t site = -1;
  const std::vector<std::string> labels = unique_labels(sites);
  for (const Site& one : sites.sites) {
    const std::string number = fmt::format("#{}", one.id);
    if (text != number && text != one.label() && text != labels[static_cast<size_t>(one.id)])
      continue;
    found.push_back(number);
    site = one.id;
  }
  if (found.empty()) {
    throw InputError(fmt::format("--at: no site '{}'", text),
                     "the labels of a report, e.g. \"conv1 conv2d activation output\", or #ID: "
                     "`lockstep report RUN --format json`");
  }
  if (found.size() > 1) {
    throw InputError(fmt::format("--at: {} sites are called '{}'", found.size(), text),
                     "take one of their ids: " + join(found, ", "));
  }
  return site;
}

}  // namespace

SavedValues::SavedValues(std::string path, const std::string& at, LockstepRun& run)
    : path_(std::move(path)) {
  const size_t first = at.find(' '), second = at.find(' ', first + 1);
  if (first == std::string::npos || second == std::string::npos) {
    throw InputError(fmt::format("--at \"{}\": \"STEP LANE SITE\" required", at),
                     "e.g. --at \"3 pure-fp16 conv1 conv2d activation output\"");
  }
  const int64_t steps = run.description().options->steps;
  const auto [end, error] = std::from_chars(at.data(), at.data() + first, step_);
  if (error != std::errc() || end != at.data() + first || step_ < 0 || step_ >= steps) {
    throw InputError(
        fmt::format("--at: step '{}': 0 <= STEP < {} required", at.substr(0, first), steps));
  }
  tap_.site = find_site(*run.description().sites, at.substr(second + 1));
  lane_name_ = at.substr(first + 1, second - first - 1);
  run.tap(lane_name_, &tap_);
  const std::vector<LaneDescription>& lanes = run.description().lanes;
  while (lanes.at(lane_).name != lane_name_) ++lane_;
}

void SavedValues::on_step(const StepRecord& record) {
  if (record.step != step_) return;
  if (!record.lanes.at(lane_).alive) {
    throw InputError(
        fmt::format("--save-values: lane '{}' stopped before step {}", lane_name_, step_),
        "take an earlier step");
  }
  if (!record.is_measured) {
    throw InputError(fmt::format("--save-values: step {} was not measured", step_),
                     "leave out --statistics and --statistics-every");
  }
  if (tap_.values.empty()) {
    throw InputError("--save-values: the lane computes no value at this site in this step",
                     "buffers and constants are measured when they are stored, before the step");
  }
  write_text_file_atomically(path_, npy_bytes(joined_passes(tap_.values)));
}

}  // namespace lockstep
