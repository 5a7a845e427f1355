// lockstep verify: a capture against PyTorch's own results, a run file against its checksums, or
// software models against the hardware of this machine, bit by bit.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "emulation/accumulator/dot_vectors.h"
#include "emulation/verify/hardware_units.h"
#include "reports/writers/text_writer.h"
#include "src/cli/arguments/arguments.h"
#include "src/cli/command.h"
#include "src/cli/command_files.h"
#include "src/cli/listing.h"
#include "src/cli/terminal/terminal.h"
#include "src/cli/verify_capture.h"
#include "src/cli/verify_parts.h"
#include "src/cli/verify_run.h"
#include "src/core/error.h"
#include "src/core/parallel.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/capture/parts_index.h"
#include "src/record/capture/verification.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/run/environment.h"

namespace lockstep {
namespace {

struct VerifyArgs {
  std::string subject, only, json, require;
  bool hardware = false, overwrite = false;
  VerifyOptions options;
  int threads = 0;
  std::vector<const CLI::Option*> of_hardware = {};  // options that do not apply to a capture
};

struct VerifiedUnit {
  HardwareUnit unit = {};
  bool available = false;
  std::string why_not;
  UnitResult result;
  double seconds = 0;
};

// One line on a terminal, redrawn; elsewhere a line when the unit is done.
class UnitProgress {
 public:
  explicit UnitProgress(const HardwareUnit& unit)
      : name_(fmt::format("{} {}", unit.unit, unit.instruction)) {}
  ~UnitProgress() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
  }
  void print_result(const VerifiedUnit& v) const {
    if (is_terminal_) return;
    fmt::print(stderr, "{}: {} cases, {} mismatches, {:.1f} s\n", name_, v.result.cases(),
               v.result.mismatches, v.seconds);
  }
  UnitProgress(const UnitProgress&) = delete;
  UnitProgress& operator=(const UnitProgress&) = delete;

  void operator()(uint64_t done, uint64_t total) {
    const auto now = Clock::now();
    if (!is_terminal_ || now - last_ < kRedrawEvery) return;
    last_ = now;
    drawn_ = true;
    constexpr uint64_t kPercent = 100;
    fmt::print(stderr, "\r\x1b[K{}: {} % of {} cases", name_, done * kPercent / total, total);
    std::fflush(stderr);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kRedrawEvery = std::chrono::milliseconds(100);
  const bool is_terminal_ = isatty(STDERR_FILENO) == 1;
  std::string name_;
  Clock::time_point last_ = Clock::now();
  bool drawn_ = false;
};

VerifiedUnit verify_unit(const HardwareUnit& unit, VerifyOptions options) {
  VerifiedUnit verified;
  verified.unit = unit;
  verified.available = unit.available(&verified.why_not);
  if (!verified.available) return verified;
  UnitProgress progress(unit);
  options.progress = [&](uint64_t done, uint64_t total) { progress(done, total); };
  const auto start = std::chrono::steady_clock::now();
  verified.result = unit.run(options);
  verified.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  progress.print_result(verified);
  return verified;
}

std::string name_of(const HardwareUnit& unit) {
  return fmt::format("{} {}", unit.unit, unit.instruction);
}

// The text of --require is part of a unit's table or name.
bool is_required(const HardwareUnit& unit, const std::string& words) {
  return unit.group.find(words) != unit.group.npos || name_of(unit).find(words) != words.npos;
}

std::vector<HardwareUnit> chosen_units(const std::string& only) {
  std::vector<HardwareUnit> chosen;
  std::vector<std::string> names;
  for (const HardwareUnit& unit : hardware_units()) {
    const std::string name = name_of(unit);
    if (name.find(only) != std::string::npos) chosen.push_back(unit);
    names.push_back(name);
  }
  if (chosen.empty()) {
    throw InputError(fmt::format("--only {}: no unit's name contains it", only),
                     did_you_mean(only, names));
  }
  return chosen;
}

// The units of a group that ran; below them the others, by reason.
std::string group_text(const std::vector<VerifiedUnit>& units, std::string_view group) {
  Listing listing{.columns = {"unit", "instruction", "model", "cases", "mismatches", "note"},
                  .rows = {}};
  std::vector<std::pair<std::string, std::vector<std::string>>> absent;  // reason, names
  for (const VerifiedUnit& v : units) {
    if (v.unit.group != group) continue;
    if (v.available) {
      listing.rows.push_back({std::string(v.unit.unit), std::string(v.unit.instruction),
                              std::string(v.unit.model), fmt::format("{}", v.result.cases()),
                              fmt::format("{}", v.result.mismatches), v.result.note});
      continue;
    }
    auto known = std::ranges::find(absent, v.why_not, [](const auto& row) { return row.first; });
    if (known == absent.end()) known = absent.insert(known, {v.why_not, {}});
    known->second.push_back(name_of(v.unit));
  }
  std::string text = fmt::format("{}\n", group);
  if (!listing.rows.empty()) text += listing_text(listing);
  constexpr size_t kNamed = 4;
  for (const auto& [reason, names] : absent) {
    const std::string which =
        names.size() <= kNamed ? join(names, "; ") : fmt::format("{} checks", names.size());
    text += wrap(fmt::format("not run: {}: {}", which, reason), kTextWidth);
  }
  return text;
}

nlohmann::ordered_json units_json(const std::vector<VerifiedUnit>& units, const VerifyArgs& args) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const VerifiedUnit& v : units) {
    nlohmann::ordered_json row = {{"group", v.unit.group},
                                  {"unit", v.unit.unit},
                                  {"instruction", v.unit.instruction},
                                  {"model", v.unit.model},
                                  {"available", v.available}};
    if (v.available) {
      row["edge_cases"] = v.result.edge_cases;
      row["random_cases"] = v.result.random_cases;
      row["mismatches"] = v.result.mismatches;
      row["first_mismatch"] = v.result.first_mismatch;
      row["note"] = v.result.note;
      row["seconds"] = v.seconds;
    } else {
      row["why_not"] = v.why_not;
    }
    rows.push_back(std::move(row));
  }
  return {{"format", "lockstep-verify-hardware"},
          {"lockstep_version", LOCKSTEP_VERSION},
          {"created_utc", utc_now()},
          {"environment", describe_environment()},
          {"seed", args.options.seed},
          {"cases", args.options.cases},
          {"gpu_cases", args.options.gpu_cases},
          {"vectors", args.options.vectors},
          {"units", std::move(rows)}};
}

