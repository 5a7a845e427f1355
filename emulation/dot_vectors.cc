// CSV lines to operands. Cells hold no quotes and no commas.
#include "emulation/dot_vectors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>

#include "emulation/ptx_types.h"
#include "src/core/error.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

const Format& format_of_type(const std::string& type) {
  for (const PtxType& row : kPtxTypes) {
    if (row.ptx == type) return find_format(row.format);
  }
  return find_format(type);
}

std::string trimmed(std::string text) {
  const char* kBlank = " \t\r";
  text.erase(0, std::min(text.find_first_not_of(kBlank), text.size()));
  text.erase(text.find_last_not_of(kBlank) + 1);
  return text;
}

constexpr int kRegisterBits = 32;
// FP32, and TF32, whose operands are whole FP32 registers.
bool is_register(const Format& format) {
  return format.is_fp32() || &format == &find_format("tf32");
}

class Reader {
 public:
  Reader(const std::string& path, const DotVectorOptions& options)
      : options_(options), problems_("'" + path + "'") {}

  std::vector<DotVector> read(std::string text) {
    constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
    if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
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
    if (!contains(find_format("fp32"), *row.format)) {
      problem("factors in " + row.format->name + ": must fit in fp32");
      return false;
    }
    if (!row.accumulator->takes(*row.format)) {
      problem("accumulator " + row.accumulator->name + " takes no factors in " + row.format->name);
      return false;
    }
    const Format& outer = *row.accumulator->register_format;
    const int before = count_;
    for (const double x : words(cell("a"), "a", *row.format))
      row.a.push_back(static_cast<float>(x));
    for (const double x : words(cell("b"), "b", *row.format))
      row.b.push_back(static_cast<float>(x));
    const auto c = words(cell("c"), "c", outer), d = words(cell("d"), "d", outer);
    if (row.a.size() != row.b.size() && count_ == before) {
      problem("a has " + std::to_string(row.a.size()) + " words and b " +
              std::to_string(row.b.size()) + ", must be equally many");
    }
    if (row.a.empty() && count_ == before) problem("a and b are empty, must have a word each");
    if (c.size() > 1 || d.size() > 1) problem("c and d must be one word each");
    if (count_ != before) return false;
    if (!c.empty()) row.c = c[0];
    if (!d.empty()) row.d = d[0];
    return true;
  }

  std::vector<double> words(const std::string& text, const std::string& column,
                            const Format& format) {
    std::vector<double> values;
    for (const std::string& word : split(text, ' ')) {
      if (word.empty()) continue;
      try {
        values.push_back(decode_word(parse_word(word, format), format));
      } catch (const InputError& error) {
        for (const std::string& told : error.problems()) problem(column + ": " + told);
      }
    }
    return values;
  }

  // FP8 mma.sync is made by the compiler where the chip has no such instruction.
  static const Accumulator& accumulator_of(std::string arch, const std::string& instr,
                                           const std::string& acc, const Format& format) {
    const bool is_fp16 = acc == "f16" || acc == "fp16";
    if (!is_fp16 && acc != "f32" && acc != "fp32") {
      throw InputError("acc '" + acc + "': must be f16 or f32");
    }
    const Hardware* chips = find_hardware(arch);
    const bool has_none = chips != nullptr && chips->emulates_fp8_mma;
    std::replace(arch.begin(), arch.end(), '-', '_');
    const bool is_fp8 = format.storage_bits() <= 8;
    std::string name = arch + "_" + (is_fp8 ? "fp8" : format.name);
    if (is_fp8 && has_none && instr.find("mma.sync") != std::string::npos) name += "_mma";
    if (is_fp16) name += "_acc16";
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

double decode_word(uint64_t word, const Format& format) {
  if (is_register(format)) {
    auto bits = static_cast<uint32_t>(word);
    // A double would make a signalling NaN quiet, and one that reads as an infinity stay NaN.
    constexpr uint32_t kTf32IgnoredBits = 0x1fff;
    if (!format.is_fp32()) bits &= ~kTf32IgnoredBits;
    return std::bit_cast<float>(bits);
  }
  return decode(word, format);
}

uint64_t parse_word(std::string_view text, const Format& format) {
  const int width = is_register(format) ? kRegisterBits : format.storage_bits();
  std::string_view digits = text;
  if (digits.starts_with("0x") || digits.starts_with("0X")) digits.remove_prefix(2);
  uint64_t word = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), word, /*base=*/16);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  if (digits.empty() || !is_number || (width < 64 && word >> width != 0)) {
    throw InputError("word '" + std::string(text) + "': must be hexadecimal digits of " +
                     std::to_string(width) + " bits (" + format.name + ")");
  }
  return word;
}

uint64_t result_word(double result, const Accumulator& accumulator) {
  return encode(result, *accumulator.register_format);
}

bool same_result(double result, double expected) {
  if (std::isnan(result) || std::isnan(expected)) return std::isnan(result) && std::isnan(expected);
  return std::bit_cast<uint64_t>(result) == std::bit_cast<uint64_t>(expected);
}

}  // namespace lockstep
