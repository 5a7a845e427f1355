// See verify_parts.h.
#include "src/cli/verify_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/faithful/gates.h"
#include "analysis/parts/rank_gradients.h"
#include "src/cli/command.h"
#include "src/cli/listing.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/verify_capture.h"
#include "src/core/counted.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/capture_reader.h"
#include "src/record/capture/parts_index.h"
#include "src/record/run/environment.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// What stands in the table for all ranks of a part in one step.
struct PartRow {
  std::string module = {}, ranks = {}, output = {}, replay = {}, gradient = {};
  bool passed = true, failed = false;
};

// A rank's part. weights: a hash; data-parallel ranks have the same, stages of a pipeline have not.
struct RankPart {
  CapturedPart part;
  uint64_t weights = 0;
};

uint64_t hash_of(const Tensors& values) {
  constexpr uint64_t kOffset = 0xcbf29ce484222325, kPrime = 0x100000001b3;  // FNV-1a
  uint64_t hash = kOffset;
  for (const auto& [name, tensor] : values) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
    for (size_t i = 0; i < tensor.bytes(); ++i) hash = (hash ^ bytes[i]) * kPrime;
  }
  return hash;
}

const GateResult* gate_named(const std::vector<GateResult>& gates, std::string_view name) {
  const auto found = std::ranges::find(gates, name, &GateResult::name);
  return found == gates.end() ? nullptr : &*found;
}

// How the run's gradients compare with those of ranks with the same weights, added up.
std::string gradient_text(const PartsIndex& index, const std::vector<CapturedPart>& parts,
                          PartRow& row) {
  const auto differs = std::ranges::find_if(
      parts, [](const CapturedPart& part) { return !part.run_gradients.empty(); });
  if (differs == parts.end()) return parts.front().gradient;
  const RankGradients found = compare_rank_gradients(parts);
  if (found.tensors == 0) return differs->gradient;
  const bool is_off = found.off > kReductionRounding;
  if (is_off && static_cast<int64_t>(parts.size()) < index.world_size) {
    return fmt::format("not judged: {} of {} ranks have these weights here", parts.size(),
                       index.world_size);
  }
  if (is_off) row.failed = true;
  const std::string of =
      parts.size() == 1
          ? ""
          : fmt::format("{} of {} ranks: ", found.is_sum ? "sum" : "mean", found.ranks);
  if (found.off == 0) return of + "bit-exact";
  return fmt::format("{}off by {:.1e} of its norm{}", of, found.off,
                     is_off ? " (" + found.where + ")" : "");
}

// Of each group of ranks with the same weights.
std::string gradients_text(const PartsIndex& index, std::vector<RankPart> parts, PartRow& row) {
  std::map<std::pair<std::string, uint64_t>, std::vector<CapturedPart>> groups;
  for (RankPart& one : parts) {
    groups[{one.part.own_columns, one.weights}].push_back(std::move(one.part));
  }
  std::vector<std::string> texts;
  for (const auto& [key, group] : groups) {
    std::string text = gradient_text(index, group, row);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(std::move(text));
  }
  return join(texts, "; ");
}

// Adds the gates that failed.
void add_gates(const PartEntry& entry, const VerifiedCapture& verified, PartRow& row) {
  std::vector<std::string> failed;
  for (const GateResult& gate : verified.gates) {
    if (gate.status == GateStatus::kFail) failed.push_back(gate.name);
  }
  if (!verified.result.passed) row.passed = false;
  if (failed.empty()) return;
  row.failed = true;
  row.replay += fmt::format("{}rank {}: {} FAIL", row.replay.empty() ? "" : "; ", entry.rank,
                            join(failed, ", "));
}

class FolderCheck {
 public:
  explicit FolderCheck(const PartsIndex& index) : index_(index) {}

  void run() {
    const std::vector<PartEntry>& entries = index_.entries;
    for (size_t begin = 0; begin < entries.size();) {
      size_t end = begin;
      while (end < entries.size() && entries[end].module == entries[begin].module &&
             entries[end].step == entries[begin].step) {
        ++end;
      }
      take(std::span(entries).subspan(begin, end - begin));
      begin = end;
    }
  }

  std::vector<PartRow> rows;
  std::vector<std::string> refused, not_stored, details;
  Json results = Json::array();
  size_t captures = 0, failed = 0;

