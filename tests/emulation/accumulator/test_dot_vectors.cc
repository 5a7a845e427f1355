// Do the models give the hardware's results? Compares every row of the vector files and of the
// recorded GPU outputs next to the repository, bit for bit. If they are absent, the case is skipped
// and the test counter reports it.
#include <doctest/doctest.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "emulation/accumulator/dot_vectors.h"
#include "emulation/format/rounding.h"
#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "tests/support/folders.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
const fs::path kShared = fs::path(testing::kSourceFolder) / ".." / "shared";
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
    // NaN rows too: the chips have one NaN, 7fffffff or 7fff.
    REQUIRE(row.d_word.has_value());
    // The file has MMA-Sim's -0 where a sum underflows; an H100 gave +0 for these operands.
    const uint32_t want = row.tag.starts_with("probe_neg_underflow") ? 0 : *row.d_word;
    if (same_word(result_word(result, *row.accumulator), want, *row.accumulator)) continue;
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
    {"H100", "bf16", "hopper_bf16", "fp32"},      {"H100", "tf32", "hopper_tf32_wmma", "fp32"},
    {"H100", "E4M3", "hopper_fp8", "fp32", true}, {"H100", "E4M3", "hopper_fp8_mma_acc16", "fp16"},
    {"H100", "E5M2", "hopper_fp8", "fp32", true}, {"H100", "E5M2", "hopper_fp8_mma_acc16", "fp16"},
};

const Format& recorded_format(const std::string& name) {
  if (name == "E4M3") return find_format("fp8_e4m3");
  if (name == "E5M2") return find_format("fp8_e5m2");
  return find_format(name);
}

// A recording's operands under an accumulator.
Count replay(const fs::path& folder, const Recording& r, const Accumulator& accumulator) {
  const fs::path place = folder / r.gpu / r.format;
  const auto file = [&](const std::string& what, const std::string& kind) {
    return read_gzip_lines(place / (what + "_" + r.gpu + "_" + kind + ".txt.gz"));
  };
  const auto a = file("a", r.format), b = file("b", r.format), d = file("d", r.result);
  const auto c = r.starts_from_zero ? std::vector<std::string>() : file("c", "fp32");
  const Format& format = recorded_format(r.format);
  REQUIRE(a.size() == d.size());
  REQUIRE(b.size() == d.size());
  REQUIRE((r.starts_from_zero || c.size() == d.size()));
  Count count;
  count.rows = static_cast<int64_t>(d.size());
  for (size_t i = 0; i < d.size(); ++i) {
    const auto x = decode_line(a[i], 16), y = decode_line(b[i], 16);
    const double start =
        r.starts_from_zero ? 0.0
                           : round_to_format(decode_line(c[i], 2)[0], *accumulator.register_format,
                                             Rounding::kNearestEven);
    const DotOperands<float> operands{x.data(), y.data(), static_cast<int64_t>(x.size()), &format,
                                      &format};
    const double result = accumulate_dot(accumulator, operands, start);
    count.wrong += same_result(result, decode_line(d[i], 2)[0]) ? 0 : 1;
  }
  return count;
}

}  // namespace

TEST_CASE("dot: every settled row of mma_vectors.csv") {
  if (!fs::exists(kVectors)) {
    MESSAGE("SKIPPED: 1 vector file: no mma_vectors.csv next to the repository");
    return;
  }
  Count count;
  check_rows(/*uncertain=*/false, count);
  MESSAGE("mma_vectors.csv: ", count.rows, " rows, ", count.wrong, " mismatches");
  CHECK(count.rows == 766);
}

TEST_CASE("dot: the uncertain rows under the default switches") {
  if (!fs::exists(kVectors)) {
    MESSAGE("SKIPPED: 1 vector file: no mma_vectors.csv next to the repository");
    return;
  }
  Count count;
  check_rows(/*uncertain=*/true, count);
  CHECK(count.rows == 53);
}

