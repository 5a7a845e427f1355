#include "tests/record/run/synthetic_run.h"

#include <fmt/format.h>
#include <hdf5.h>

#include <map>

#include "src/core/random.h"
#include "src/record/hdf5/hdf5_handle.h"
#include "src/record/run/checkpoint.h"
#include "src/record/run/run_reader.h"

namespace lockstep::test {

SyntheticRun::SyntheticRun(int64_t steps, int64_t site_count, int64_t lane_count) {
  graph.name = "synthetic";
  graph.inputs = {{"in0", "images", {{4, 2}, ElementType::kFloat}}};
  Node node;
  node.id = "n0";
  node.op = "relu";
  node.inputs = {"in0"};
  node.outputs = {{{4, 2}, ElementType::kFloat}};
  node.layer = "act";
  node.gradient_of = {""};
  graph.nodes = {node};
  graph.loss = "n0";
  for (int64_t i = 0; i < site_count; ++i) {
    Site site = {};
    site.id = static_cast<int32_t>(i);
    site.layer = fmt::format("layer{}", i);
    site.op = "relu";
    site.role = i == 0 ? Role::kInput : i == 2 ? Role::kUpdate : Role::kActivation;
    site.point = i % 2 == 0 ? Point::kOperand : Point::kOutput;
    site.shape = {4, 2};
    site.node = "n0";
    site.value = i == 0 ? "in0" : "n0";
    if (i > 0) site.feeds = {static_cast<int32_t>(i - 1)};
    site.source_line = "model.py:7";
    site.torch_op = "aten.clamp_min.default";
    site.scaled = i == 1;
    sites.sites.push_back(site);
  }
  options.steps = steps;
  options.eval_every = 40;
  options.checkpoint_every = 25;
  options.measuring.histogram_every = 10;
  options.lanes = {"fp32"};
  description.step_graph = &graph;
  description.sites = &sites;
  description.options = &options;
  description.data = "synthetic: 8 train";
  for (int64_t i = 0; i < lane_count; ++i) {
    LaneDescription lane;
    lane.name = i == 0 ? "fp32" : i == 1 ? "half/way%.toml" : fmt::format("lane{}", i);
    lane.policy.name = lane.name;
    lane.policy.text = "name = \"" + lane.name + "\"\n";
    lane.engine = "software";
    lane.is_reference = i == 0;
    description.lanes.push_back(lane);
    if (i > 0) options.lanes.push_back(lane.name);
  }
}

StepRecord SyntheticRun::step(int64_t step) const {
  StepRecord record;
  record.step = step;
  for (size_t l = 0; l < description.lanes.size(); ++l) {
    const RandomStream random(static_cast<uint64_t>(step), RandomPurpose::kTest,
                              static_cast<uint32_t>(l));
    LaneStep& lane = record.lanes.emplace_back();
    lane.alive = l == 0 || died_after < 0 || step <= died_after;
    if (!lane.alive) {
      lane.died_of = DeathCause::kLossScaler;
      continue;
    }
    lane.loss = 2 + random.uniform(0) / static_cast<double>(step + 1);
    lane.seconds = random.uniform(1);
    ScalerRecord scaler;
    scaler.scale = 1024;
    scaler.skipped = scaler.found_inf = l == 1 && step % kSkipEvery == kSkipEvery - 1;
    scaler.growth_tracker = static_cast<int32_t>(step % kSkipEvery);
    scaler.culprit_site = scaler.skipped ? 1 : -1;
    lane.scalers = {scaler};
    if (description.lanes[l].scaler_losses.size() == 2) {  // the second never overflows
      lane.scalers.push_back({.scale = 4096, .skipped = scaler.skipped});
    }
    if (description.lanes[l].policy.loss_scale_use.skip_by_group) {  // groups take turns
      for (const bool mine : {step % 2 == 0, step % 2 != 0}) {
        lane.scalers.push_back(scaler);
        lane.scalers.back().found_inf = lane.scalers.back().skipped = mine && scaler.skipped;
      }
    }
    uint64_t n = 2;
    for (size_t s = 0; s < sites.sites.size(); ++s) {
      SiteRecord& site = lane.sites.emplace_back();
      site.measured = !(l == 1 && s == 0);  // the second lane lacks site 0
      if (!site.measured) continue;
      site.scale = sites.sites[s].scaled ? scaler.scale : 1;
      for (int i = 0; i < 8; ++i) ++site.stats.exponent_histogram[100 + random.bits(n++) % 40];
      site.stats.count = 8;
      site.stats.inexact = random.bits(n++) % 8;
      site.stats.abs_max = random.uniform(n++);
      site.stats.sum_sq = random.uniform(n++);
      site.stats.bits_hash = (static_cast<uint64_t>(random.bits(n)) << 32) | random.bits(n + 1);
      n += 2;
      site.error.compared = 8;
      site.error.err_sq = random.uniform(n++);
      if (options.measuring.samples_sums(step)) {
        site.effect = {.rounding = site.error.err_sq, .range = site.stats.sum_sq};
        site.health.addends = 8;
        site.health.swamped = site.stats.inexact;
      }
      UpdateRecord& update = site.update;
      update.measured = sites.sites[s].role == Role::kUpdate;
      if (update.measured) update.stats = {random.bits(n++) % 8, 8, random.uniform(n), 3.5};
    }
  }
  return record;
}

EvaluationRecord SyntheticRun::evaluation(int64_t steps_done) const {
  EvaluationRecord record;
  record.steps_done = steps_done;
  record.example_count = 2;
  for (size_t l = 0; l < description.lanes.size(); ++l) {
    record.loss.push_back(1.0 / static_cast<double>(steps_done + static_cast<int64_t>(l)));
    record.accuracy.push_back(0.5);
  }
  return record;
}

RunState SyntheticRun::state(int64_t steps_done) const {
  RunState state;
  state.steps_done = steps_done;
  for (size_t l = 0; l < description.lanes.size(); ++l) {
    LaneState& lane = state.lanes.emplace_back();
    const float x = static_cast<float>(steps_done) + 0.25f * static_cast<float>(l);
    lane.tensors["weight/act/0.weight"] = Tensor::from<float>({2, 2}, {x, -x, x + 1, 0});
    lane.tensors["state/act/0"] = Tensor::from<double>({1}, {1.0 / (x + 1)});
    lane.tensors["buffer/count"] = Tensor::from<int32_t>({}, {static_cast<int32_t>(steps_done)});
    LossScaleState& scaler = lane.scalers.emplace_back();
    scaler.growth_tracker = steps_done % kSkipEvery;
    scaler.scale = 1.0 / 3;  // not an FP32 number
    scaler.next_scale = 512;
    scaler.hysteresis = 2;
    scaler.iteration = steps_done;
    scaler.last_overflow = steps_done - scaler.growth_tracker - 1;
    scaler.last_rescale = 3;
    scaler.overflows_since_rescale = 4;
    scaler.raised = true;
    lane.scalers.resize(1 + l);
    lane.optimizer_steps = {steps_done - 1, steps_done};
    lane.died_of = l == 0 ? DeathCause::kAlive : DeathCause::kLossScaler;
    lane.died_at = -1;
    lane.nonfinite_since = steps_done > 60 ? 60 : -1;
  }
  return state;
}

void SyntheticRun::drive(RunFileWriter& writer, int64_t from, int64_t to) const {
  writer.on_start(description);
  for (int64_t k = from; k < to; ++k) {
    writer.on_step(step(k));
    const int64_t done = k + 1;
    if (done % options.eval_every == 0) writer.on_evaluation(evaluation(done));
    if (done % options.checkpoint_every == 0 || done == to) {
      const RunState now = state(done);
      writer.on_checkpoint(view_of(now));
    };
  }
  writer.on_finish();
}

void SyntheticRun::record(const std::string& path) const {
  RunFileWriter writer(path, "lockstep replay synthetic", false);
  drive(writer, 0, options.steps);
}

void SyntheticRun::resume(const std::string& path) const {
  const RunFile before(path, true);
  const auto state = read_checkpoint(path, before.steps(), before.identity());
  const int64_t from = state ? state->steps_done : 0;
  drive(*RunFileWriter::resume(path, from), from, options.steps);
}

namespace {

// Every dataset's shape and bytes by path.
std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> found;
  const hdf5::Handle access(H5Pcreate(H5P_FILE_ACCESS), "make a property list");
  H5Pset_file_locking(access.id(), false, true);
  const hdf5::Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), "open " + path);
  std::vector<std::string> names;
  const auto collect = [](hid_t, const char* name, const H5O_info_t* info, void* out) -> herr_t {
    if (info->type == H5O_TYPE_DATASET) {
      static_cast<std::vector<std::string>*>(out)->push_back(name);
    }
    return 0;
  };
  hdf5::check(H5Ovisit2(file.id(), H5_INDEX_NAME, H5_ITER_INC, collect, &names, H5O_INFO_BASIC),
              "visit " + path);
  for (const std::string& name : names) {
    const hdf5::Handle dataset(H5Dopen2(file.id(), name.c_str(), H5P_DEFAULT), "open " + name);
    const hdf5::Handle type(H5Dget_type(dataset.id()), "read the type of " + name);
    const Shape shape = hdf5::array_shape(dataset.id());
    std::string bytes(static_cast<size_t>(element_count(shape)) * H5Tget_size(type.id()), '\0');
    hdf5::read_array(file.id(), name, type.id(), bytes.empty() ? nullptr : bytes.data());
    found[name] = to_string(shape) + bytes;
  }
  return found;
}

}  // namespace

