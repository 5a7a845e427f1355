// Turns CSV lines into operands. Cells hold no quotes and no commas.
#include "emulation/accumulator/dot_vectors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <map>

#include "emulation/accumulator/aligned_block_core.h"
#include "emulation/accumulator/ptx_types.h"
#include "src/core/error.h"
#include "src/core/find_row.h"
#include "src/core/text.h"
#include "src/core/text_file.h"

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
  return format.is_fp32() || format.is_tf32();
}

int word_bits(const Format& format) {
  return is_register(format) ? kRegisterBits : format.storage_bits();
}

// --- the accumulator of an instruction ---

// Families of instructions by the first part of their names, and the hardware that has them.
struct Family {
  std::string_view name, only_on;  // "": all hardware
  bool takes_fp8;
  // Compilers replace instructions that the chip lacks (see Hardware): FP8 mma.sync, and WMMA of
  // TF32 in its shape.
  bool fp8_is_compiled = false, tf32_is_split = false;
};
constexpr Family kFamilies[] = {
    {.name = "mma", .only_on = "", .takes_fp8 = true, .fp8_is_compiled = true},
    {.name = "wmma", .only_on = "", .takes_fp8 = false, .tf32_is_split = true},
    {.name = "wgmma", .only_on = "hopper", .takes_fp8 = true},
    {.name = "tcgen05", .only_on = "blackwell", .takes_fp8 = true}};

const Family& find_family(const std::string& name, const std::string& instr) {
  return find_row_or_throw(name, kFamilies, "instr '" + instr + "': unknown instruction");
}

bool is_fp8(const Format& format) {
  return format.storage_bits() <= 8;
}

std::string unit_of(const Family& family, const Hardware& hardware, const Format& format) {
  if (is_fp8(format)) {
    return family.fp8_is_compiled && hardware.emulates_fp8_mma ? "fp8_mma" : "fp8";
  }
  const bool is_split = family.tf32_is_split && format.is_tf32() && hardware.splits_tf32_wmma;
  return is_split ? "tf32_wmma" : format.name;
}

struct Sum {
  std::string_view ptx, format, ending;  // of the names of its accumulators
};
constexpr Sum kSums[] = {{"f16", "fp16", "_acc16"}, {"f32", "fp32", ""}};