 private:
  // One part in one step, on all ranks.
  void take(std::span<const PartEntry> entries) {
    PartRow row{.module = fmt::format("{} (step {})", entries[0].module, entries[0].step)};
    std::vector<RankPart> parts;
    double worst = 0, output_off = -1;
    bool is_judged = true;
    for (const PartEntry& entry : entries) {
      if (entry.file.empty()) {
        refused.push_back(fmt::format("{} on rank {}: {}", entry.module, entry.rank, entry.why));
        results.push_back({{"module", entry.module},
                           {"step", entry.step},
                           {"rank", entry.rank},
                           {"refused", entry.why}});
        continue;
      }
      print_note(fmt::format("{}, step {}, rank {}", entry.module, entry.step, entry.rank));
      Capture capture = read_capture(entry.file, CaptureUse::kVerify);
      if (!capture.part) {
        throw InputError("'" + entry.file + "' is not the capture of a part",
                         "keep the folder as lockstep_capture.Parts wrote it");
      }
      if (!(capture.part->output_off <= output_off)) {
        output_off = capture.part->output_off;
        row.output = capture.part->output;
      }
      const bool has_start = capture.verify.empty() || !capture.verify.front().is_start;
      parts.push_back({*capture.part, hash_of(has_start ? capture.start.values
                                                        : capture.verify.front().before.values)});
      parts.back().part.calls.clear();
      const VerifiedCapture verified = verify_gates(std::move(capture), {});
      ++captures;
      add_gates(entry, verified, row);
      const GateResult* gate = gate_named(verified.gates, "V8");
      is_judged = is_judged && gate != nullptr && gate->status != GateStatus::kNotRecorded;
      if (gate != nullptr) worst = std::max(worst, gate->ratio);
      for (const GateResult& other : verified.gates) {
        if (other.status != GateStatus::kFail) continue;
        details.push_back(
            fmt::format("{} on rank {}, {}: {}", entry.module, entry.rank, other.name,
                        other.details.empty() ? other.figure : other.details.front()));
      }
      if (std::string why = store_verification(entry.file, verified.result); !why.empty()) {
        not_stored.push_back(std::move(why));
      }
      results.push_back({{"module", entry.module},
                         {"step", entry.step},
                         {"rank", entry.rank},
                         {"file", entry.file},
                         {"verification", Json::parse(to_json(verified.result))}});
    }
    if (parts.empty()) return;
    row.ranks = fmt::format("{}", parts.size());
    if (row.replay.empty()) {
      row.replay = is_judged ? fmt::format("PASS, {:.2g} of its bound", worst) : "not judged";
    }
    row.gradient = gradients_text(index_, std::move(parts), row);
    results.back()["gradients_of_all_ranks"] = row.gradient;
    failed += row.failed;
    rows.push_back(std::move(row));
  }

  const PartsIndex& index_;
};

// For reports of replays of the whole folder.
Verification all_parts(const PartsIndex& index, const FolderCheck& check, bool passed) {
  Verification all{parts_hash(index), LOCKSTEP_VERSION, utc_now(), passed, {}};
  size_t good = 0;
  for (const PartRow& row : check.rows) {
    good += row.failed || !row.passed ? 0 : 1;
    if (row.failed) all.gates.push_back({row.module, "part", "FAIL", row.replay, {}});
  }
  if (good > 0) all.gates.push_back({counted(good, "part"), "parts", "PASS", "", {}});
  return all;
}

}  // namespace

int verify_parts_folder(const std::string& folder, const std::string& json) {
  const PartsIndex index = read_parts_index(folder);
  print_line(fmt::format("{}: parts of {} on {} of {}", folder, index.model_class,
                         counted(index.ranks.size(), "rank"), index.world_size));
  for (const int64_t rank : index.incomplete) {
    print_line(fmt::format("note: rank {} ended before its last step to capture", rank));
  }
  FolderCheck check(index);
  check.run();
  Listing listing{.columns = {"part", "ranks", "output, run alone", "replay (V0, V8)",
                              "gradients of the weights"},
                  .rows = {}};
  for (const PartRow& row : check.rows) {
    listing.rows.push_back({row.module, row.ranks, row.output, row.replay, row.gradient});
  }
  if (!listing.rows.empty()) print_text(listing_text(listing));
  for (const std::string& detail : check.details) print_line("  " + detail);
  for (const std::string& text : check.refused) print_line("not captured: " + text);
  const bool passed =
      check.captures > 0 && check.failed == 0 &&
      std::ranges::all_of(check.rows, [](const PartRow& row) { return row.passed; });
  if (std::string why = store_verification(index.folder, all_parts(index, check, passed));
      !why.empty()) {
    check.not_stored.push_back(std::move(why));
  }
  if (!check.not_stored.empty()) {
    print_note("warning: not stored next to the parts: " + check.not_stored.front());
  }
  if (!json.empty()) {
    const Json all = {{"format", "lockstep-parts-verification"},
                      {"format_version", 1},
                      {"lockstep_version", LOCKSTEP_VERSION},
                      {"parts", check.results}};
    write_text_file_atomically(json, all.dump(2) + "\n");
    print_line("Wrote " + json);
  }
  if (check.failed != 0) {
    fmt::print("Not faithful: {} of {} parts.\n", check.failed, check.rows.size());
    return kExitRegression;
  }
  if (!passed) {
    fmt::print("Inconclusive: {}.\n",
               check.captures == 0 ? "no part was captured" : "a part could not be judged");
    return kExitInconclusive;
  }
  const size_t left = check.refused.size();
  fmt::print("Faithful: every {}part repeats the run{}.\n", left == 0 ? "" : "captured ",
             left == 0 ? "" : fmt::format("; {} not captured", counted(left, "part")));
  fmt::print("Next: lockstep replay {} --lanes fp32,torch-autocast-bf16,fp8-current\n",
             shell_path(folder));
  return kExitFine;
}

}  // namespace lockstep