std::vector<std::string> differing_datasets(const std::string& a, const std::string& b) {
  const auto x = contents(a), y = contents(b);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : x) {
    if (name.ends_with("/seconds")) continue;
    const auto other = y.find(name);
    if (other == y.end() || other->second != bytes) names.push_back(name);
  }
  for (const auto& [name, bytes] : y) {
    if (!x.contains(name)) names.push_back(name);
  }
  return names;
}

std::string problem_of(const std::string& path, const SyntheticRun& run, int64_t at_least) try {
  const RunFile file(path, true);
  if (file.steps() < at_least) return fmt::format("{} steps", file.steps());
  contents(path);  // everything can be read, also what is not compared below
  for (int lane = 0; lane < static_cast<int>(run.description.lanes.size()); ++lane) {
    const std::vector<double> losses = file.loss(lane);
    const std::vector<ScalerRecord> scalers = file.scalers(lane);
    std::vector<uint64_t> total(run.sites.sites.size() * kHistogramBins, 0);
    const std::vector<int64_t> kept = file.histogram_steps(lane);
    const int64_t covered = file.total_histogram_steps(lane);
    size_t record = 0;
    for (int64_t k = 0; k < file.steps(); ++k) {
      const LaneStep expected = run.step(k).lanes[static_cast<size_t>(lane)];
      const LaneStep read = file.step(lane, k);
      const bool has_histogram = record < kept.size() && kept[record] == k;
      record += has_histogram;
      const size_t i = static_cast<size_t>(k);
      if (losses[i] != expected.loss) return fmt::format("loss of step {}", k);
      if (scalers[i].skipped != expected.scalers[0].skipped) return fmt::format("scaler {}", k);
      for (size_t s = 0; s < read.sites.size(); ++s) {
        const TensorStats &stats = expected.sites[s].stats, &found = read.sites[s].stats;
        const auto differs = [&](const auto& member) { return found.*member != stats.*member; };
        if (differs(&TensorStats::bits_hash)) return fmt::format("hash of step {} site {}", k, s);
        if (differs(&TensorStats::inexact)) return fmt::format("count of step {} site {}", k, s);
        if (differs(&TensorStats::sum_sq)) return fmt::format("moment of step {} site {}", k, s);
        if (has_histogram && differs(&TensorStats::exponent_histogram)) {
          return fmt::format("histogram of step {} site {}", k, s);
        }
        for (size_t b = 0; b < kHistogramBins; ++b) {
          if (k < covered) total[s * kHistogramBins + b] += stats.exponent_histogram[b];
        }
      }
      if (k < 20 && !has_histogram) return fmt::format("no histogram of step {}", k);
    }
    if (file.total_histogram(lane) != total) return "the sums of histograms";
    if (covered < file.steps() / 50 * 50) return fmt::format("sums cover {} steps", covered);
  }
  return "";
} catch (const std::exception& error) {
  return error.what();
}

}  // namespace lockstep::test
