#include "src/record/capture/verification.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/core/error.h"
#include "src/core/sealed_text.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/graph/json_text.h"

namespace lockstep {
namespace {

using OrderedJson = nlohmann::ordered_json;
constexpr std::string_view kFormat = "lockstep-verification";

// Of a file without a checksum, as an earlier version wrote it.
bool is_json(std::string_view text) {
  try {
    parse_json(text);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

}  // namespace

bool Verification::is_inconclusive() const {
  return !passed && std::ranges::none_of(
                        gates, [](const VerifiedGate& gate) { return gate.status == "FAIL"; });
}

std::string Verification::summary() const {
  std::vector<std::string> words;
  for (const VerifiedGate& gate : gates) words.push_back(gate.name + " " + gate.status);
  const std::string_view outcome = passed              ? "passed"
                                   : is_inconclusive() ? "no step could be judged"
                                                       : "NOT passed";
  return std::string(outcome) + ": " + join(words, ", ") + " (lockstep " + lockstep_version + ", " +
         created_utc + ")";
}

std::string verification_path(const std::string& capture) {
  return capture + ".verify.json";
}

std::string to_json(const Verification& verification) {
  OrderedJson gates = OrderedJson::array();
  for (const VerifiedGate& gate : verification.gates) {
    gates.push_back({{"name", gate.name},
                     {"subject", gate.subject},
                     {"status", gate.status},
                     {"figure", gate.figure}});
    if (!gate.floor.empty()) gates.back()["floor"] = gate.floor;
  }
  const OrderedJson json = {{"format", kFormat},
                            {"capture_sha256", verification.sha256},
                            {"lockstep_version", verification.lockstep_version},
                            {"created_utc", verification.created_utc},
                            {"passed", verification.passed},
                            {"gates", gates}};
  return json.dump(2) + "\n";
}

std::optional<Verification> verification_from_json(std::string_view text, std::string_view sha256) {
  try {
    const nlohmann::json json = parse_json(text);
    if (json.at("format") != kFormat || json.at("capture_sha256") != sha256) return std::nullopt;
    Verification found{json.at("capture_sha256"),
                       json.at("lockstep_version"),
                       json.at("created_utc"),
                       json.at("passed"),
                       {}};
    for (const auto& gate : json.at("gates")) {
      found.gates.push_back({gate.at("name"), gate.at("subject"), gate.at("status"),
                             gate.at("figure"),
                             gate.value("floor", std::map<std::string, int64_t>())});
    }
    const std::string shown = found.summary();
    return printable(shown) == shown ? std::optional(found) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;  // edited by hand: treated as missing
  } catch (const InputError&) {
    return std::nullopt;
  }
}

void write_verification(const std::string& capture, const Verification& verification) {
  write_text_file_atomically(verification_path(capture), sealed(to_json(verification)));
}

std::optional<Verification> read_verification(const std::string& capture, std::string_view sha256) {
  const std::string path = verification_path(capture);
  std::error_code status;
  if (!std::filesystem::is_regular_file(path, status)) return std::nullopt;
  const std::string text = read_text_file(path);
  const Seal seal = seal_of(text);
  if (seal == Seal::kBroken || (seal == Seal::kMissing && !is_json(text))) {
    throw InputError(fmt::format("'{}' is damaged: its checksum does not fit", path),
                     fmt::format("`lockstep verify {}` writes it anew", shell_path(capture)));
  }
  return verification_from_json(text, sha256);
}

}  // namespace lockstep