TEST_CASE("dot: every row of every recording") {
  const fs::path folder = kShared / "data" / "tensor-core-recordings";
  if (!fs::exists(folder)) {
    MESSAGE("SKIPPED: 22 recordings: no tensor-core-recordings next to the repository");
    return;
  }
  int recordings = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("d_") || !name.ends_with(".txt.gz")) continue;
    ++recordings;
    const bool is_read =
        std::any_of(std::begin(kRecordings), std::end(kRecordings), [&](const Recording& r) {
          const std::string file = std::string("d_") + r.gpu + "_" + r.result + ".txt.gz";
          return entry.path() == folder / r.gpu / r.format / file;
        });
    CHECK_MESSAGE(is_read, "a recording that no test reads: ", entry.path().string());
  }
  CHECK(recordings == std::size(kRecordings));

  int64_t total = 0, wrong = 0;
  for (const Recording& r : kRecordings) {
    const Count count = replay(folder, r, find_accumulator(r.accumulator));
    CAPTURE(r.gpu);
    CAPTURE(r.format);
    CAPTURE(r.accumulator);
    CHECK(count.wrong == 0);
    total += count.rows;
    wrong += count.wrong;
  }
  MESSAGE("tensor-core-recordings: ", total, " rows, ", wrong, " mismatches");
  constexpr int64_t kRows = 5000;
  CHECK(total == static_cast<int64_t>(std::size(kRecordings)) * kRows);
}

TEST_CASE("dot: recordings of TF32 with K = 4 fit blocks of 8 as well as WMMA's blocks of 4") {
  const fs::path folder = kShared / "data" / "tensor-core-recordings";
  if (!fs::exists(folder)) {
    MESSAGE("SKIPPED: 22 recordings: no tensor-core-recordings next to the repository");
    return;
  }
  const Recording recording = {"H100", "tf32", "hopper_tf32", "fp32"};
  CHECK(find_accumulator("hopper_tf32").block.length == 8);
  CHECK(replay(folder, recording, find_accumulator("hopper_tf32")).wrong == 0);
}

TEST_CASE("accumulators: every row called recorded has a recording, and README counts those rows") {
  int rows = 0, recorded = 0;
  for (const Accumulator& row : accumulators()) {
    if (row.kind != AccumulatorKind::kAlignedBlocks) continue;
    ++rows;
    const bool is_recorded =
        std::any_of(std::begin(kRecordings), std::end(kRecordings),
                    [&](const Recording& r) { return row.name == r.accumulator; });
    CAPTURE(row.name);
    CHECK(is_recorded == !row.evidence.recorded.empty());
    CHECK(row.evidence.text() != "definition");
    recorded += is_recorded ? 1 : 0;
  }
  const std::string readme = read_text_file(testing::kSourceFolder + std::string("/README.md"));
  const std::string claim =
      std::to_string(recorded) + " of " + std::to_string(rows) + " tensor-core rows";
  CHECK_MESSAGE(readme.find(claim) != std::string::npos, "README.md must say: ", claim);
}

TEST_CASE("dot: recordings show F unless a row's evidence leaves it to a simulator or a check") {
  const fs::path folder = kShared / "data" / "tensor-core-recordings";
  if (!fs::exists(folder)) {
    MESSAGE("SKIPPED: 22 recordings: no tensor-core-recordings next to the repository");
    return;
  }
  for (const Recording& r : kRecordings) {
    const Accumulator& row = find_accumulator(r.accumulator);
    int64_t fewest = std::numeric_limits<int64_t>::max();
    for (const int change : {-1, 1}) {
      Accumulator other = row;
      other.block.fraction_bits += change;
      fewest = std::min(fewest, replay(folder, r, other).wrong);
    }
    MESSAGE(row.name, ", factors ", std::string(r.format), ": ", fewest,
            " of 5000 results differ with F one bit off");
    CAPTURE(row.name);
    constexpr int64_t kFew = 50;
    const bool is_left = row.evidence.simulated.find("F, ") != std::string::npos;
    // What no recording shows, `verify --hardware` on the chip may have shown.
    const bool is_verified = row.evidence.reported.find("verify --hardware") != std::string::npos;
    if (is_left) {
      CHECK(fewest < kFew);
    } else if (!is_verified) {
      CHECK(fewest >= kFew);
    }
  }
}

