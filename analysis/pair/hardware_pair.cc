// A lane names its chip's accumulators in device_sums: "hopper_fp16 fp16 x fp16". The software lane
// has the chip's name as its target.
#include "analysis/pair/hardware_pair.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

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

// Sums of squares for one site, over the steps in which bits differ.
struct Squares {
  double device = 0, model = 0, reference = 0;
  bool is_finite = true;
};

}  // namespace

class HardwareTally::Comparison {
 public:
  Comparison(const RunFile& run, int device, int model)
      : run_(run), device_(device), gaps_(run.sites().sites.size()), squares_(gaps_.size()) {
    pair_.model_lane = model;
    find_products();
  }

  void add(const StepRecord& record) {
    const LaneStep& device = record.lanes[static_cast<size_t>(device_)];
    const LaneStep& model = record.lanes[static_cast<size_t>(pair_.model_lane)];
    if (record.is_measured) add_sites(record.step, device.sites, model.sites);
    was_measured_ = record.is_measured;
    add_losses(record.step, loss_of(device), loss_of(model));
  }

  HardwarePair pair() const {
    HardwarePair out = pair_;
    for (size_t s = 0; s < gaps_.size(); ++s) {
      SiteGap gap = gaps_[s];
      if (gap.same == gap.tensors) continue;
      gap.site = static_cast<int32_t>(s);
      const Squares& sum = squares_[s];
      const double device = std::sqrt(sum.device), model = std::sqrt(sum.model);
      const double size = sum.is_finite && sum.reference > 0
                              ? std::sqrt(sum.reference)
                              : std::numeric_limits<double>::quiet_NaN();
      gap.least = std::abs(device - model) / size;
      gap.most = (device + model) / size;
      out.gaps.push_back(gap);
    }
    return out;
  }

 private:
  struct Step {
    std::vector<bool> is_compared, differs;  // by site
  };

  void find_products() {
    for (const DeviceProduct& product : run_.device(device_).kinds) {
      if (product.site >= 0) products_[site(product.site).node].push_back(product);
    }
  }

  void add_sites(int64_t step, const std::vector<SiteRecord>& device,
                 const std::vector<SiteRecord>& model) {
    Step now{std::vector<bool>(gaps_.size()), std::vector<bool>(gaps_.size())};
    for (size_t s = 0; s < gaps_.size(); ++s) {
      if (device[s].stats.count == 0 || model[s].stats.count == 0) continue;
      now.is_compared[s] = true;
      now.differs[s] = device[s].stats.bits_hash != model[s].stats.bits_hash;
      ++gaps_[s].tensors, ++pair_.tensors;
      if (!now.differs[s]) ++gaps_[s].same, ++pair_.same;
    }
    const bool is_equal = std::ranges::find(now.differs, true) == now.differs.end();
    if (!is_equal && pair_.first_step < 0) {
      pair_.first_step = step;
      pair_.follows_unmeasured = step > 0 && !was_measured_;
    }
    // Operands that no site shows, such as weights in the policy's format, are equal as well until
    // the first step in which something differs has ended.
    if (is_equal || (pair_.first_step == step && !pair_.follows_unmeasured)) judge_sums(now);
    if (!is_equal) add_errors(now, device, model);
  }

  void judge_sums(const Step& step) {
    for (const Site& site : run_.sites().sites) {
      const auto id = static_cast<size_t>(site.id);
      const auto differs = [&](int32_t feed) { return step.differs[static_cast<size_t>(feed)]; };
      if (!step.is_compared[id] || std::ranges::any_of(site.feeds, differs)) continue;
      // Where the sums have a site of their own, they are judged there.
      const int32_t sums = run_.sites().find(site.node, Point::kAccumulator, 0);
      if (sums >= 0 && sums != site.id && step.is_compared[static_cast<size_t>(sums)] &&
          site.point == Point::kOutput) {
        continue;
      }
      const auto products = products_.find(site.node);
      const bool is_sum = products != products_.end() && site.point != Point::kOperand;
      FirstDifference place;
      place.site = site.id;
      if (is_sum) {
        place.products = products->second;
        place.is_rounded = narrow_results_ && has_narrow_factors(place);
        EqualProducts& tally = place.most_parts() > 1 ? pair_.in_parts : pair_.one_chain;
        ++tally.products;
        if (!step.differs[id]) ++tally.same;
      }
      if (step.differs[id]) pair_.first.push_back(std::move(place));
    }
  }

  bool has_narrow_factors(const FirstDifference& place) const {
    const std::vector<std::string>& sums = lane().device_sums;
    const auto site = static_cast<size_t>(place.products.front().site);
    return site < sums.size() &&
           (sums[site].ends_with(" fp16 x fp16") || sums[site].ends_with(" bf16 x bf16"));
  }

  void add_errors(const Step& now, const std::vector<SiteRecord>& device,
                  const std::vector<SiteRecord>& model) {
    for (size_t s = 0; s < gaps_.size(); ++s) {
      if (!now.differs[s]) continue;
      const ErrorStats &own = device[s].error, &its = model[s].error;
      const uint64_t count = device[s].stats.count;
      Squares& sum = squares_[s];
      sum.device += own.err_sq, sum.model += its.err_sq, sum.reference += own.ref_sq;
      sum.is_finite = sum.is_finite && own.compared == count && its.compared == count;
    }
  }

  static double loss_of(const LaneStep& lane) {
    return lane.alive ? lane.loss : std::numeric_limits<double>::quiet_NaN();
  }

  void add_losses(int64_t step, double device, double model) {
    if (std::isfinite(device) != std::isfinite(model) && pair_.one_broke_at < 0) {
      pair_.one_broke_at = step;
    }
    const double gap = std::abs(device - model) / std::abs(model);
    if (std::isfinite(gap)) pair_.loss_gap = std::max(pair_.loss_gap, gap);
  }

  const Site& site(int64_t id) const { return run_.sites().sites[static_cast<size_t>(id)]; }
  const LaneInfo& lane() const { return run_.lanes()[static_cast<size_t>(device_)]; }

  const RunFile& run_;
  const int device_;
  HardwarePair pair_;
  bool was_measured_ = true;                                    // the step before
  std::vector<SiteGap> gaps_;                                   // by site
  std::vector<Squares> squares_;                                // by site
  std::map<std::string, std::vector<DeviceProduct>> products_;  // by node
  const bool narrow_results_ = policy_of(lane()).cuda.narrow_results;
};

int64_t FirstDifference::most_parts() const {
  int64_t most = 1;
  for (const DeviceProduct& product : products) most = std::max(most, product.most_parts);
  return most;
}

HardwareTally::HardwareTally(const RunFile& run, int lane) {
  const int model = find_model_lane(run, run.lanes()[static_cast<size_t>(lane)]);
  if (model >= 0) comparison_ = std::make_unique<Comparison>(run, lane, model);
}
HardwareTally::~HardwareTally() = default;

void HardwareTally::on_step(const StepRecord& record) {
  if (comparison_) comparison_->add(record);
}

std::optional<HardwarePair> HardwareTally::pair() const {
  if (!comparison_) return std::nullopt;
  return comparison_->pair();
}

}  // namespace lockstep