// `instr`: "mma.sync.m16n8k16", "mma/wgmma.k16".
const Accumulator& accumulator_of(std::string arch, const std::string& instr,
                                  const std::string& acc, const Format& a, const Format& b) {
  std::replace(arch.begin(), arch.end(), '_', '-');
  const Hardware& chips =
      find_row_or_throw(arch, hardware(), "arch '" + arch + "': unknown hardware");
  const auto sum = std::ranges::find_if(
      kSums, [&](const Sum& row) { return acc == row.ptx || acc == row.format; });
  if (sum == std::end(kSums)) throw InputError("acc '" + acc + "': must be f16 or f32");
  for (const char* part : {"mx", "block_scale", ".sp"}) {
    if (instr.find(part) == instr.npos) continue;
    throw InputError("instr '" + instr + "': scaled and sparse instructions are not modelled");
  }
  if (&a != &b && !(is_fp8(a) && is_fp8(b))) {
    throw InputError("factors " + a.name + " and " + b.name + ": only FP8 formats can be mixed");
  }
  std::string unit;
  for (const std::string& name : split(instr.substr(0, instr.find_first_of(". ")), '/')) {
    const Family& family = find_family(name, instr);
    if (!family.only_on.empty() && family.only_on != arch) {
      throw InputError("instr '" + instr + "': " + std::string(family.only_on) + " has " + name +
                       ", not " + arch);
    }
    if (!family.takes_fp8 && is_fp8(a)) {
      throw InputError("instr '" + instr + "': " + name + " takes no factors in " + a.name);
    }
    const std::string its_unit = unit_of(family, chips, a);
    if (!unit.empty() && unit != its_unit) {
      throw InputError("instr '" + instr + "': these sum " + a.name + " differently, must be one");
    }
    unit = its_unit;
  }
  std::string row = arch + "_" + unit + std::string(sum->ending);
  std::replace(row.begin(), row.end(), '-', '_');
  return find_accumulator(row);
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
    std::string_view rest = text;
    while (!rest.empty()) {
      const std::string line = next_part(rest, '\n');
      ++number;
      if (trimmed(line).empty()) continue;
      const auto commas = static_cast<size_t>(std::ranges::count(line, ','));
      if (commas >= kMostColumns) {
        problems_.add("line " + std::to_string(number) + ": has " + std::to_string(commas + 1) +
                      " cells, at most " + std::to_string(kMostColumns) + " allowed");
        break;
      }
      const std::vector<std::string> cells = split(line, ',');
      if (columns_.empty()) {
        read_header(cells);
        continue;
      }
      where_ = "line " + std::to_string(number) + ": ";
      DotVector row;
      if (read_row(cells, number, row)) rows.push_back(std::move(row));
      if (rows.size() > kMostRows) {
        problems_.add("has more than " + std::to_string(kMostRows) + " rows",
                      "split the file into several");
        break;
      }
      if (count_ > kToldProblems) break;
    }
    if (columns_.empty()) problems_.add("empty, must have a header line with columns a and b");
    if (rows.empty() && count_ == 0 && problems_.empty()) problems_.add("has no rows");
    problems_.throw_if_any();
    return rows;
  }

 private:
  static constexpr int kToldProblems = 20;
  // Lines and words are taken one by one, because a list of millions of strings would take far more
  // memory than the file.
  static constexpr size_t kMostColumns = 1000, kMostRows = 1'000'000;

  static std::string next_part(std::string_view& rest, char separator) {
    const size_t end = std::min(rest.find(separator), rest.size());
    std::string part(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    return part;
  }

  void add_problem(const std::string& text, const std::string& hint = "") {
    ++count_;
    if (count_ <= kToldProblems) problems_.add(where_ + text, hint);
    if (count_ == kToldProblems + 1) problems_.add("... and more");
  }

  void read_header(const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      if (columns_.emplace(trimmed(cells[i]), i).second) continue;
      problems_.add("line 1: column '" + printable(trimmed(cells[i])) + "' is there twice");
    }
    std::vector<std::string> needed = {"a", "b"};
    if (options_.a_format == nullptr) {
      const bool has_both = columns_.contains("type_a") && columns_.contains("type_b");
      if (!has_both) needed.push_back("type_ab");
      if (has_both && columns_.contains("type_ab")) {
        problems_.add("line 1: columns type_a, type_b and type_ab say the same thing");
      }
    }
    if (options_.accumulator == nullptr) needed.insert(needed.end(), {"arch", "instr", "acc"});
    for (const std::string& name : needed) {
      if (columns_.contains(name)) continue;
      const bool is_told = name != "a" && name != "b";
      problems_.add("line 1: no column '" + name + "'",
                    is_told ? "or give --accumulator, and --format if it takes several" : "");
    }
    problems_.throw_if_any();
  }

  bool has(const std::string& column) const { return columns_.contains(column); }

  bool read_row(const std::vector<std::string>& cells, int number, DotVector& row) {
    if (cells.size() != columns_.size()) {
      add_problem("has " + std::to_string(cells.size()) + " cells, must have the header's " +
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
      const auto format = [&](const Format* told, const char* own) {
        return told != nullptr ? told : &format_of_type(cell(has("type_ab") ? "type_ab" : own));
      };
      row.a_format = format(options_.a_format, "type_a");
      row.b_format = format(options_.b_format, "type_b");
      row.accumulator = options_.accumulator != nullptr
                            ? options_.accumulator
                            : &accumulator_of(cell("arch"), cell("instr"), cell("acc"),
                                              *row.a_format, *row.b_format);
    } catch (const InputError& error) {
      for (const std::string& text : error.problems()) add_problem(text);
      return false;
    }
    for (const Format* format : {row.a_format, row.b_format}) {
      if (!contains(find_format("fp32"), *format)) {
        add_problem("factors in " + format->name + ": must fit in fp32");
        return false;
      }
      if (!row.accumulator->takes(*format)) {
        add_problem("accumulator " + row.accumulator->name + " takes no factors in " +
                    format->name);
        return false;
      }
    }
    const Format& outer = *row.accumulator->register_format;
    const int before = count_;
    const auto floats = [&](const char* column, const Format& format) {
      std::vector<float> values;
      for (const uint64_t word : words(cell(column), column, format)) {
        values.push_back(static_cast<float>(decode_word(word, format)));
      }
      return values;
    };
    row.a = floats("a", *row.a_format);
    row.b = floats("b", *row.b_format);
    const auto c = words(cell("c"), "c", outer), d = words(cell("d"), "d", outer);
    if (row.a.size() != row.b.size() && count_ == before) {
      add_problem("a has " + std::to_string(row.a.size()) + " words and b " +
                  std::to_string(row.b.size()) + ", must have the same number");
    }
    if (row.a.empty() && count_ == before) {
      add_problem("a and b are empty, must have at least one word each");
    }
    if (c.size() > 1 || d.size() > 1) add_problem("c and d must be one word each");
    if (count_ != before) return false;
    if (!c.empty()) row.c = decode_word(c[0], outer);
    if (!d.empty()) {
      row.d_word = d[0];
      row.d = decode_word(d[0], outer);
    }
    return true;
  }

  // Requires all digits: a word that lost its last digits would be another number.
  std::vector<uint64_t> words(const std::string& text, const std::string& column,
                              const Format& format) {
    std::vector<uint64_t> values;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string word = next_part(rest, ' ');
      if (word.empty()) continue;
      try {
        values.push_back(parse_word(word, format));
        const size_t prefix = word.starts_with("0x") || word.starts_with("0X") ? 2 : 0;
        const auto digits = static_cast<size_t>((word_bits(format) + 3) / 4);
        if (word.size() - prefix != digits) {
          add_problem(column + ": word '" + word + "': has " +
                      std::to_string(word.size() - prefix) + " hexadecimal digits, must have " +
                      std::to_string(digits) + " (" + format.name + ")");
        }
      } catch (const InputError& error) {
        for (const std::string& told : error.problems()) add_problem(column + ": " + told);
      }
    }
    return values;
  }

  const DotVectorOptions& options_;
  ProblemList problems_;
  std::map<std::string, size_t> columns_;
  std::string where_;
  int count_ = 0;
};

}  // namespace