TEST_CASE("dot: the uncertain rows under the other options") {
  if (!fs::exists(kVectors)) {
    MESSAGE("SKIPPED: 1 vector file: no mma_vectors.csv next to the repository");
    return;
  }
  constexpr double kSmallestFp16 = 0x1p-24, kSmallestFp32 = 0x1p-149;
  std::map<std::string, int> seen;
  const auto check = [&](const DotVector& row, const std::string& option, double want) {
    CAPTURE(row.id);
    CAPTURE(row.tag);
    CAPTURE(option);
    const double got = accumulate_dot(find_accumulator(row.accumulator->name + "+" + option),
                                      row.operands(), row.c);
    CHECK_MESSAGE(same_result(got, want), "got ", got, ", must be ", want);
    ++seen[option];
  };
  for (const DotVector& row : read_dot_vectors(kVectors.string(), {})) {
    if (row.confidence != "uncertain") continue;
    const BlockSpec& block = row.accumulator->block;
    // The file has MMA-Sim's -0, an H100 gives +0.
    if (row.tag.starts_with("probe_neg_underflow")) check(row, "negative_zero", *row.d);
    if (row.tag.starts_with("probe_zero_product")) {
      // 0 * 2^15 has exponent emin + 15 = 1: only with F = 25 does a grid of 2^(1 - F) keep 2^-24.
      // It cuts off the 2^-25 that made the sum 2^-23.
      const bool is_sum = row.tag.find("2^15+2^-25") != std::string::npos;
      check(row, "count_zero_products", is_sum && block.fraction_bits == 25 ? kSmallestFp16 : 0);
      // 0 * 2^15 has exponent -126 + 15, 0 * 2^100 has -126 + 100: above the addend 2^-149.
      check(row, "mmasim_zero", row.tag.find("0*2^100") != std::string::npos ? 0 : *row.d);
    }
    if (row.tag.starts_with("probe_floor_A")) {
      check(row, "mmasim_floor", 0);
      // Eight products make the smallest number in one block, but four only half of it.
      check(row, "no_floor", block.length >= 8 ? kSmallestFp32 : 0);
    }
    if (row.tag.starts_with("probe_floor_B")) {
      check(row, "mmasim_floor", kSmallestFp32);
      check(row, "no_floor", 0);
    }
    if (row.tag.starts_with("probe_floor_C")) {
      check(row, "mmasim_floor", kSmallestFp16);  // -126 is below every FP16 product
      check(row, "no_floor", kSmallestFp16);
    }
  }
  for (const char* option :
       {"negative_zero", "count_zero_products", "mmasim_zero", "mmasim_floor", "no_floor"}) {
    CHECK(seen[option] > 5);
  }
}

TEST_CASE("dot: the blocks of the table are those of mma_vectors.csv") {
  if (!fs::exists(kVectors)) {
    MESSAGE("SKIPPED: 1 vector file: no mma_vectors.csv next to the repository");
    return;
  }
  const std::vector<DotVector> rows = read_dot_vectors(kVectors.string(), {});
  const std::vector<std::string> lines = split(read_text_file(kVectors.string()), '\n');
  const std::vector<std::string> header = split(lines[0], ',');
  const auto column = [&](const std::string& line, const char* name) {
    const auto at = std::find(header.begin(), header.end(), name) - header.begin();
    return split(line, ',')[static_cast<size_t>(at)];
  };
  const std::map<std::string, BlockOutput> outputs = {{"F32_RZ", BlockOutput::kFp32TowardZero},
                                                      {"E8M13_RZ", BlockOutput::kE8m13TowardZero},
                                                      {"F16_RNE", BlockOutput::kFp16NearestEven}};
  REQUIRE(lines.size() > rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string& line = lines[i + 1];
    REQUIRE(column(line, "id") == rows[i].id);
    const BlockSpec& block = rows[i].accumulator->block;
    CAPTURE(rows[i].id);
    CHECK(block.length == std::stoi(column(line, "L")));
    CHECK(block.fraction_bits == std::stoi(column(line, "F")));
    CHECK((block.output == outputs.at(column(line, "out"))));
    const int floor = std::stoi(column(line, "E_floor"));
    constexpr int kNone = -999;
    CHECK(block.exponent_floor == (floor == kNone ? BlockSpec::kNoFloor : floor));
  }
}

