// Do the models give what hardware gave? Every row of the vector files and of the recorded GPU
// outputs that lie beside the repository, bit for bit; where they are absent the case skips, which
// the test counter sees.
#include <doctest/doctest.h>
#include <zlib.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "emulation/dot.h"
#include "emulation/rounding.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
const fs::path kShared = fs::path(LOCKSTEP_SOURCE_DIR) / ".." / "shared";

using Row = std::map<std::string, std::string>;
std::vector<Row> read_csv(const fs::path& path) {
  std::ifstream in(path);
  std::vector<Row> rows;
  std::vector<std::string> names;
  std::string line;
  while (std::getline(in, line)) {
    std::vector<std::string> cells;
    std::stringstream cell_text(line);
    for (std::string cell; std::getline(cell_text, cell, ',');) cells.push_back(cell);
    if (names.empty()) {
      names = cells;
      continue;
    }
    cells.resize(names.size());
    Row row;
    for (size_t i = 0; i < names.size(); ++i) row[names[i]] = cells[i];
    rows.push_back(row);
  }
  return rows;
}

// Hex words to the floats that hold them. NaN codes of any format become NaN.
std::vector<float> decode_words(const std::string& text, const Format& format) {
  std::vector<float> values;
  std::stringstream words(text);
  for (std::string word; words >> word;) {
    const auto bits = static_cast<uint32_t>(std::stoul(word, nullptr, 16));
    // TF32 operands are raw 32-bit registers.
    values.push_back(format.name == "tf32" || format.name == "fp32"
                         ? std::bit_cast<float>(bits)
                         : static_cast<float>(decode(bits, format)));
  }
  return values;
}

const std::map<std::string, std::string> kFormatNames = {{"f16", "fp16"},      {"bf16", "bf16"},
                                                         {"tf32", "tf32"},     {"e4m3", "fp8_e4m3"},
                                                         {"e5m2", "fp8_e5m2"}, {"f32", "fp32"}};

// The accumulator that a row of mma_vectors.csv is about.
std::string accumulator_of(const Row& row) {
  const std::string& type = row.at("type_ab");
  std::string name = row.at("arch") + "_" + (type[0] == 'e' ? "fp8" : kFormatNames.at(type));
  if (row.at("instr").find("emulated") != std::string::npos) name += "_mma";
  if (row.at("acc") == "f16") name += "_acc16";
  return name;
}

bool same(double result, float expected) {
  if (std::isnan(expected) || std::isnan(result)) return std::isnan(expected) == std::isnan(result);
  return std::bit_cast<uint32_t>(static_cast<float>(result)) == std::bit_cast<uint32_t>(expected);
}

struct Count {
  int64_t rows = 0, wrong = 0;
};

void check_rows(const std::vector<Row>& rows, bool uncertain, Count& count) {
  for (const Row& row : rows) {
    if ((row.at("confidence") == "uncertain") != uncertain) continue;
    const Accumulator& accumulator = find_accumulator(accumulator_of(row));
    const Format& format = find_format(kFormatNames.at(row.at("type_ab")));
    const std::vector<float> a = decode_words(row.at("a"), format);
    const std::vector<float> b = decode_words(row.at("b"), format);
    REQUIRE(static_cast<int>(a.size()) == std::stoi(row.at("K")));
    CHECK(accumulator.block.length == std::stoi(row.at("L")));
    CHECK(accumulator.block.fraction_bits == std::stoi(row.at("F")));
    const Format& outer = *accumulator.register_format;
    const float c = decode_words(row.at("c"), outer)[0], d = decode_words(row.at("d"), outer)[0];
    const DotOperands<float> operands{a.data(), b.data(), static_cast<int64_t>(a.size()), &format,
                                      &format};
    const double result = accumulate_dot(accumulator, operands, c);
    ++count.rows;
    if (same(result, d)) continue;
    ++count.wrong;
    CAPTURE(row.at("id"));
    CAPTURE(row.at("tag"));
    CHECK_MESSAGE(false, accumulator.name, ": got ", result, ", must be ", d);
  }
}

std::vector<std::string> read_gzip_lines(const fs::path& path) {
  std::vector<std::string> lines;
  gzFile file = gzopen(path.c_str(), "rb");
  REQUIRE(file != nullptr);
  char buffer[1 << 12];
  while (gzgets(file, buffer, sizeof buffer) != nullptr) lines.emplace_back(buffer);
  gzclose(file);
  return lines;
}

// K hexadecimal FP32 patterns, or one of 32 binary digits.
std::vector<float> decode_line(const std::string& line, int base) {
  std::vector<float> values;
  std::stringstream words(line);
  for (std::string word; words >> word;) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::stoul(word, nullptr, base))));
  }
  return values;
}

