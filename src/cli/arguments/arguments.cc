// Reads the arguments that are numbers, and checks the files about to be written.
#include "src/cli/arguments/arguments.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <system_error>

#include "src/core/text.h"
#include "src/record/hdf5/file_block.h"

namespace lockstep {
namespace {

bool parse_whole(const std::string& text, uint64_t low, uint64_t high) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value >= low && value <= high;
}

std::string power_or_number(uint64_t value) {
  if (value == UINT64_MAX) return "2^64-1";
  if (value == kLargestCount) return "2^63-1";
  if (value == UINT32_MAX) return "2^32-1";
  return fmt::format("{}", value);
}

// An HDF5 file starts with its signature, or has it at byte 512, 1024, 2048, ... after a user
// block (HDF5 File Format Specification 3.0, section II.A).
bool is_hdf5(std::ifstream& file) {
  constexpr std::array<char, 8> kSignature = {'\x89', 'H', 'D', 'F', '\r', '\n', '\x1a', '\n'};
  constexpr std::streamoff kFirstUserBlock = 512;
  for (std::streamoff at = 0;; at = at == 0 ? kFirstUserBlock : at * 2) {
    std::array<char, kSignature.size()> read{};
    file.seekg(at);
    if (!file.read(read.data(), read.size())) return false;
    if (read == kSignature) return true;
  }
}

// CLI11 calls validators while it parses; this one never fails, but records the problem.
void add_check(CLI::Option* option, std::function<void(std::string&)> check) {
  option->transform(CLI::Validator(
      [check = std::move(check)](std::string& word) {
        check(word);
        return std::string();
      },
      ""));
}

std::string shown(const std::string& word) {
  return word.empty() ? "''" : word;
}

}  // namespace

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto absolute = [&](const std::string& path) {
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  };
  return absolute(a) == absolute(b);
}

void ArgumentChecks::whole(CLI::Option* option, uint64_t low, uint64_t high) const {
  const std::string name = option->get_name();
  add_check(option, [problems = problems_, name, low, high](std::string& word) {
    if (parse_whole(word, low, high)) return;
    problems->add(fmt::format("{} {}: a whole number, {} <= N <= {} required", name, shown(word),
                              low, power_or_number(high)),
                  "digits only, as in 400");
    word = fmt::format("{}", low);
  });
}

void ArgumentChecks::named_numbers(CLI::Option* option,
                                   std::map<std::string, double>& values) const {
  const std::string name = option->get_name();
  add_check(option, [problems = problems_, name, &values](std::string& word) {
    for (const std::string& part : split(word, ',')) {
      const size_t equals = part.find('=');
      const std::string number = equals == std::string::npos ? "" : part.substr(equals + 1);
      char* end = nullptr;
      const double value = std::strtod(number.c_str(), &end);
      if (equals == 0 || number.empty() || *end != '\0') {
        problems->add(fmt::format("{} {}: NAME=X required", name, shown(part)),
                      "as in layers=2,width=64");
      } else if (!values.emplace(part.substr(0, equals), value).second) {
        problems->add(fmt::format("{} {}: named twice", name, part));
      }
    }
  });
}

void ArgumentChecks::number(CLI::Option* option) const {
  const std::string name = option->get_name();
  add_check(option, [problems = problems_, name](std::string& word) {
    char* end = nullptr;
    std::strtod(word.c_str(), &end);
    if (!word.empty() && *end == '\0' && word.find_first_of(" \t\n") == std::string::npos) return;
    problems->add(fmt::format("{} {}: a number required", name, shown(word)), "as in 0.05 or 1e-3");
    word = "0";
  });
}

void ArgumentChecks::one_of(CLI::Option* option, std::vector<std::string> names) const {
  const std::string name = option->get_name();
  add_check(option, [problems = problems_, name, names = std::move(names)](std::string& word) {
    for (const std::string& known : names) {
      if (known == word) return;
    }
    problems->add(fmt::format("{} {}: unknown", name, shown(word)), did_you_mean(word, names));
    word = names.front();
  });
}

void refuse_empty_words(const CLI::App& command, ProblemList& problems) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_min() == 0) continue;  // a flag, or an optional argument
    for (const std::string& word : option->results()) {
      if (!word.empty()) continue;
      problems.add(option->get_name() + " '': empty, a word required", "give it, or leave it out");
    }
  }
}

void check_output(const std::string& path, Replace replace, const std::string& hint,
                  ProblemList& problems, std::string_view option) {
  if (path == kStandardOutput) {
    problems.add(fmt::format("{} {}: is standard output, a file required", option, path),
                 fmt::format("{} FILE", option));
    return;
  }
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) return;
  if (status.type() == std::filesystem::file_type::none) {
    problems.add(fmt::format("{} {}: cannot be accessed: {}", option, path, error.message()),
                 "name a file in a folder that you may write to");
  } else if (std::filesystem::is_directory(status)) {
    problems.add(fmt::format("{} {}: is a folder, a file required", option, path));
  } else if (!std::filesystem::is_regular_file(status)) {
    problems.add(fmt::format("{} {}: is a device or pipe, a file required", option, path));
  } else if (replace == Replace::kNothing) {
    problems.add(fmt::format("{}: exists, and is not overwritten by default", path), hint);
  } else if (replace == Replace::kText) {
    std::ifstream file(path, std::ios::binary);
    if (!file) {
      problems.add(fmt::format("{} {}: cannot be read, and may be a run file", option, path),
                   "name another file");
    } else if (is_hdf5(file)) {
      problems.add(fmt::format("{} {}: is an HDF5 file, which text must not replace", option, path),
                   "name another file");
    }
  } else if (looks_like_capture(path)) {
    problems.add(
        fmt::format("{} {}: is a capture, which a run file must not replace", option, path),
        "name another file");
  }
}

CLI::Option* declare_backward(CLI::App& app, const ArgumentChecks& checks, std::string& value) {
  CLI::Option* option =
      app.add_option("--backward", value,
                     "one backward pass, or one for each loss of a sum (detector, vae)")
          ->type_name("joint|per-loss")
          ->capture_default_str();
  checks.one_of(option, {"joint", std::string(kBackwardPerLoss)});
  return option;
}

}  // namespace lockstep