namespace {

// A vector file that lives as long as the object.
class VectorFile {
 public:
  explicit VectorFile(const std::string& text)
      : path_((fs::temp_directory_path() /
               ("lockstep_vectors_" + std::to_string(reinterpret_cast<uintptr_t>(this)) + ".csv"))
                  .string()) {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~VectorFile() { fs::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::vector<std::string> problems_of(const std::string& text,
                                     const DotVectorOptions& options = {}) {
  const VectorFile file(text);
  try {
    read_dot_vectors(file.path(), options);
  } catch (const InputError& error) {
    return error.problems();
  }
  return {};
}

void check_problem(const std::string& text, const std::string& part,
                   const DotVectorOptions& options = {}) {
  CAPTURE(text);
  const std::vector<std::string> problems = problems_of(text, options);
  REQUIRE(problems.size() == 1);
  CAPTURE(problems[0]);
  CHECK(problems[0].find(part) != std::string::npos);
}

const std::string kHeader = "arch,instr,type_ab,acc,a,b,c,d\n";

}  // namespace

TEST_CASE("vector files: names of hardware, types and instructions") {
  const VectorFile file("\xEF\xBB\xBF" + kHeader +
                        "rtx-blackwell,mma.sync,f16,f32,3c00, 0x3C00 ,,3f800000\r\n"
                        "\n"
                        "hopper,mma.sync.m16n8k32,e4m3,f16,38 38,38 38,3c00,\n"
                        "hopper,wgmma.k32,fp8_e5m2,fp32,3c,3c,3f800000,40000000\n"
                        "ada,mma.sync.m16n8k32,e5m2,f32,3c,3c,,3f800000");
  const std::vector<DotVector> rows = read_dot_vectors(file.path(), {});
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].accumulator == &find_accumulator("rtx_blackwell_fp16"));
  CHECK(rows[0].id == "line 2");
  CHECK(rows[0].c == 0);
  CHECK(rows[0].d == 1.0);
  CHECK(rows[1].accumulator == &find_accumulator("hopper_fp8_mma_acc16"));
  CHECK(rows[1].a == std::vector<float>{1, 1});
  CHECK(!rows[1].d.has_value());
  CHECK(rows[1].id == "line 4");
  CHECK(rows[2].accumulator == &find_accumulator("hopper_fp8"));
  CHECK(rows[3].accumulator == &find_accumulator("ada_fp8"));
  for (const DotVector& row : rows) {
    const double got = accumulate_dot(*row.accumulator, row.operands(), row.c);
    CHECK(same_result(got, row.d.value_or(3)));
  }
}

TEST_CASE("vector files: what is refused, line by line") {
  const std::string good = "hopper,wgmma,f16,f32,3c00,3c00,,\n";
  CHECK(problems_of(kHeader + good).empty());
  check_problem(kHeader + "hopper,wgmma,f16,f32,3c00,3c00,\n", "line 2: has 7 cells");
  check_problem(kHeader + "hopper,wgmma,f16,f32,3cg0,3c00,,\n", "line 2: a: word '3cg0'");
  check_problem(kHeader + good + "hopper,wgmma,f16,f32,3c00,13c00,,\n", "line 3: b: word '13c00'");
  check_problem(kHeader + "hopper,wgmma,f16,f16,3c00,3c00,3f800000,\n", "c: word '3f800000'");
  check_problem(kHeader + "hopper,wgmma,f16,f32,3c00 3c00,3c00,,\n", "a has 2 words and b 1");
  check_problem(kHeader + "hopper,wgmma,f16,f32,,,,\n", "a and b are empty");
  check_problem(kHeader + "hopper,wgmma,f16,f32,3c00,3c00,00000000 00000000,\n",
                "must be one word each");
  check_problem(kHeader + "hopper,wgmma,f61,f32,3c00,3c00,,\n", "f61");
  check_problem(kHeader + "hopper,wgmma,f16,bf16,3c00,3c00,,\n", "acc 'bf16': must be f16 or f32");
  check_problem(kHeader + "hoper,wgmma,f16,f32,3c00,3c00,,\n", "did you mean 'hopper'?");
  check_problem(kHeader + "volta,mma,bf16,f32,3f80,3f80,,\n", "'volta_bf16'");
  check_problem(kHeader, "has no rows");
  // A word cut at the end of a file; instructions that the arch does not have, or unknown ones.
  check_problem(kHeader + "hopper,wgmma,f16,f32,3c00,3c00,,3f8000", "has 6 hexadecimal digits");
  check_problem(kHeader + "hopper,rubbish,e4m3,f32,38,38,,\n", "instr 'rubbish': unknown");
  check_problem(kHeader + "hopper,,f16,f32,3c00,3c00,,\n", "instr '': unknown");
  check_problem(kHeader + "blackwell,mxf8f6f4,e4m3,f32,38,38,,\n", "scaled and sparse");
  check_problem(kHeader + "ada,mma.sp.m16n8k32,f16,f32,3c00,3c00,,\n", "scaled and sparse");
  check_problem(kHeader + "ada,wgmma.k32,e4m3,f32,38,38,,\n", "hopper has wgmma, not ada");
  check_problem(kHeader + "hopper,wmma,e4m3,f32,38,38,,\n", "wmma takes no factors in fp8_e4m3");
  check_problem(kHeader + "hopper,mma/wgmma,e4m3,f32,38,38,,\n", "sum fp8_e4m3 differently");
  const std::string mixed = "arch,instr,type_a,type_b,acc,a,b\n";
  check_problem(mixed + "hopper,wgmma,f16,bf16,f32,3c00,3f80\n", "only FP8 formats can be mixed");
  check_problem("arch,instr,type_ab,type_a,type_b,acc,a,b\n", "say the same thing");
  check_problem("", "must have a header line");
  const DotVectorOptions volta{.accumulator = &find_accumulator("volta_fp16")};
  check_problem(kHeader + "x,x,bf16,x,3f80,3f80,,\n", "volta_fp16 takes no factors in bf16", volta);

  CHECK(problems_of("c,d\n").size() == 6);  // a, b, type_ab, arch, instr, acc
  const DotVectorOptions told{.accumulator = &find_accumulator("volta_fp16"),
                              .a_format = &find_format("fp16"),
                              .b_format = &find_format("fp16")};
  CHECK(problems_of("c,d\n", told).size() == 2);
  CHECK(problems_of("a,b\n3c00,3c00\n", told).empty());

  // Two problems in one line, one in another: all are listed.
  CHECK(problems_of(kHeader + "hopper,wgmma,f16,f32,x,y,,\n" + good +
                    "hopper,wgmma,f16,f32,3c00,,,\n")
            .size() == 3);
  std::string many = kHeader;
  for (int i = 0; i < 30; ++i) many += "hopper,wgmma,f16,f32,x,3c00 3c00,,\n";
  const std::vector<std::string> told_problems = problems_of(many);
  REQUIRE(told_problems.size() == 21);
  CHECK(told_problems.back().find("... and more") != std::string::npos);
}

// Operands for which the models gave another word before a chip had answered: the sign of an
// underflowed sum, and E4M3 subnormals that mma.sync reads as FP16 numbers.
TEST_CASE("dot: what an H100 answered, `lockstep verify --hardware` on 2026-11-26") {
  const VectorFile file(
      "arch,instr,type_a,type_b,acc,a,b,c,d\n"
      "hopper,mma.m16n8k16,fp16,fp16,f16,0544 02ae 8b91 0aac 8a96 08c3 823e 076b 8999 0420 "
      "0117 07e7 8438 809f 803a 0715,8182 89c2 872a 02d2 8b53 8ada 0709 0657 063a 0718 8049 "
      "8be3 09c8 0444 80b9 81e0,0000,0000\n"
      "hopper,mma.m16n8k16,bf16,bf16,f32,a7fc 279d 26cf 268d a77a 26f4 26ea a75e 276a 27ba "
      "a7f3 a7ac 27af a6ff a709 26ff,0c15 8cf9 8cad 8c05 0d3e 8cd0 0d41 0c19 0c31 8cdb 8d3a "
      "8cc0 8c26 8d38 8c7c 8cd0,80000000,00000000\n"
      "hopper,mma.m16n8k8,tf32,tf32,f32,a7924dfc 27bf6a1d 26890e4f 26eb4f0d a755bc7a 26ee36f4 "
      "2693c86a a77548de,8c0de5bc 0c6bfaf0 8c88dde9 0c227fb0 8c2e461a 8d615a9e 0d75f214 "
      "0d0d0320,80000000,00000000\n"
      "hopper,mma.m16n8k32,e4m3,e5m2,f32,31 c7 c6 39 be bb 44 3c b7 31 b2 33 be b6 b5 bd bb 46 "
      "33 36 01 36 c2 bd c0 32 35 45 b1 3f 31 bd,81 3c 3c 43 bc 3c bf 38 b8 bf 3d be c1 c1 43 "
      "42 3c 39 ba 3a 7b bb c1 bf 3b 40 c2 bb c3 c3 c0 3b,3f74b788,42c4c96e\n"
      "hopper,mma.m16n8k32,e4m3,e5m2,f16,00 83 00 06 00 00 07 00 00 00 00 01 00 03 08 04 00 03 "
      "03 83 00 00 02 00 00 01 08 04 00 80 00 00,00 02 83 03 82 81 02 83 02 82 01 81 81 00 00 "
      "01 81 81 01 01 03 00 82 02 02 83 83 01 02 00 82 82,8000,0000\n"
      "hopper,wmma.m16n16k8,tf32,tf32,f32,a7924dfc 27bf6a1d 26890e4f 26eb4f0d a755bc7a "
      "26ee36f4 2693c86a a77548de,8cd7cdae 8c3e5129 0c5c8fe3 0cf21392 0ce5370d 0c64adc1 "
      "8c2ab182 8c72a9ca,80000000,00000000\n"
      "hopper,wgmma.k32,e4m3,e5m2,f16,07 0c 83 82 01 8c 15 0b 95 00 0f 09 08 80 8b 0b 02 8f 03 "
      "90 92 8e 05 08 08 94 87 02 87 04 80 03,01 85 03 82 01 0b 84 08 07 03 06 88 0b 07 08 0b "
      "83 09 81 0a 85 85 0b 8a 09 8b 86 86 82 86 00 81,0000,0000\n"
      "hopper,mma.m16n8k32,e4m3,e5m2,f32,bb 07 07 d3 03 f8 03 5f 6a 01 5b 02 82 83 61 83 af 1c "
      "4b 07 86 81 81 0a 00 06 95 85 04 83 07 84,89 3d e8 3a 6f aa 02 bd 85 4f b4 8e 95 9e 83 "
      "13 44 5c 41 43 10 a2 9e 20 c9 ee 97 61 5e 6d 48 ea,3708e96f,c28cce73\n");
  const char* names[] = {"hopper_fp16_acc16", "hopper_bf16",          "hopper_tf32",
                         "hopper_fp8_mma",    "hopper_fp8_mma_acc16", "hopper_tf32_wmma",
                         "hopper_fp8_acc16",  "hopper_fp8_mma"};
  const std::vector<DotVector> rows = read_dot_vectors(file.path(), {});
  REQUIRE(rows.size() == std::size(names));
  for (size_t i = 0; i < rows.size(); ++i) {
    CAPTURE(i);
    CHECK(rows[i].accumulator->name == names[i]);
    const double result = accumulate_dot(*rows[i].accumulator, rows[i].operands(), rows[i].c);
    CHECK(result_word(result, *rows[i].accumulator) == *rows[i].d_word);
  }
}

TEST_CASE("vector files: FP8 mma and TF32 WMMA have rows of their own, formats may be mixed") {
  // 1 * 1 and 2^-24, which E8M13 cuts off and two blocks of 25 bits keep.
  const VectorFile file(
      "arch,instr,type_a,type_b,acc,a,b,c,d\n"
      "hopper,mma.m16n8k32,e4m3,e4m3,f32,38 08,38 08,,\n"
      "hopper,wgmma.k32,e4m3,e5m2,f32,38 01,3c 01,,\n"
      "hopper,wmma.m16n16k8,tf32,tf32,f32,3f800000,3f800000,,\n"
      "rtx_blackwell,wmma,tf32,tf32,f32,3f800000,3f800000,,\n"
      "ampere,wmma,tf32,tf32,f32,3f800000,3f800000,,\n"
      "hopper,mma/wgmma.k8,tf32,tf32,f32,3f800000,3f800000,,7fffffff\n");
  const std::vector<DotVector> rows = read_dot_vectors(file.path(), {});
  REQUIRE(rows.size() == 6);
  const char* names[] = {"hopper_fp8_mma",          "hopper_fp8",  "hopper_tf32_wmma",
                         "rtx_blackwell_tf32_wmma", "ampere_tf32", "hopper_tf32"};
  for (size_t i = 0; i < rows.size(); ++i) CHECK(rows[i].accumulator->name == names[i]);
  CHECK(rows[1].a_format->name == "fp8_e4m3");
  CHECK(rows[1].b_format->name == "fp8_e5m2");
  CHECK(rows[1].a == std::vector<float>{1, 0x1p-9f});
  CHECK(rows[1].b == std::vector<float>{1, 0x1p-16f});
  CHECK(rows[5].d_word == 0x7fffffffu);
}

TEST_CASE("result words: the chip's NaN if it has only one") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Accumulator &blocks = find_accumulator("hopper_fp16"),
                    &chain = find_accumulator("fp32_fused");
  CHECK(result_word(nan, blocks) == 0x7fffffff);
  CHECK(result_word(nan, find_accumulator("hopper_fp16_acc16")) == 0x7fff);
  CHECK(result_word(nan, find_accumulator("hopper_fp8_mma_acc16")) == 0x7fff);
  CHECK(result_word(nan, chain) == 0x7fc00000);
  CHECK(result_word(1, blocks) == 0x3f800000);
  CHECK_FALSE(same_word(0x7fffffff, 0x7fc00000, blocks));
  CHECK(same_word(0x7fffffff, 0x7fc00000, chain));
  CHECK_FALSE(same_word(0x7fffffff, 0x7f800000, chain));
}

TEST_CASE("vector files: words") {
  const Format &fp16 = find_format("fp16"), &tf32 = find_format("tf32"),
               &e2m1 = find_format("fp4_e2m1");
  CHECK(parse_word("3c00", fp16) == 0x3c00);
  CHECK(parse_word("0x3C00", fp16) == 0x3c00);
  CHECK(parse_word("0X3c00", fp16) == 0x3c00);
  CHECK(parse_word("00003c00", fp16) == 0x3c00);
  CHECK(parse_word("f", e2m1) == 0xf);
  CHECK(parse_word("3f800001", tf32) == 0x3f800001);  // a 32-bit register
  for (const char* bad : {"", "0x", "-1", "+1", "-0x1", "0x-1", "10000", "3c00 ", "0x0x1", "1.8"}) {
    CAPTURE(bad);
    CHECK_THROWS_WITH_AS(parse_word(bad, fp16), doctest::Contains("16 bits (fp16)"), InputError);
  }
  CHECK_THROWS_AS(parse_word("10", e2m1), InputError);
  CHECK_THROWS_AS(parse_word("100000000", tf32), InputError);
}

}  // namespace lockstep
