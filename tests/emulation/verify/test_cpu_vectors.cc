// Compares the models of CPU instructions with recorded results of a CPU: every row of
// cpu_vectors.csv next to the repository, and this CPU's own instructions on the same operands.
#include <doctest/doctest.h>

#include <bit>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "emulation/accumulator/cpu_dot.h"
#include "emulation/format/rounding.h"
#include "emulation/kernels/cpu/instructions.h"
#include "emulation/kernels/cpu_unit.h"
#include "tests/support/folders.h"

namespace lockstep {
namespace {

constexpr int64_t kRows = 308;

struct Row {
  std::string op, note;
  uint32_t x, a, b, result;  // a, b: pairs of BF16, element 0 in the low half
};

std::vector<Row> read_rows(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<Row> rows;
  std::string line;
  std::getline(in, line);
  CHECK(line == "op,c_or_x,a0,a1,b0,b1,result,note");
  while (std::getline(in, line)) {
    std::vector<std::string> cells;
    std::stringstream text(line);
    for (std::string cell; std::getline(text, cell, ',');) cells.push_back(cell);
    cells.resize(8);
    const auto word = [&](size_t i) {
      return cells[i].empty() ? 0 : static_cast<uint32_t>(std::stoul(cells[i], nullptr, 16));
    };
    rows.push_back(
        {cells[0], cells[7], word(1), word(2) | word(3) << 16, word(4) | word(5) << 16, word(6)});
  }
  return rows;
}

float bf16(uint32_t pair, int element) {
  return std::bit_cast<float>(element == 0 ? pair << 16 : pair & 0xffff0000u);
}
float fp32(uint32_t bits) {
  return std::bit_cast<float>(bits);
}

Rounding rounding_of(const std::string& op) {
  if (op.ends_with(".RD")) return Rounding::kDown;
  if (op.ends_with(".RU")) return Rounding::kUp;
  if (op.ends_with(".RZ")) return Rounding::kTowardZero;
  return Rounding::kNearestEven;
}

struct Answer {
  uint32_t bits;
  const Format* format;
};
Answer model(const Row& row) {
  const Format &half = find_format("fp16"), &single = find_format("fp32");
  if (row.op == "VDPBF16PS") {
    const float a[] = {bf16(row.a, 0), bf16(row.a, 1)}, b[] = {bf16(row.b, 0), bf16(row.b, 1)};
    const float sum = bf16_pairs_dot(a, b, 2, fp32(row.x));
    if (sum == sum) return {std::bit_cast<uint32_t>(sum), &single};
    const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
    return {vdpbf16ps_nan(bits(a[0]), bits(b[0]), bits(a[1]), bits(b[1]), row.x), &single};
  }
  if (row.op == "VCVTPH2PS") {
    return {static_cast<uint32_t>(encode(decode(row.x, half), single)), &single};
  }
  const bool is_bf16 = row.op == "VCVTNEPS2BF16";
  const Format& target = is_bf16 ? find_format("bf16+flush_in") : half;
  const double rounded = round_to_format(fp32(row.x), target, rounding_of(row.op));
  return {static_cast<uint32_t>(encode(rounded, target)), is_bf16 ? &find_format("bf16") : &half};
}

uint32_t run(const Row& row) {
  if (row.op == "VDPBF16PS") {
    const float c = fp32(row.x);
    float y;
    cpu::vdpbf16ps(&row.a, &row.b, &c, &y, 1);
    return std::bit_cast<uint32_t>(y);
  }
  if (row.op == "VCVTPH2PS") {
    const auto x = static_cast<uint16_t>(row.x);
    float y;
    cpu::vcvtph2ps(&x, &y, 1);
    return std::bit_cast<uint32_t>(y);
  }
  const float x = fp32(row.x);
  uint16_t y;
  if (row.op == "VCVTNEPS2BF16") {
    cpu::vcvtneps2bf16(&x, &y, 1);
  } else {
    cpu::vcvtps2ph(&x, &y, 1, rounding_of(row.op));
  }
  return y;
}

bool is_nan(uint32_t bits, const Format& format) {
  const double value = decode(bits, format);
  return value != value;
}
// VDPBF16PS's NaN is modelled, too.
bool same(uint32_t bits, const Row& row, const Format& format) {
  return bits == row.result ||
         (row.op != "VDPBF16PS" && is_nan(bits, format) && is_nan(row.result, format));
}

std::filesystem::path vector_file() {
  return std::filesystem::path(testing::kSourceFolder) / ".." / "shared" / "reference" /
         "cpu_vectors.csv";
}

}  // namespace

TEST_CASE("cpu vectors: the models reproduce every row") {
  if (!std::filesystem::exists(vector_file())) {
    MESSAGE("SKIPPED: 1 vector file: no cpu_vectors.csv next to the repository");
    return;
  }
  std::map<std::string, int64_t> count;
  for (const Row& row : read_rows(vector_file())) {
    const Answer answer = model(row);
    CAPTURE(row.op);
    CAPTURE(row.x);
    CAPTURE(row.note);
    CAPTURE(answer.bits);
    CHECK(same(answer.bits, row, *answer.format));
    ++count[row.op];
  }
  int64_t total = 0;
  for (const auto& [op, rows] : count) total += rows;
  CHECK(total == kRows);
  CHECK(count.size() == 7);
}

TEST_CASE("cpu vectors: this CPU's instructions reproduce every row") {
  if (!std::filesystem::exists(vector_file())) {
    MESSAGE("SKIPPED: 1 vector file: no cpu_vectors.csv next to the repository");
    return;
  }
  int64_t skipped = 0, ran = 0;
  for (const Row& row : read_rows(vector_file())) {
    const bool is_half = row.op.find("PH") != std::string::npos;
    if (!cpu_has(is_half ? CpuUnit::kF16c : CpuUnit::kAvx512Bf16)) {
      ++skipped;
      continue;
    }
    CAPTURE(row.op);
    CAPTURE(row.x);
    CHECK(same(run(row), row, *model(row).format));
    ++ran;
  }
  if (skipped > 0) MESSAGE("SKIPPED: " << skipped << " rows: this CPU lacks their instructions");
  CHECK(ran + skipped == kRows);
}

}  // namespace lockstep
