// Runs tiles on the device and turns its verdicts into unit results.
#include "emulation/verify/nvidia/nvidia_check.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "emulation/accumulator/dot_vectors.h"
#include "emulation/verify/nvidia/nvidia_model.h"
#include "emulation/verify/nvidia/nvidia_tiles.h"
#include "src/core/parallel.h"

namespace lockstep {
namespace {

using mma::CaseStream;
using mma::Comparison;
using mma::Device;
using mma::Instruction;
using mma::Pattern;
using mma::Shape;
using mma::TileBatch;
using mma::Variant;
using mma::VectorRun;
using mma::Verdict;

// The first mismatch of a verdict, computed again.
std::string first_mismatch_text(Device& device, const Variant& variant, const NvidiaModel& model,
                                const CaseStream& stream, const Verdict& verdict) {
  const Shape& shape = variant.instruction.shape;
  const auto outputs = static_cast<uint64_t>(shape.outputs());
  const TileBatch tiles =
      make_tiles(stream, model.rule, shape, verdict.first_mismatch / outputs, 1);
  const std::vector<uint32_t> d = device.multiply(variant.instruction, variant.from_zero, tiles);
  const int place = static_cast<int>(verdict.first_mismatch % outputs);
  return mismatch_text(variant, model, tiles, d, 0, place / shape.n, place % shape.n);
}

void note_first(UnitResult& result, std::string text) {
  if (result.first_mismatch.empty()) result.first_mismatch = std::move(text);
}

std::vector<mma::Rule> rules_of(const NvidiaModel& model,
                                const std::vector<NvidiaModel>& alternatives) {
  std::vector<mma::Rule> rules = {model.rule};
  for (const NvidiaModel& other : alternatives) rules.push_back(other.rule);
  return rules;
}

// Tiles that the host makes and checks by its own definition. Returns the mismatches.
uint64_t check_on_host(Device& device, const Variant& variant, const NvidiaModel& model,
                       const CaseStream& stream, uint64_t outputs, UnitResult& result) {
  constexpr uint64_t kTilesAtOnce = 4096;
  const Shape& shape = variant.instruction.shape;
  const uint64_t count = tiles_for(outputs, shape);
  std::atomic<uint64_t> mismatches = 0;
  for (uint64_t first = 0; first < count; first += kTilesAtOnce) {
    const auto here = static_cast<int64_t>(std::min(kTilesAtOnce, count - first));
    const TileBatch tiles = make_tiles(stream, model.rule, shape, first, here);
    const std::vector<uint32_t> d = device.multiply(variant.instruction, variant.from_zero, tiles);
    std::vector<int> first_wrong(static_cast<size_t>(here), -1);
    parallel_for(here, [&](int64_t t) {
      for (int place = 0; place < shape.outputs(); ++place) {
        const int row = place / shape.n, column = place % shape.n;
        const uint32_t expected = host_result(model, tiles, t, row, column,
                                              start_of(tiles, t, row, column, variant.from_zero));
        if (expected == result_of(d, shape, t, row, column)) continue;
        if (first_wrong[t] < 0) first_wrong[t] = place;
        ++mismatches;
      }
    });
    for (int64_t t = 0; t < here; ++t) {
      if (first_wrong[t] < 0 || !result.first_mismatch.empty()) continue;
      note_first(result,
                 "host: " + mismatch_text(variant, model, tiles, d, t, first_wrong[t] / shape.n,
                                          first_wrong[t] % shape.n));
    }
  }
  return mismatches;
}

std::vector<DotVector> vectors_of(const VerifyOptions& options) {
  if (options.vectors.empty()) return {};
  return read_dot_vectors(options.vectors, {});
}

// The switched rules with the fewest different results.
std::string best_choice(Device& device, const Variant& variant, const CaseStream& stream,
                        uint64_t tile_count) {
  const auto models = combined_models(device.capability(), variant.instruction);
  std::string best;
  uint64_t fewest = Verdict::kNone;
  // The default's rule makes the cases, so it is first in every comparison.
  for (size_t next = 1; next < models.size(); next += mma::kMostRules - 1) {
    Comparison comparison{.instruction = variant.instruction,
                          .from_zero = variant.from_zero,
                          .stream = stream,
                          .tile_count = tile_count,
                          .rules = {models[0].rule}};
    const size_t end = std::min(models.size(), next + mma::kMostRules - 1);
    for (size_t i = next; i < end; ++i) comparison.rules.push_back(models[i].rule);
    const Verdict verdict = device.compare(comparison);
    for (size_t i = next; i < end; ++i) {
      if (verdict.mismatches[i - next + 1] >= fewest) continue;
      fewest = verdict.mismatches[i - next + 1];
      best = models[i].choice;
    }
  }
  if (best.empty()) return "";
  return "fewest under " + best + ": " + std::to_string(fewest);
}

void append(std::string& note, const std::string& text) {
  if (text.empty()) return;
  note += (note.empty() ? "" : "; ") + text;
}

std::string default_choice(std::string_view question) {
  for (const AccumulatorSwitch& choice : accumulator_switches()) {
    if (choice.is_default && choice.question == question) return std::string(choice.name);
  }
  throw std::logic_error("question " + std::string(question) + ": no default");
}

std::string type_text(const Shape& shape) {
  const bool is_fp8 = mma::bits_of(shape.a) == 8;
  return (is_fp8 ? "fp8" : std::string(mma::format_name(shape.a))) + " to " +
         (shape.halves ? "fp16" : "fp32");
}

}  // namespace

std::vector<NvidiaUnit> nvidia_units() {
  std::vector<NvidiaUnit> units;
  for (const Instruction& instruction : mma::instructions()) {
    const Shape& shape = instruction.shape;
    const char* family = instruction.family == mma::Family::kMmaSync ? "mma.sync"
                         : instruction.family == mma::Family::kWmma  ? "WMMA"
                                                                     : "wgmma";
    const std::string name = "m" + std::to_string(shape.m) + "n" + std::to_string(shape.n) + "k" +
                             std::to_string(shape.k) + " " + type_text(shape);
    const auto known = std::find_if(units.begin(), units.end(), [&](const NvidiaUnit& unit) {
      return unit.unit == family && unit.instruction == name;
    });
    if (known == units.end()) {
      units.push_back({family, name, {instruction}});
    } else {
      known->instructions.push_back(instruction);
    }
  }
  return units;
}

UnitResult check_layouts(Device& device, const VerifyOptions& options) {
  constexpr uint64_t kTiles = 16;
  UnitResult result;
  for (const Variant& variant : mma::all_variants(device.capability())) {
    const NvidiaModel model = nvidia_model(device.capability(), variant.instruction);
    const Comparison comparison{
        .instruction = variant.instruction,
        .from_zero = variant.from_zero,
        .stream = {.seed = options.seed, .only_one = true, .pattern = Pattern::kIntegers},
        .tile_count = kTiles,
        .rules = {model.rule}};
    const Verdict verdict = device.compare(comparison);
    result.edge_cases += kTiles * static_cast<uint64_t>(variant.instruction.shape.outputs());
    result.mismatches += verdict.mismatches[0];
    if (verdict.mismatches[0] == 0) continue;
    note_first(result, first_mismatch_text(device, variant, model, comparison.stream, verdict));
  }
  result.note = device.description();
  return result;
}

UnitResult check_unit(Device& device, const NvidiaUnit& unit, const VerifyOptions& options) {
  constexpr uint64_t kHostCases = 1'000'000, kSteps = 8, kSearchOutputs = uint64_t{1} << 22;
  const std::vector<Variant> variants = variants_of(unit.instructions, device.capability());
  const auto share = [&](uint64_t cases) {
    return (cases + variants.size() - 1) / variants.size();
  };
  const std::vector<DotVector> vectors = vectors_of(options);
  const CaseStream stream{.seed = options.seed};
  UnitResult result;
  uint64_t done = 0, host_cases = 0, vector_count = 0;
  std::vector<std::pair<std::string, uint64_t>> others;  // an alternative's mismatches
  for (const Variant& variant : variants) {
    const Instruction& instruction = variant.instruction;
    const NvidiaModel model = nvidia_model(device.capability(), instruction);
    const auto alternatives = alternative_models(device.capability(), instruction);
    const uint64_t tiles = tiles_for(share(options.gpu_cases), instruction.shape);
    uint64_t mismatches = 0;
    for (uint64_t step = 0; step < kSteps; ++step) {
      const uint64_t first = tiles * step / kSteps, end = tiles * (step + 1) / kSteps;
      if (first == end) continue;
      const Verdict verdict = device.compare({.instruction = instruction,
                                              .from_zero = variant.from_zero,
                                              .stream = stream,
                                              .first_tile = first,
                                              .tile_count = end - first,
                                              .rules = rules_of(model, alternatives)});
      mismatches += verdict.mismatches[0];
      if (verdict.mismatches[0] != 0) {
        note_first(result, first_mismatch_text(device, variant, model, stream, verdict));
      }
      for (size_t i = 0; i < alternatives.size(); ++i) {
        const auto known = std::find_if(others.begin(), others.end(), [&](const auto& other) {
          return other.first == alternatives[i].choice;
        });
        if (known == others.end()) {
          others.emplace_back(alternatives[i].choice, verdict.mismatches[i + 1]);
        } else {
          known->second += verdict.mismatches[i + 1];
        }
      }
      done += (end - first) * static_cast<uint64_t>(instruction.shape.outputs());
      if (options.progress) options.progress(std::min(done, options.gpu_cases), options.gpu_cases);
    }
    result.mismatches += mismatches;
    if (mismatches != 0) {
      append(result.note,
             best_choice(device, variant, stream,
                         std::min(tiles, tiles_for(kSearchOutputs, instruction.shape))));
    }

    const uint64_t sample = share(std::min(kHostCases, options.gpu_cases));
    const uint64_t wrong = check_on_host(device, variant, model, stream, sample, result);
    host_cases +=
        tiles_for(sample, instruction.shape) * static_cast<uint64_t>(instruction.shape.outputs());
    // The device has counted every mismatch that the host finds; any more are errors of the
    // device's copy of the model.
    if (wrong > mismatches) result.mismatches += wrong - mismatches;

    if (variant.from_zero) continue;
    const VectorRun run =
        run_vectors(device, instruction, model, vectors, [](const DotVector& vector) {
          return vector.confidence != "uncertain";  // the probes use those
        });
    vector_count += run.vectors.size();
    for (int64_t v = 0; v < run.tiles.count; ++v) {
      const int place = wrong_place(model, run, v);
      if (place < 0) continue;
      ++result.mismatches;
      note_first(result, vector_text(variant, model, run, v, place));
    }
  }
  result.edge_cases = vector_count;
  result.random_cases = done;
  append(result.note, std::to_string(host_cases) + " checked by the host too");
  for (const auto& [choice, count] : others) {
    append(result.note, choice + " would differ in " + std::to_string(count));
  }
  return result;
}

std::span<const NvidiaProbe> nvidia_probes() {
  static constexpr NvidiaProbe kProbes[] = {
      {"U1", "sign of an underflowed sum", Pattern::kUnderflow, "probe_neg_underflow"},
      {"U2", "exponents of zero products", Pattern::kZeroProducts, "probe_zero_product"},
      {"U3", "least common exponent", Pattern::kFloorTies, "probe_floor"},
      {"U4", "blocks of FP8 mma.sync", Pattern::kWindow, ""},
      {kTf32Question, "how TF32 inputs are formed", Pattern::kNearOne, "tf32_"},
  };
  return kProbes;
}

UnitResult check_probe(Device& device, const NvidiaProbe& probe, const VerifyOptions& options) {
  constexpr uint64_t kOutputs = uint64_t{1} << 22;
  struct Tally {
    std::string choice;
    uint64_t asked = 0, differ = 0, vectors = 0, vectors_agree = 0;
  };
  std::vector<Tally> tallies;
  const auto tally_of = [&](const std::string& choice) -> Tally& {
    for (Tally& tally : tallies) {
      if (tally.choice == choice) return tally;
    }
    return tallies.emplace_back(Tally{.choice = choice});
  };
  const std::vector<DotVector> vectors = vectors_of(options);
  const CaseStream stream{.seed = options.seed, .only_one = true, .pattern = probe.pattern};
  UnitResult result;
  for (const Variant& variant : mma::all_variants(device.capability())) {
    const Instruction& instruction = variant.instruction;
    auto models = alternative_models(device.capability(), instruction, probe.question);
    if (models.empty()) continue;
    models.insert(models.begin(), nvidia_model(device.capability(), instruction));
    models[0].choice = default_choice(probe.question);
    std::vector<mma::Rule> rules;
    for (const NvidiaModel& model : models) rules.push_back(model.rule);
    const uint64_t tiles = tiles_for(std::min(kOutputs, options.gpu_cases), instruction.shape);
    const uint64_t outputs = tiles * static_cast<uint64_t>(instruction.shape.outputs());
    const Verdict verdict = device.compare({.instruction = instruction,
                                            .from_zero = variant.from_zero,
                                            .stream = stream,
                                            .tile_count = tiles,
                                            .rules = rules});
    result.random_cases += outputs;
    result.mismatches += verdict.mismatches[0];
    if (verdict.mismatches[0] != 0) {
      note_first(result, first_mismatch_text(device, variant, models[0], stream, verdict));
    }
    for (size_t i = 0; i < models.size(); ++i) {
      Tally& tally = tally_of(models[i].choice);
      tally.asked += outputs;
      tally.differ += verdict.mismatches[i];
    }
    if (variant.from_zero || probe.tag.empty()) continue;
    const VectorRun run =
        run_vectors(device, instruction, models[0], vectors,
                    [&](const DotVector& vector) { return vector.tag.starts_with(probe.tag); });
    result.edge_cases += run.vectors.size();
    for (int64_t v = 0; v < run.tiles.count; ++v) {
      for (size_t i = 0; i < models.size(); ++i) {
        const int place = wrong_place(models[i], run, v);
        Tally& tally = tally_of(models[i].choice);
        ++tally.vectors;
        tally.vectors_agree += place < 0 ? 1 : 0;
        if (i != 0 || place < 0) continue;
        ++result.mismatches;
        note_first(result, vector_text(variant, models[0], run, v, place));
      }
    }
  }
  for (const Tally& tally : tallies) {
    append(result.note, tally.choice + ": " + std::to_string(tally.differ) + " of " +
                            std::to_string(tally.asked) + " differ, " +
                            std::to_string(tally.vectors_agree) + " of " +
                            std::to_string(tally.vectors) + " vectors agree");
  }
  if (tallies.empty()) result.note = "no instruction of this chip tests it";
  return result;
}

}  // namespace lockstep
