// Reads the arguments that are numbers, and checks the files about to be written.
#include "src/cli/arguments/arguments.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string_view>
#include <system_error>

#include "src/core/text.h"
#include "src/record/hdf5/file_block.h"
#include "src/train/run_option_syntax.h"
#include "src/train/run_option_text.h"

namespace lockstep {
namespace {

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

}  // namespace

CLI::Option* declare_threads(CLI::App& app, const ArgumentChecks& checks, int& threads) {
  constexpr uint64_t kMostThreads = 256;
  CLI::Option* option = app.add_option("--threads", threads, "1 to 256 [all]")->type_name("N");
  checks.whole(option, 1, kMostThreads);
  return option;
}

void check_text_output(const std::string& option, const std::string& name,
                       std::string_view extension, bool overwrite, ProblemList& problems) {
  if (name.empty()) return;
  if (name != kStandardOutput && !name.ends_with(extension)) {
    problems.add(fmt::format("{} {}: a name that ends in {} required", option, name, extension),
                 fmt::format("{} {}{}", option, name, extension));
  }
  check_output(name, overwrite ? Replace::kText : Replace::kNothing,
               fmt::format("{} OTHER, or --overwrite", option), problems, option);
}

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
    uint64_t value = low;
    collect_problems(*problems, [&] { value = whole_number(name, word, low, high); });
    word = fmt::format("{}", value);
  });
}

void ArgumentChecks::number(CLI::Option* option) const {
  const std::string name = option->get_name();
  add_check(option, [problems = problems_, name](std::string& word) {
    const size_t others = problems->count();
    collect_problems(*problems, [&] { any_number(name, word); });
    if (problems->count() > others) word = "0";
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

OptionOnLine declare_option(CLI::App& app, const RunOption& row, const RunOptions& defaults) {
  const std::string name(row.option);
  const std::string help =
      row.number.empty() ? std::string(row.help) : optimizer_number_help(row.number);
  if (row.type.empty()) return {&row, app.add_flag(name, help)};
  CLI::Option* option = app.add_option(name, help)->type_name(std::string(row.type));
  if (row.repeats)
    option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args(false);
  const std::string shown = row.shows_default ? option_text(row, defaults) : "";
  return {&row, shown.empty() ? option : option->default_str(shown)};
}

void read_options(std::span<const OptionOnLine> options, RunOptions& to, ProblemList& problems) {
  for (const auto& [row, option] : options) {
    for (const std::string& text : option->results()) {
      if (text.empty()) continue;  // refuse_empty_words reports it
      collect_problems(problems, [&, row = row] { set_option(*row, text, to); });
    }
  }
}

}  // namespace lockstep
