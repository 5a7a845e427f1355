// A monitored run by hand: what lockstep_capture.Monitor would send of it, and its records. A
// second definition of the stream's layout, next to that in src/monitor/monitor_stream.cc.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "src/monitor/monitor_stream.h"
#include "src/record/run/run_writer.h"
#include "src/train/step_record.h"

namespace lockstep::testing {

// The sites of a block, by id.
enum MonitoredSite : int8_t { kFcWeight, kFcOutput, kFcGradWeight, kFcGradOutput, kLogits };
inline constexpr int64_t kMonitoredSites = 5;
inline constexpr double kMonitoredScale = 1024;
inline constexpr uint64_t kMonitoredCount = 2000, kMonitoredZeros = 2;  // of each site
inline constexpr int kLowerOctaves = 20;                                // of half of the values

// Two parameter groups; each block has the five sites.
inline nlohmann::json monitored_header(int64_t every = 10, int blocks = 1) {
  nlohmann::json sites = nlohmann::json::array();
  for (int b = 0; b < blocks; ++b) {
    const std::string number = b == 0 ? "" : std::to_string(b);
    const std::string fc = "fc" + number, attention = "attention" + number;
    const auto add = [&](const std::string& layer, const char* op, const char* role,
                         const std::string& name, const char* format, bool scaled) {
      sites.push_back({{"layer", layer},
                       {"op", op},
                       {"role", role},
                       {"name", layer + "." + name + ":" + role},
                       {"shape", {20, 100}},
                       {"format", format},
                       {"scaled", scaled}});
    };
    add(fc, "Linear", "weight", "weight", "fp32", false);
    add(fc, "Linear", "activation", "", "fp16", false);
    add(fc, "Linear", "grad_weight", "weight", "fp16", true);
    add(fc, "Linear", "grad_activation", "", "fp16", true);
    add(attention, "attention_logits", "activation", "", "fp16", false);
  }
  return {{"format", "lockstep-monitor"},
          {"version", 1},
          {"model", "Net"},
          {"data", "live: Net, by hand"},
          {"device", "cpu"},
          {"every", every},
          {"groups", 2},
          {"sites", sites}};
}

inline MonitoredRun monitored_run(const nlohmann::json& header) {
  std::istringstream in(header.dump() + "\n");
  return read_monitored_run(in);
}

// Two zeros; of the other values half are in the octave of 2^exponent, half 20 octaves below.
inline SiteRecord monitored_site(int exponent, double scale = 1) {
  constexpr int kFp32Bias = 127;
  constexpr uint64_t kHalf = (kMonitoredCount - kMonitoredZeros) / 2;
  SiteRecord site;
  site.measured = true;
  site.scale = scale;
  TensorStats& stats = site.stats;
  stats.count = kMonitoredCount;
  stats.source_zero = kMonitoredZeros;
  stats.abs_max = std::ldexp(1.0, exponent);
  stats.sum_sq = static_cast<double>(kHalf) * stats.abs_max * stats.abs_max;
  stats.exponent_histogram[0] = kMonitoredZeros;
  stats.exponent_histogram[static_cast<size_t>(kFp32Bias + exponent)] = kHalf;
  stats.exponent_histogram[static_cast<size_t>(kFp32Bias + exponent - kLowerOctaves)] = kHalf;
  return site;
}

// Activations and logits double every 10 steps; the logits reach 128 in step 20. Step 7 is skipped.
// Each updated weight is four times its update; ever more of them keep their value.
inline StepRecord monitored_step(int64_t step, bool is_measured, int blocks = 1) {
  const int tens = static_cast<int>(step / 10);
  const auto now = static_cast<uint64_t>(step);
  StepRecord record{.step = step, .is_measured = is_measured, .lanes = {LaneStep()}};
  LaneStep& lane = record.lanes.front();
  lane.loss = 2 - static_cast<double>(step) / 64;
  lane.gradient_norm = 0.5 + static_cast<double>(step) / 128;
  lane.seconds = 0.25;
  lane.lr = {0.5 / static_cast<double>(step + 1), 0.125};
  lane.scalers = {{.scale = kMonitoredScale, .found_inf = step == 7, .skipped = step == 7}};
  for (int b = 0; is_measured && b < blocks; ++b) {
    SiteRecord weight = monitored_site(0);
    weight.update = {
        .measured = true,
        .stats = {.stagnant = 10 + now, .count = 100, .update_sq = 1, .weight_sq = 16}};
    weight.live.stagnant_bf16 = 40 + now;
    lane.sites.push_back(weight);
    lane.sites.push_back(monitored_site(1 + tens));
    lane.sites.push_back(monitored_site(3, kMonitoredScale));
    lane.sites.push_back(monitored_site(2, kMonitoredScale));
    lane.sites.push_back(monitored_site(5 + tens));
  }
  for (size_t s = 0; s < lane.sites.size(); ++s) {
    LiveStats& live = lane.sites[s].live;
    live.largest_rank = static_cast<int64_t>(s) + 1;
    live.largest_micro_batch = static_cast<int64_t>(s) + 2;
  }
  return record;
}

template <typename Number>
void append_number(std::string& bytes, Number number) {
  static_assert(sizeof number == 8);
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// The numbers of a step, as the stream has them.
inline std::string numbers_of(const StepRecord& step) {
  const LaneStep& lane = step.lanes.front();
  std::string bytes;
  for (const double x : {lane.loss, lane.scalers.front().scale, lane.gradient_norm, lane.seconds}) {
    append_number(bytes, x);
  }
  for (const double lr : lane.lr) append_number(bytes, lr);
  const auto each = [&](auto member) {
    for (const SiteRecord& site : lane.sites) append_number(bytes, member(site));
  };
  each([](const SiteRecord& s) { return s.stats.count; });
  each([](const SiteRecord& s) { return s.stats.source_zero; });
  each([](const SiteRecord& s) { return s.stats.nan; });
  each([](const SiteRecord& s) { return s.update.stats.count; });
  each([](const SiteRecord& s) { return s.update.stats.stagnant; });
  each([](const SiteRecord& s) { return s.live.stagnant_bf16; });
  each([](const SiteRecord& s) { return s.scale; });
  each([](const SiteRecord& s) { return s.stats.abs_max; });
  each([](const SiteRecord& s) { return s.stats.sum_sq; });
  each([](const SiteRecord& s) { return s.update.stats.update_sq; });
  each([](const SiteRecord& s) { return s.update.stats.weight_sq; });
  each([](const SiteRecord& s) { return s.live.largest_rank; });
  each([](const SiteRecord& s) { return s.live.largest_micro_batch; });
  each([](const SiteRecord& s) { return s.live.nonfinite_rank; });
  each([](const SiteRecord& s) { return s.live.nonfinite_micro_batch; });
  for (const SiteRecord& site : lane.sites) {
    for (const uint64_t bin : site.stats.exponent_histogram) append_number(bytes, bin);
  }
  return bytes;
}

inline nlohmann::json head_of(const StepRecord& step) {
  const ScalerRecord& scaler = step.lanes.front().scalers.front();
  return {{"step", step.step},
          {"measured", step.is_measured},
          {"found_inf", scaler.found_inf},
          {"skipped", scaler.skipped},
          {"bytes", numbers_of(step).size()}};
}

inline std::string text_of(const StepRecord& step) {
  return head_of(step).dump() + "\n" + numbers_of(step);
}

// What `lockstep monitor` writes.
inline void record_monitored(const std::string& path, int64_t steps, int64_t every,
                             int blocks = 1) {
  const MonitoredRun run = monitored_run(monitored_header(every, blocks));
  RunFileWriter writer(path, "lockstep monitor", /*overwrite=*/false);
  writer.on_start(run.description());
  for (int64_t step = 0; step < steps; ++step) {
    writer.on_step(monitored_step(step, step % every == 0, blocks));
  }
  writer.on_finish();
}

}  // namespace lockstep::testing
