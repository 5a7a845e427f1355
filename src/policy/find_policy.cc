// See find_policy.h. The text of a policy is read by parse/policy_file.cc.
#include "src/policy/find_policy.h"

#include <algorithm>
#include <array>
#include <stdexcept>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/policy/parse/policy_file.h"
#include "src/policy/parse/toml_text.h"
#include "src/policy/twin_lane.h"

namespace lockstep {
namespace {

struct EmbeddedFile {
  std::string_view name, text;
};
constexpr EmbeddedFile kEmbedded[] = {
#include "embedded_presets.inc"
};

constexpr std::string_view kExtension = ".toml";

// "2.9" comes before "2.11": versions are compared number by number.
std::vector<int> version_numbers(const std::string& version) {
  std::vector<int> numbers;
  for (const std::string& part : split(version, '.')) numbers.push_back(std::atoi(part.c_str()));
  return numbers;
}

// A preset's file is NAME-VERSION.toml: another preset's `extends` finds it by name, before any
// preset is read.
Policy read_preset(const std::string& file_name, int depth) {
  if (depth > static_cast<int>(std::size(kEmbedded))) {
    throw std::logic_error("presets extend each other in a circle: " + file_name);
  }
  for (const EmbeddedFile& file : kEmbedded) {
    if (file.name != file_name) continue;
    PolicyText source{file.text, file_name, /*is_preset=*/true, nullptr};
    source.find_base = [depth](const std::string& label) {
      std::string base = label;
      std::replace(base.begin(), base.end(), ':', '-');
      return read_preset(base + std::string(kExtension), depth + 1);
    };
    Policy policy = read_policy(source);
    if (policy.name + "-" + policy.version + std::string(kExtension) != file_name) {
      throw std::logic_error("preset file " + file_name + " holds " + policy.label());
    }
    return policy;
  }
  throw std::logic_error("no preset file " + file_name);
}

std::vector<Policy> read_presets() {
  std::vector<Policy> all;
  for (const EmbeddedFile& file : kEmbedded) {
    all.push_back(read_preset(std::string(file.name), 0));
  }
  std::sort(all.begin(), all.end(), [](const Policy& a, const Policy& b) {
    if (a.name != b.name) return a.name < b.name;
    return version_numbers(a.version) < version_numbers(b.version);
  });
  return all;
}

// "fp16" -> "presets of fp16: pure-fp16, torch-autocast-fp16": for a format's name, its presets are
// a better hint than the nearest spelling.
std::string suggest(const std::string& name, const std::vector<std::string>& names) {
  std::vector<std::string> of_format;
  for (const std::string& known : names) {
    if (known.ends_with("-" + name)) of_format.push_back(known);
  }
  if (of_format.empty()) return did_you_mean(name, names);
  return "presets of " + name + ": " + join(of_format, ", ");
}

// Rejects names that a lane may have and a policy may not.
void refuse_lane_name(const std::string& name) {
  const size_t at = name.rfind('@');
  if (at != std::string::npos && name.find('/') == std::string::npos) {
    throw InputError("policy '" + name + "': only a lane has a target, not a policy",
                     "leave '" + name.substr(at) + "' out");
  }
  if (name == kTruthLane || twin_number(name) > 0) {
    throw InputError("policy '" + name + "': this is a lane, not a policy",
                     "run it with `lockstep replay MODEL --lanes fp32," + name + "`");
  }
}

bool answers_to(const Policy& policy, const std::string& name) {
  return policy.name == name ||
         std::find(policy.aliases.begin(), policy.aliases.end(), name) != policy.aliases.end();
}

}  // namespace

Policy parse_recorded_policy(std::string_view toml, std::string_view name) {
  if (name.ends_with(kExtension)) return parse_policy(toml, name);
  return read_policy({toml, std::string(name), /*is_preset=*/true,
                      [](const std::string& base) { return find_policy(base); }});
}

Policy parse_policy(std::string_view toml, std::string_view file_name) {
  PolicyText source{toml, std::string(file_name), /*is_preset=*/false, nullptr};
  source.find_base = [](const std::string& name) {
    if (name.ends_with(kExtension)) {
      throw InputError("a policy extends a preset, not another file",
                       "name a preset, e.g. torch-autocast-fp16:2.12");
    }
    return find_policy(name);
  };
  return read_policy(source);
}

std::span<const Policy> presets() {
  static const std::vector<Policy> all = read_presets();
  return all;
}

Policy truth_policy() {
  Policy policy = find_policy(kReferenceLane);
  const Format* fp64 = &find_format("fp64");
  policy.name = kTruthLane;
  policy.help = "the truth lane: FP64 everywhere";
  policy.aliases.clear();
  policy.weight = policy.buffer = policy.input = fp64;
  policy.optimizer_arithmetic = policy.optimizer_state = policy.master = fp64;
  policy.gemm_accumulator = policy.reduce_accumulator = &find_accumulator("fp64_fused");
  policy.text =
      "# built in, not a policy file: every value, sum and state is fp64\nname = \"fp64\"\n";
  return policy;
}

Policy find_policy(std::string_view name_or_path) {
  const std::string path(name_or_path);
  if (path.ends_with(kExtension)) return parse_policy(read_text_file(path, kMostTomlBytes), path);

  refuse_lane_name(path);
  const size_t colon = path.find(':');
  const std::string name = path.substr(0, colon);
  const Policy* found = nullptr;
  std::vector<std::string> names, versions;
  for (const Policy& preset : presets()) {
    names.push_back(preset.name);
    names.insert(names.end(), preset.aliases.begin(), preset.aliases.end());
    if (!answers_to(preset, name)) continue;
    versions.push_back(preset.version);
    if (colon == std::string::npos || preset.version == path.substr(colon + 1)) found = &preset;
  }
  if (found != nullptr) return *found;  // without a version: the newest, which comes last
  if (!versions.empty()) {
    throw InputError(
        "policy '" + path + "': no version '" + path.substr(colon + 1) + "' of " + name,
        "versions: " + join(versions, ", "));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  throw InputError("policy '" + path + "': no such preset",
                   path.find('/') != std::string::npos ? "a policy file's name ends in .toml"
                                                       : suggest(name, names));
}

}  // namespace lockstep
