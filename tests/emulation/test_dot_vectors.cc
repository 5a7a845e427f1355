// Do the models give what hardware gave? Every row of the vector files and of the recorded GPU
// outputs that lie beside the repository, bit for bit; where they are absent the case skips, which
// the test counter sees.
#include <doctest/doctest.h>
#include <zlib.h>

#include <bit>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "emulation/dot_vectors.h"
#include "emulation/rounding.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
const fs::path kShared = fs::path(LOCKSTEP_SOURCE_DIR) / ".." / "shared";
const fs::path kVectors = kShared / "reference" / "mma_vectors.csv";

struct Count {
  int64_t rows = 0, wrong = 0;
};

void check_rows(bool uncertain, Count& count) {
  for (const DotVector& row : read_dot_vectors(kVectors.string(), {})) {
    if ((row.confidence == "uncertain") != uncertain) continue;
    const double result = accumulate_dot(*row.accumulator, row.operands(), row.c);
    REQUIRE(row.d.has_value());
    ++count.rows;
    if (same_result(result, *row.d)) continue;
    ++count.wrong;
    CAPTURE(row.id);
    CAPTURE(row.tag);
    CHECK_MESSAGE(false, row.accumulator->name, ": got ", result, ", must be ", *row.d);
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
    {"V100", "fp16", "volta_fp16", "fp32"},       {"V100", "fp16", "volta_fp16_acc16", "fp16"},
    {"A100", "fp16", "ampere_fp16", "fp32"},      {"A100", "fp16", "ampere_fp16_acc16", "fp16"},
    {"A100", "bf16", "ampere_bf16", "fp32"},      {"A100", "tf32", "ampere_tf32", "fp32"},
    {"Ada", "fp16", "ada_fp16", "fp32"},          {"Ada", "fp16", "ada_fp16_acc16", "fp16"},
    {"Ada", "bf16", "ada_bf16", "fp32"},          {"Ada", "tf32", "ada_tf32", "fp32"},
    {"Ada", "E4M3", "ada_fp8", "fp32"},           {"Ada", "E4M3", "ada_fp8_acc16", "fp16"},
    {"Ada", "E5M2", "ada_fp8", "fp32"},           {"Ada", "E5M2", "ada_fp8_acc16", "fp16"},
    {"H100", "fp16", "hopper_fp16", "fp32"},      {"H100", "fp16", "hopper_fp16_acc16", "fp16"},
    {"H100", "bf16", "hopper_bf16", "fp32"},      {"H100", "tf32", "hopper_tf32", "fp32"},
    {"H100", "E4M3", "hopper_fp8", "fp32", true}, {"H100", "E4M3", "hopper_fp8_mma_acc16", "fp16"},
    {"H100", "E5M2", "hopper_fp8", "fp32", true}, {"H100", "E5M2", "hopper_fp8_mma_acc16", "fp16"},
};

const Format& recorded_format(const std::string& name) {
  if (name == "E4M3") return find_format("fp8_e4m3");
  if (name == "E5M2") return find_format("fp8_e5m2");
  return find_format(name);
}

}  // namespace

TEST_CASE("dot: every settled row of mma_vectors.csv") {
  if (!fs::exists(kVectors)) {
    MESSAGE("skipped: no mma_vectors.csv beside the repository");
    return;
  }
  Count count;
  check_rows(/*uncertain=*/false, count);
  MESSAGE("mma_vectors.csv: ", count.rows, " rows, ", count.wrong, " mismatches");
  CHECK(count.rows > 700);
}

TEST_CASE("dot: the uncertain rows under the default switches") {
  if (!fs::exists(kVectors)) {
    MESSAGE("skipped: no mma_vectors.csv beside the repository");
    return;
  }
  Count count;
  check_rows(/*uncertain=*/true, count);
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
      wrong_here += same_result(result, decode_line(d[i], 2)[0]) ? 0 : 1;
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