int verify_hardware(const VerifyArgs& args) {
  std::vector<VerifiedUnit> units;
  for (const HardwareUnit& unit : chosen_units(args.only)) {
    units.push_back(verify_unit(unit, args.options));
  }
  std::string_view group;
  uint64_t mismatches = 0, cases = 0;
  size_t ran = 0;
  bool required_ran = args.require.empty();
  for (const VerifiedUnit& v : units) {
    if (v.unit.group != group) {
      group = v.unit.group;
      fmt::print("{}\n", group_text(units, group));
    }
    mismatches += v.result.mismatches;
    cases += v.result.cases();
    if (!v.available) continue;
    ++ran;
    required_ran = required_ran || is_required(v.unit, args.require);
  }
  for (const VerifiedUnit& v : units) {
    if (v.result.mismatches == 0) continue;
    fmt::print("{} {}, first mismatch: {}\n", v.unit.unit, v.unit.instruction,
               v.result.first_mismatch);
  }
  fmt::print("{} of {} checks ran on this machine: {} cases, {} mismatch{}\n", ran, units.size(),
             cases, mismatches, mismatches == 1 ? "" : "es");
  if (ran == 0) fmt::print("Nothing was compared.\n");
  if (!required_ran) print_line("Inconclusive: no check of '" + args.require + "' ran.");
  if (!args.json.empty()) {
    write_text_file_atomically(args.json, units_json(units, args).dump(2) + "\n");
    print_line("Wrote " + args.json);
  }
  if (mismatches != 0) return kExitRegression;
  return ran == 0 || !required_ran ? kExitInconclusive : kExitFine;
}

