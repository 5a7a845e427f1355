// A lane names its chip's accumulators in device_sums: "hopper_fp16 fp16 x fp16". The software lane
// has the chip's name as its target.
#include "analysis/compare/hardware_pair.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "src/policy/find_policy.h"
#include "src/train/lane_name.h"

namespace lockstep {
namespace {

bool is_of_chip(const std::string& device_sum, std::string chip) {
  std::ranges::replace(chip, '-', '_');
  return device_sum.starts_with(chip + "_");
}

int find_model_lane(const RunFile& run, const LaneInfo& device) {
  const std::vector<LaneInfo>& lanes = run.lanes();
  for (size_t i = 0; i < lanes.size(); ++i) {
    const LaneInfo& lane = lanes[i];
    const bool is_model =
        !lane.target.empty() && lane.device_sums.empty() && lane.policy_hash == device.policy_hash;
    const auto is_its_sum = [&](const std::string& sum) { return is_of_chip(sum, lane.target); };
    if (is_model && std::ranges::any_of(device.device_sums, is_its_sum)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// Of one site, over the steps in which bits differ.
struct Squares {
  double device = 0, model = 0, reference = 0;
  bool is_finite = true;
};

class Comparison {
 public:
  Comparison(const RunFile& run, int device, int model)
      : run_(run), device_(device), gaps_(run.sites().sites.size()), squares_(gaps_.size()) {
    pair_.model_lane = model;
  }

  HardwarePair run() {
    for (int64_t step = 0; step < run_.steps(); ++step) {
      if (run_.is_measured(step)) add_step(step);
    }
    for (size_t s = 0; s < gaps_.size(); ++s) {
      SiteGap& gap = gaps_[s];
      if (gap.same == gap.tensors) continue;
      gap.site = static_cast<int32_t>(s);
      const Squares& sum = squares_[s];
      const double device = std::sqrt(sum.device), model = std::sqrt(sum.model);
      const double size = sum.is_finite && sum.reference > 0
                              ? std::sqrt(sum.reference)
                              : std::numeric_limits<double>::quiet_NaN();
      gap.least = std::abs(device - model) / size;
      gap.most = (device + model) / size;
      pair_.gaps.push_back(gap);
    }
    add_losses();
    const LaneInfo& lane = run_.lanes()[static_cast<size_t>(device_)];
    pair_.has_narrow_results =
        parse_recorded_policy(lane.policy_text, parse_lane_name(lane.name).policy)
            .cuda.narrow_results;
    return std::move(pair_);
  }

 private:
  void add_step(int64_t step) {
    const auto of_both = [&](const auto& read) {
      return std::pair{read(device_), read(pair_.model_lane)};
    };
    const auto [count, model_count] =
        of_both([&](int lane) { return run_.count(lane, "count", step); });
    const auto [bits, model_bits] = of_both([&](int lane) { return run_.bits_hash(lane, step); });
    std::vector<bool> differs(gaps_.size());
    for (size_t s = 0; s < gaps_.size(); ++s) {
      if (count[s] == 0 || model_count[s] == 0) continue;
      differs[s] = bits[s] != model_bits[s];
      ++gaps_[s].tensors, ++pair_.tensors;
      if (!differs[s]) ++gaps_[s].same, ++pair_.same;
    }
    if (std::ranges::find(differs, true) == differs.end()) return;
    add_errors(step, differs, count);
    if (pair_.first_step >= 0) return;
    pair_.first_step = step;
    add_partings(differs);
  }

  void add_errors(int64_t step, const std::vector<bool>& differs,
                  const std::vector<uint64_t>& count) {
    const auto error = run_.moment(device_, "err_sq", step),
               model_error = run_.moment(pair_.model_lane, "err_sq", step),
               reference = run_.moment(device_, "ref_sq", step);
    const auto compared = run_.count(device_, "compared", step),
               model_compared = run_.count(pair_.model_lane, "compared", step);
    for (size_t s = 0; s < gaps_.size(); ++s) {
      if (!differs[s]) continue;
      Squares& sum = squares_[s];
      sum.device += error[s], sum.model += model_error[s], sum.reference += reference[s];
      sum.is_finite = sum.is_finite && compared[s] == count[s] && model_compared[s] == count[s];
    }
  }

  void add_partings(const std::vector<bool>& differs) {
    const std::vector<Site>& sites = run_.sites().sites;
    const std::vector<DeviceProduct> products = run_.device_products(device_);
    for (const Site& site : sites) {
      const auto differs_there = [&](int32_t feed) { return differs[static_cast<size_t>(feed)]; };
      if (!differs[static_cast<size_t>(site.id)] ||
          std::ranges::any_of(site.feeds, differs_there)) {
        continue;
      }
      Parting parting{.site = site.id, .products = {}};
      for (const DeviceProduct& product : products) {
        const bool has_site = product.site >= 0;
        if (has_site && sites[static_cast<size_t>(product.site)].node == site.node) {
          parting.products.push_back(product);
        }
      }
      pair_.partings.push_back(std::move(parting));
    }
  }

  void add_losses() {
    const std::vector<double> device = run_.loss(device_), model = run_.loss(pair_.model_lane);
    for (size_t step = 0; step < std::min(device.size(), model.size()); ++step) {
      const double gap = std::abs(device[step] - model[step]) / std::abs(model[step]);
      if (std::isfinite(gap)) pair_.loss_gap = std::max(pair_.loss_gap, gap);
    }
  }

  const RunFile& run_;
  const int device_;
  HardwarePair pair_;
  std::vector<SiteGap> gaps_;     // by site
  std::vector<Squares> squares_;  // by site
};

}  // namespace

std::optional<HardwarePair> compare_with_model(const RunFile& run, int lane) {
  const int model = find_model_lane(run, run.lanes()[static_cast<size_t>(lane)]);
  if (model < 0) return std::nullopt;
  return Comparison(run, lane, model).run();
}

}  // namespace lockstep