struct Recording {
  const char *gpu, *format, *accumulator, *result;  // result: d_<gpu>_<result>
  bool starts_from_zero = false;                    // c is ignored
};
constexpr Recording kRecordings[] = {
    {"V100", "fp16", "volta_fp16", "fp32"},
    {"V100", "fp16", "volta_fp16_acc16", "fp16"},
    {"A100", "fp16", "ampere_fp16", "fp32"},
    {"A100", "fp16", "ampere_fp16_acc16", "fp16"},
    {"A100", "bf16", "ampere_bf16", "fp32"},
    {"A100", "tf32", "ampere_tf32", "fp32"},
    {"Ada", "fp16", "ada_fp16", "fp32"},
    {"Ada", "fp16", "ada_fp16_acc16", "fp16"},
    {"Ada", "bf16", "ada_bf16", "fp32"},
    {"Ada", "tf32", "ada_tf32", "fp32"},
    {"Ada", "E4M3", "ada_fp8", "fp32"},
    {"Ada", "E4M3", "ada_fp8_acc16", "fp16"},
    {"Ada", "E5M2", "ada_fp8", "fp32"},
    {"Ada", "E5M2", "ada_fp8_acc16", "fp16"},
    {"H100", "fp16", "hopper_fp16", "fp32"},
    {"H100", "fp16", "hopper_fp16_acc16", "fp16"},
    {"H100", "bf16", "hopper_bf16", "fp32"},
    {"H100", "tf32", "hopper_tf32", "fp32"},
    {"H100", "E4M3", "hopper_fp8", "fp32", true},
    {"H100", "E4M3", "hopper_fp8_mma_acc16", "fp16"},
    {"H100", "E5M2", "hopper_fp8", "fp32", true},
    {"H100", "E5M2", "hopper_fp8_mma_acc16", "fp16"},
};

const Format& recorded_format(const std::string& name) {
  if (name == "E4M3") return find_format("fp8_e4m3");
  if (name == "E5M2") return find_format("fp8_e5m2");
  return find_format(name);
}

}  // namespace

TEST_CASE("dot: every settled row of mma_vectors.csv") {
  const fs::path path = kShared / "reference" / "mma_vectors.csv";
  if (!fs::exists(path)) {
    MESSAGE("skipped: no mma_vectors.csv beside the repository");
    return;
  }
  Count count;
  check_rows(read_csv(path), /*uncertain=*/false, count);
  MESSAGE("mma_vectors.csv: ", count.rows, " rows, ", count.wrong, " mismatches");
  CHECK(count.rows > 700);
}

TEST_CASE("dot: the uncertain rows under the default switches") {
  const fs::path path = kShared / "reference" / "mma_vectors.csv";
  if (!fs::exists(path)) {
    MESSAGE("skipped: no mma_vectors.csv beside the repository");
    return;
  }
  Count count;
  check_rows(read_csv(path), /*uncertain=*/true, count);
  CHECK(count.rows == 53);
}

TEST_CASE("dot: every row of every recording") {
  const fs::path folder = kShared / "data" / "tensor-core-recordings";
  if (!fs::exists(folder)) {
    MESSAGE("skipped: no tensor-core-recordings beside the repository");
    return;
  }
  int64_t total = 0, wrong = 0;
  for (const Recording& r : kRecordings) {
    const fs::path place = folder / r.gpu / r.format;
    const auto file = [&](const std::string& what, const std::string& kind) {
      return read_gzip_lines(place / (what + "_" + r.gpu + "_" + kind + ".txt.gz"));
    };
    const auto a = file("a", r.format), b = file("b", r.format), d = file("d", r.result);
    const auto c = r.starts_from_zero ? std::vector<std::string>() : file("c", "fp32");
    const Accumulator& accumulator = find_accumulator(r.accumulator);
    const Format& format = recorded_format(r.format);
    REQUIRE(a.size() == d.size());
    REQUIRE(b.size() == d.size());
    int64_t wrong_here = 0;
    for (size_t i = 0; i < d.size(); ++i) {
      const auto x = decode_line(a[i], 16), y = decode_line(b[i], 16);
      const double start = r.starts_from_zero ? 0.0
                                              : round_to_format(decode_line(c[i], 2)[0],
                                                                *accumulator.register_format,
                                                                Rounding::kNearestEven);
      const DotOperands<float> operands{x.data(), y.data(), static_cast<int64_t>(x.size()), &format,
                                        &format};
      const double result = accumulate_dot(accumulator, operands, start);
      wrong_here += same(result, decode_line(d[i], 2)[0]) ? 0 : 1;
    }
    CAPTURE(r.gpu);
    CAPTURE(r.format);
    CAPTURE(r.accumulator);
    CHECK(wrong_here == 0);
    total += static_cast<int64_t>(d.size());
    wrong += wrong_here;
  }
  MESSAGE("tensor-core-recordings: ", total, " rows, ", wrong, " mismatches");
  constexpr int64_t kRows = 5000;
  CHECK(total == static_cast<int64_t>(std::size(kRecordings)) * kRows);
}

}  // namespace lockstep