std::vector<DotVector> read_dot_vectors(const std::string& path, const DotVectorOptions& options) {
  constexpr size_t kMostBytes = size_t{64} << 20;  // recordings have 20 MiB
  return Reader(path, options).read(read_text_file(path, kMostBytes));
}

double decode_word(uint64_t word, const Format& format) {
  if (is_register(format)) {
    auto bits = static_cast<uint32_t>(word);
    // A double would make a signalling NaN quiet, and keep a NaN that TF32 reads as an infinity.
    constexpr uint32_t kTf32IgnoredBits = 0x1fff;
    if (!format.is_fp32()) bits &= ~kTf32IgnoredBits;
    return std::bit_cast<float>(bits);
  }
  return decode(word, format);
}

uint64_t parse_word(std::string_view text, const Format& format) {
  const int width = word_bits(format);
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
  const bool has_one = std::isnan(result) && has_hardware_nan(accumulator);
  return has_one ? register_encoding(accumulator.block.output).nan()
                 : encode(result, *accumulator.register_format);
}

bool has_hardware_nan(const Accumulator& accumulator) {
  return accumulator.kind == AccumulatorKind::kAlignedBlocks;
}

bool same_word(uint64_t result, uint64_t expected, const Accumulator& accumulator) {
  if (result == expected || has_hardware_nan(accumulator)) return result == expected;
  const Format& format = *accumulator.register_format;
  return std::isnan(decode(result, format)) && std::isnan(decode(expected, format));
}

bool same_result(double result, double expected) {
  if (std::isnan(result) || std::isnan(expected)) return std::isnan(result) && std::isnan(expected);
  return std::bit_cast<uint64_t>(result) == std::bit_cast<uint64_t>(expected);
}

}  // namespace lockstep
