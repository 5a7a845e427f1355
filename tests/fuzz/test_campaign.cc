// Faults planted in a target of their own: a campaign that misses one would find nothing elsewhere.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "src/core/error.h"
#include "tests/fuzz/campaign.h"
#include "tests/fuzz/judge.h"

namespace lockstep::fuzz {
namespace {

// Beyond the reach of the optimiser.
volatile int sink = 0;  // NOLINT: written to have an effect

void use_memory() {
  constexpr size_t kPieces = 1500, kPiece = 1 << 20;
  std::vector<std::vector<char>> kept;
  for (size_t i = 0; i < kPieces; ++i) kept.emplace_back(kPiece, 'x');
  sink = kept.back().back();
}

#if defined(__SANITIZE_ADDRESS__)
// As a fault of ours in the process that reads a damaged file: it is refused, whatever happens.
void fail_in_child() {
  const pid_t child = fork();
  if (child == 0) {
    char* volatile bytes = new char[1];
    sink = bytes[1];
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  throw InputError("a file: damaged");
}
#endif

struct Fault {
  std::string_view name;
  std::string_view found;  // part of what must be reported; "": nothing must be
  void (*act)(const Place&);
};
constexpr Fault kFaults[] = {
    {"accepted", "", [](const Place&) {}},
    {"refused", "", [](const Place&) { throw InputError("a name: unknown"); }},
    {"crash", "crash", [](const Place&) { std::abort(); }},
    {"exit", "exit code 7", [](const Place&) { _exit(7); }},
    {"hang", "hang",
     [](const Place&) {
       while (sink == 0) continue;
     }},
    {"memory", "memory", [](const Place&) { use_memory(); }},
    {"exception", "another exception", [](const Place&) { throw std::out_of_range("map::at"); }},
    {"library", "text of a library",
     [](const Place&) { throw InputError("damaged: [json.exception.parse_error.101] parse"); }},
    {"control", "not inert",
     [](const Place&) { check_text("name '\x1b[31m': unknown", "message"); }},
    {"encoding", "not inert", [](const Place&) { check_text("name '\xff': unknown", "message"); }},
    {"stderr", "text of a library",
     [](const Place&) { std::fputs("HDF5-DIAG: Error detected\n", stderr); }},
    {"code", "exit code 130",
     [](const Place&) { throw Finding(fmt::format("exit code {}", 130)); }},
#if defined(__SANITIZE_ADDRESS__)
    {"child", "in a process that reads", [](const Place&) { fail_in_child(); }},
#endif
    {"program", "",
     [](const Place& place) {
       if (run_program({"round", "1", "--format", "fp16"}, place).find("3c00") ==
           std::string::npos) {
         std::abort();
       }
     }},
};

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Fault& fault : kFaults) all.emplace_back(fault.name);
  return all;
}

void act(std::string_view input, const Place& place) {
  for (const Fault& fault : kFaults) {
    if (fault.name == input) fault.act(place);
  }
}

constexpr Target kPlanted = {"planted", "names of faults", Grammar::kWords, 1, names, act};

}  // namespace

int test_campaign(const CampaignOptions& given) {
  CampaignOptions options = given;
  options.most_seconds = 3;
  int missed = 0;
  for (const Fault& fault : kFaults) {
    const std::string found = run_one(kPlanted, std::string(fault.name), options);
    const bool is_right =
        fault.found.empty() ? found.empty() : found.find(fault.found) != std::string::npos;
    if (is_right) continue;
    ++missed;
    fmt::print("planted fault '{}': reported '{}', must be '{}'\n", fault.name, found, fault.found);
  }
  // All of them in one campaign, which continues after each.
  options.inputs = std::size(kFaults);
  const Tally tally = run_campaign(kPlanted, options);
  const auto faults = static_cast<uint64_t>(
      std::ranges::count_if(kFaults, [](const Fault& fault) { return !fault.found.empty(); }));
  if (tally.inputs != options.inputs || tally.findings != faults || tally.refused != 1) {
    ++missed;
    fmt::print("{} inputs, {} refused, {} findings; must be {}, 1, {}\n", tally.inputs,
               tally.refused, tally.findings, options.inputs, faults);
  }
  return missed;
}

}  // namespace lockstep::fuzz
