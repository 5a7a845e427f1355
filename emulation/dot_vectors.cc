// CSV lines to operands. Cells hold no quotes and no commas.
#include "emulation/dot_vectors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>

#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

struct TypeName {
  std::string_view type, format;
};
constexpr TypeName kTypes[] = {{"f16", "fp16"},      {"f32", "fp32"},      {"bf16", "bf16"},
                               {"tf32", "tf32"},     {"e4m3", "fp8_e4m3"}, {"e5m2", "fp8_e5m2"},
                               {"e3m2", "fp6_e3m2"}, {"e2m3", "fp6_e2m3"}, {"e2m1", "fp4_e2m1"}};

const Format& format_of_type(const std::string& type) {
  for (const TypeName& row : kTypes) {
    if (row.type == type) return find_format(row.format);
  }
  return find_format(type);
}

std::string trimmed(std::string text) {
  const char* kBlank = " \t\r";
  text.erase(0, std::min(text.find_first_not_of(kBlank), text.size()));
  text.erase(text.find_last_not_of(kBlank) + 1);
  return text;
}

class Reader {
 public:
  Reader(const std::string& path, const DotVectorOptions& options)
      : options_(options), problems_("'" + path + "'") {}

  std::vector<DotVector> read(const std::string& text) {
    std::vector<DotVector> rows;
    int number = 0;
    for (const std::string& line : split(text, '\n')) {
      ++number;
      if (trimmed(line).empty()) continue;
      const std::vector<std::string> cells = split(line, ',');
      if (columns_.empty()) {
        read_header(cells);
        continue;
      }
      where_ = "line " + std::to_string(number) + ": ";
      DotVector row;
      if (read_row(cells, number, row)) rows.push_back(std::move(row));
      if (count_ > kToldProblems) break;
    }
    if (columns_.empty()) problems_.add("empty, must have a header line with columns a and b");
    if (rows.empty() && count_ == 0 && problems_.empty()) problems_.add("has no rows");
    problems_.throw_if_any();
    return rows;
  }

 private:
  static constexpr int kToldProblems = 20;

  void problem(const std::string& text, const std::string& hint = "") {
    ++count_;
    if (count_ <= kToldProblems) problems_.add(where_ + text, hint);
    if (count_ == kToldProblems + 1) problems_.add("... and more");
  }

  void read_header(const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) columns_[trimmed(cells[i])] = i;
    std::vector<std::string> needed = {"a", "b"};
    if (options_.format == nullptr) needed.push_back("type_ab");
    if (options_.accumulator == nullptr) needed.insert(needed.end(), {"arch", "instr", "acc"});
    for (const std::string& name : needed) {
      if (columns_.contains(name)) continue;
      const bool is_told = name != "a" && name != "b";
      problems_.add("line 1: no column '" + name + "'",
                    is_told ? "or give --accumulator, and --format where it takes several" : "");
    }
    problems_.throw_if_any();
  }

  bool has(const std::string& column) const { return columns_.contains(column); }

  bool read_row(const std::vector<std::string>& cells, int number, DotVector& row) {
    if (cells.size() != columns_.size()) {
      problem("has " + std::to_string(cells.size()) + " cells, must have the header's " +
              std::to_string(columns_.size()));
      return false;
    }
    const auto cell = [&](const std::string& column) {
      return has(column) ? trimmed(cells[columns_.at(column)]) : std::string();
    };
    row.id = has("id") ? cell("id") : "line " + std::to_string(number);
    row.tag = cell("tag");
    row.confidence = cell("confidence");
    try {
      row.format = options_.format != nullptr ? options_.format : &format_of_type(cell("type_ab"));
      row.accumulator =
          options_.accumulator != nullptr
              ? options_.accumulator
              : &accumulator_of(cell("arch"), cell("instr"), cell("acc"), *row.format);
    } catch (const InputError& error) {
      for (const std::string& text : error.problems()) problem(text);
      return false;
    }
    if (!row.accumulator->takes(*row.format)) {
      problem("accumulator " + row.accumulator->name + " takes no factors in " + row.format->name);
      return false;
    }
    const Format& outer = *row.accumulator->register_format;
    const int before = count_;
    row.a = words(cell("a"), "a", *row.format);
    row.b = words(cell("b"), "b", *row.format);
    const auto c = words(cell("c"), "c", outer), d = words(cell("d"), "d", outer);
    if (row.a.size() != row.b.size()) {
      problem("a has " + std::to_string(row.a.size()) + " words and b " +
              std::to_string(row.b.size()) + ", must be equally many");
    }
    if (c.size() > 1 || d.size() > 1) problem("c and d must be one word each");
    if (count_ != before) return false;
    if (!c.empty()) row.c = c[0];
    if (!d.empty()) row.d = d[0];
    return true;
  }

  std::vector<float> words(const std::string& text, const std::string& column,
                           const Format& format) {
    std::vector<float> values;
    for (const std::string& word : split(text, ' ')) {
      if (word.empty()) continue;
      uint32_t bits = 0;
      const auto [end, error] =
          std::from_chars(word.data(), word.data() + word.size(), bits, /*base=*/16);
      constexpr int kRegisterBits = 32;
      const int width = format.name == "tf32" ? kRegisterBits : format.storage_bits();
      const bool fits = width >= kRegisterBits || bits >> width == 0;
      if (error != std::errc() || end != word.data() + word.size() || !fits) {
        problem(column + " has '" + word + "', must be hexadecimal digits of " +
                std::to_string(width) + " bits");
        continue;
      }
      values.push_back(decode_word(bits, format));
    }
    return values;
  }

  static const Accumulator& accumulator_of(const std::string& arch, const std::string& instr,
                                           const std::string& acc, const Format& format) {
    const bool is_fp8 = format.storage_bits() <= 8;
    std::string name = arch + "_" + (is_fp8 ? "fp8" : format.name);
    if (instr.find("emulated") != std::string::npos) name += "_mma";
    if (acc == "f16" || acc == "fp16") name += "_acc16";
    return find_accumulator(name);
  }

  const DotVectorOptions& options_;
  ProblemList problems_;
  std::map<std::string, size_t> columns_;
  std::string where_;
  int count_ = 0;
};

}  // namespace

std::vector<DotVector> read_dot_vectors(const std::string& path, const DotVectorOptions& options) {
  return Reader(path, options).read(read_text_file(path));
}

float decode_word(uint32_t word, const Format& format) {
  if (format.name == "tf32" || format.is_fp32()) return std::bit_cast<float>(word);
  return static_cast<float>(decode(word, format));
}

uint32_t result_word(double result, const Accumulator& accumulator) {
  return static_cast<uint32_t>(encode(result, *accumulator.register_format));
}

bool same_result(double result, float expected) {
  if (std::isnan(result) || std::isnan(expected)) return std::isnan(result) && std::isnan(expected);
  return std::bit_cast<uint32_t>(static_cast<float>(result)) == std::bit_cast<uint32_t>(expected);
}

}  // namespace lockstep