int verify(const VerifyArgs& args, ProblemList& problems) {
  if (args.subject.empty() && !args.hardware) {
    problems.add(
        "nothing to verify was given",
        "`lockstep verify CAPTURE`, `lockstep verify RUN` or `lockstep verify --hardware`");
  } else if (!args.subject.empty() && args.hardware) {
    problems.add(fmt::format("{} and --hardware: only one at a time is allowed", args.subject),
                 "leave one out");
  }
  for (const CLI::Option* option : args.of_hardware) {
    if (args.hardware || option->count() == 0) continue;
    problems.add(fmt::format("{}: an option of --hardware", option->get_name()), "leave it out");
  }
  if (!args.require.empty() && std::ranges::none_of(hardware_units(), [&](const auto& unit) {
        return is_required(unit, args.require);
      })) {
    problems.add(fmt::format("--require {}: no unit's table or name contains it", args.require));
  }
  if (!args.json.empty()) {
    check_output(args.json, args.overwrite ? Replace::kText : Replace::kNothing,
                 "--json OTHER, or --overwrite", problems, "--json");
  }
  CommandFiles files;
  files.input("CAPTURE|RUN", args.subject);
  files.input("--vectors", args.options.vectors);
  files.output("--json", args.json);
  const bool is_parts = is_parts_folder(args.subject);
  if (!args.subject.empty() && !is_parts && !looks_like_hdf5(args.subject)) {
    files.output("the result", verification_path(args.subject));
  }
  files.check(problems);
  if (!args.options.vectors.empty()) {
    collect_problems(problems, [&] { read_dot_vectors(args.options.vectors, {}); });
  }
  problems.throw_if_any();
  if (args.threads != 0) set_thread_count(args.threads);
  if (args.hardware) return verify_hardware(args);
  if (is_parts) return verify_parts_folder(args.subject, args.json);
  if (!looks_like_hdf5(args.subject)) {
    return verify_capture_file(args.subject, args.json);
  }
  if (!args.json.empty()) {
    throw InputError("--json: an option of CAPTURE and --hardware", "leave it out");
  }
  return verify_run_file(args.subject);
}

}  // namespace

std::function<int()> declare_verify(CLI::App& app) {
  auto args = std::make_shared<VerifyArgs>();
  app.add_option("CAPTURE|RUN", args->subject,
                 "check that this capture, or this folder of parts, is imported faithfully: gates "
                 "V0, V1, V3 to V8; or that this run file and its checkpoints are as they were "
                 "written")
      ->type_name("");
  app.add_flag("--hardware", args->hardware,
               "compare the software models with this machine's units, bit by bit");
  const ArgumentChecks checks("verify");
  constexpr uint64_t kMostCases = 1'000'000'000'000;
  checks.whole(app.add_option("--cases", args->options.cases,
                              "random cases per unit, in addition to edge cases")
                   ->type_name("N")
                   ->capture_default_str(),
               0, kMostCases);
  checks.whole(app.add_option("--gpu-cases", args->options.gpu_cases,
                              "random cases per GPU unit (the GPU itself compares the results)")
                   ->type_name("N")
                   ->capture_default_str(),
               1, kMostCases);
  app.add_option("--vectors", args->options.vectors,
                 "for GPU units: also these dot products, with the columns of mma_vectors.csv")
      ->type_name("FILE");
  checks.whole(app.add_option("--seed", args->options.seed, "seed of the random cases")
                   ->type_name("N")
                   ->capture_default_str(),
               0, UINT64_MAX);
  app.add_option("--only", args->only, "only units whose name or instruction contains TEXT")
      ->type_name("TEXT");
  app.add_option("--require", args->require,
                 "exit code 3 unless a unit ran whose table, name or instruction contains TEXT")
      ->type_name("TEXT");
  for (const char* name :
       {"--cases", "--gpu-cases", "--vectors", "--seed", "--only", "--require"}) {
    args->of_hardware.push_back(app.get_option(name));
  }
  declare_threads(app, checks, args->threads);
  app.add_option("--json", args->json, "also write the results here")->type_name("FILE");
  app.add_flag("--overwrite", args->overwrite, "replace FILE if it exists (never an HDF5 file)");
  app.footer(
      "CAPTURE: compares what Lockstep computes from captured states with what PyTorch recorded.\n"
      "Prints a line per gate with figure and bound; stores the result in CAPTURE.verify.json.\n"
      "V1, V3: FP64 and FP32, forward and backward. V4: buffers. V5: optimizer. V6: loss scaler.\n"
      "V7: the autocast run. V8: outputs and gradients of a part of a larger model; of a folder\n"
      "of parts also the gradients of all ranks together. Exit codes: 0 faithful; 1 a gate failed; "
      "2 not a capture, or "
      "damaged;\n"
      "3 the capture has no verify step.\n"
      "RUN: compares every complete step, and the checkpoints, with the checksums in the files.\n"
      "Exit codes: 0 whole; 1 damaged; 2 not a run file, or not readable; 3 without checksums.\n"
      "--hardware: every unit and its model get the same operands; results are compared bit by\n"
      "bit. Where the unit's NaN is not documented, any NaN matches. Exit codes: 0 no mismatch;\n"
      "1 a unit differs from its model; 2 usage or file error; 3 no unit ran, or none that\n"
      "matches --require.");
  return [args, checks] { return verify(*args, checks.problems()); };
}

}  // namespace lockstep
