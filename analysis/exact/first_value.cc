// See first_value.h.
#include "analysis/exact/first_value.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <exception>
#include <set>

#include "analysis/exact/recorded_run.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/quantize.h"
#include "src/core/error.h"
#include "src/train/observer.h"

namespace lockstep {
namespace {

constexpr double kMostSeconds = 60;  // of a replay that the user did not ask for

// Keeps one hash of one step, then stops the run.
class Watch : public Observer {
 public:
  Watch(const SitePlace& place, const std::atomic<bool>& outside, std::atomic<bool>& stop)
      : place_(place), outside_(outside), stop_(stop) {}
  void on_start(const RunDescription& run) override {
    for (size_t l = 0; l < run.lanes.size(); ++l) {
      if (run.lanes[l].name == place_.lane) lane_ = l;
    }
  }
  void on_step(const StepRecord& record) override {
    if (outside_.load()) stop_ = true;
    if (record.step != place_.step) return;
    hash = record.lanes.at(lane_).sites.at(static_cast<size_t>(place_.site)).stats.bits_hash;
    stop_ = true;
  }
  std::optional<uint64_t> hash;

 private:
  const SitePlace& place_;
  const std::atomic<bool>& outside_;
  std::atomic<bool>& stop_;
  size_t lane_ = 0;
};

bool is_equal(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

std::vector<double> numbers_of(const Tensor& tensor) {
  const Tensor doubles = tensor.to(Container::kF64);
  const std::span<const double> values = doubles.as<double>();
  return {values.begin(), values.end()};
}

std::vector<int64_t> index_of(int64_t element, const Shape& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0; element /= shape[d]) index[d] = element % shape[d];
  return index;
}

uint64_t hash_of(const ValueTap& tap) {
  uint64_t hash = 0;
  for (const Tensor& tensor : tap.values) {
    const KernelSet& set = active_kernels();
    hash += tensor.container() == Container::kF64
                ? observe<double>(set, tensor.as<double>(), *tap.format).bits_hash
                : observe<float>(set, tensor.as<float>(), *tap.format).bits_hash;
  }
  return hash;
}

double seconds_until(const RunFile& run, const SitePlace& place) {
  double sum = 0;
  const std::set<int> lanes = {0, run.lane_index(place.lane)};
  for (const int lane : lanes) {
    const std::vector<LaneStep> course = run.course(lane);
    for (int64_t step = 0; step <= place.step && step < std::ssize(course); ++step) {
      sum += course[static_cast<size_t>(step)].seconds;
    }
  }
  return sum;
}

SiteValues values_of(const RunFile& run, const SitePlace& place, const std::atomic<bool>& stop,
                     const ReplayElsewhere& elsewhere) {
  SiteValues values = replay_site(run, place, stop);
  if (values.is_recorded) return values;
  if (!elsewhere) {
    throw InputError(fmt::format("this program does not repeat the bits of {}", run.path()),
                     "`check --a OLD --b NEW MODEL` runs the programs that do");
  }
  values.passes = elsewhere(run, place);
  return values;
}

}  // namespace

SiteValues replay_site(const RunFile& run, const SitePlace& place, const std::atomic<bool>& stop) {
  RunOptions options = run.options();
  options.lanes = {"fp32"};
  if (place.lane != options.lanes.front()) options.lanes.push_back(place.lane);
  options.held_out = false;
  options.measuring.statistics_every = 1;  // another lane may be why the step was measured
  std::optional<LockstepRun> again;
  make_recorded_run(again, options);
  const auto site = static_cast<size_t>(place.site);
  const std::vector<Site>& sites = again->description().sites->sites;
  if (site >= sites.size() || sites[site].label() != run.sites().sites.at(site).label()) {
    throw InputError(
        fmt::format("this program has other sites than the one that wrote {}", run.path()));
  }
  ValueTap tap;
  tap.site = place.site;
  again->tap(place.lane, &tap);
  std::atomic<bool> enough = false;
  Watch watch(place, stop, enough);
  again->add_observer(&watch);
  again->run(enough);
  if (!watch.hash) throw InputError("stopped");
  if (tap.values.empty()) throw InputError("this step computes no value there");
  if (hash_of(tap) != *watch.hash) {
    throw InputError("the values of this site are not kept until the end of the step");
  }
  const LaneStep recorded = run.step(run.lane_index(place.lane), place.step, /*histograms=*/false);
  return {std::move(tap.values), tap.format,
          recorded.sites.at(site).stats.bits_hash == *watch.hash};
}

std::optional<FirstValue> compare_values(const SiteValues& run, const SiteValues& baseline) {
  if (run.passes.size() != baseline.passes.size()) {
    throw InputError(fmt::format("{} passes in the step, {} in the baseline's", run.passes.size(),
                                 baseline.passes.size()));
  }
  std::optional<FirstValue> first;
  int64_t differing = 0, count = 0;
  for (size_t pass = 0; pass < run.passes.size(); ++pass) {
    const Tensor &a = run.passes[pass], &b = baseline.passes[pass];
    if (a.shape() != b.shape()) {
      throw InputError(fmt::format("shapes {} and {}", to_string(a.shape()), to_string(b.shape())));
    }
    const std::vector<double> x = numbers_of(a), y = numbers_of(b);
    count += a.size();
    for (size_t i = 0; i < x.size(); ++i) {
      if (is_equal(x[i], y[i])) continue;
      ++differing;
      if (first) continue;
      first = FirstValue{.index = index_of(static_cast<int64_t>(i), a.shape()),
                         .pass = run.passes.size() > 1 ? static_cast<int64_t>(pass) : -1,
                         .run = x[i],
                         .baseline = y[i]};
      if (run.format != nullptr && std::isfinite(x[i]) && std::isfinite(y[i])) {
        first->format = run.format->name;
        first->ulps = std::fabs(x[i] - y[i]) / ulp(y[i], *run.format);
      }
    }
  }
  if (!first) return first;
  first->differing = differing;
  first->count = count;
  return first;
}

void find_first_value(ExactResult& result, const RunFile& run, const RunFile& baseline,
                      const std::atomic<bool>& stop, const ReplayElsewhere& run_elsewhere,
                      const ReplayElsewhere& baseline_elsewhere) {
  if (!result.first_place) return;
  const SitePlace ours = *result.first_place;
  SitePlace theirs = ours;
  theirs.lane = result.first_baseline_lane;
  try {
    const double seconds = seconds_until(run, ours) + seconds_until(baseline, theirs);
    if (seconds > kMostSeconds) {
      throw InputError(
          fmt::format("replaying both runs up to step {} takes about {:.0f} s", ours.step, seconds),
          fmt::format("`replay --save-values` with --at \"{} {} #{}\" saves the "
                      "values of each",
                      ours.step, ours.lane, ours.site));
    }
    const SiteValues a = values_of(run, ours, stop, run_elsewhere);
    const SiteValues b = values_of(baseline, theirs, stop, baseline_elsewhere);
    result.first_value = compare_values(a, b);
    if (!result.first_value) {
      result.no_first_value = "all its numbers are equal; NaNs may differ in sign or payload";
    }
  } catch (const InputError& error) {  // the comparison itself has its verdict
    result.no_first_value = error.what();
  } catch (const std::exception&) {
    result.no_first_value = "a run could not be repeated";
  }
}

}  // namespace lockstep
