// Tests the GPU checks without a GPU: layouts against the PTX ISA's tables, the device's model
// against the host's definition, and the whole check on software instead of silicon, right and
// wrong.
#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "emulation/verify/hardware_units.h"
#include "emulation/verify/nvidia/nvidia_check.h"
#include "tests/emulation/verify/software_mma.h"
#include "tests/support/folders.h"

namespace lockstep {
namespace {

using mma::Family;
using mma::Instruction;
using mma::Pattern;
using mma::Shape;
using mma::Type;

constexpr int kCapabilities[] = {75, 80, 89, 90, 100, 120};
constexpr Pattern kPatterns[] = {Pattern::kAnyBits,      Pattern::kNearOne,     Pattern::kWindow,
                                 Pattern::kSubnormal,    Pattern::kCancelPairs, Pattern::kSpecials,
                                 Pattern::kZeroProducts, Pattern::kUnderflow,   Pattern::kFloorTies,
                                 Pattern::kCancelAddend, Pattern::kOverflow,    Pattern::kIntegers};

SoftwareMma faithful(int capability) {
  return {capability, [capability](const Instruction& i) { return nvidia_model(capability, i); }};
}

// Silicon whose answer to one question differs, where the question applies.
SoftwareMma stubborn(int capability, const std::string& question) {
  return {capability, [=](const Instruction& i) {
            const auto others = alternative_models(capability, i, question);
            return others.empty() ? nvidia_model(capability, i) : others.front();
          }};
}

constexpr uint64_t kFewCases = 3'000;

}  // namespace

TEST_CASE("mma layout: registers hold the elements of the ISA's tables") {
  int64_t elements = 0;
  for (const Instruction& instruction : mma::instructions()) {
    if (instruction.family != Family::kMmaSync) continue;
    const Shape& shape = instruction.shape;
    const int bits = mma::bits_of(shape.a), per_word = mma::kWordBits / bits;
    const int b_registers = shape.row_words() / mma::kGroupWords;
    std::set<std::pair<int, int>> a_seen, b_seen, c_seen;
    CAPTURE(instruction.name());
    for (int lane = 0; lane < mma::kWarpLanes; ++lane) {
      for (int i = 0; i < 2 * b_registers * per_word; ++i) {
        const mma::WordPlace at = mma::a_word(lane, i / per_word);
        const ElementPlace isa = isa_a(shape, lane, i);
        CHECK(at.row == isa.row);
        CHECK(at.word * per_word + i % per_word == isa.column);
        a_seen.emplace(isa.row, isa.column);
      }
      for (int i = 0; i < b_registers * per_word; ++i) {
        const mma::WordPlace at = mma::b_word(lane, i / per_word);
        const ElementPlace isa = isa_b(shape, lane, i);
        CHECK(at.word * per_word + i % per_word == isa.row);
        CHECK(at.row == isa.column);
        b_seen.emplace(isa.row, isa.column);
      }
      for (int i = 0; i < 4; ++i) {
        const mma::WordPlace at = mma::c_word(lane, shape.halves ? i / 2 : i, shape.halves);
        const ElementPlace isa = isa_c(lane, i);
        CHECK(at.row == isa.row);
        CHECK((shape.halves ? at.word * 2 + i % 2 : at.word) == isa.column);
        c_seen.emplace(isa.row, isa.column);
      }
    }
    CHECK(a_seen.size() == static_cast<size_t>(shape.m * shape.k));
    CHECK(b_seen.size() == static_cast<size_t>(shape.n * shape.k));
    CHECK(c_seen.size() == static_cast<size_t>(shape.outputs()));
    elements += static_cast<int64_t>(a_seen.size() + b_seen.size() + c_seen.size());
  }
  CHECK(elements > 10'000);
}

TEST_CASE("mma layout: core matrices and the descriptor's fields") {
  // Row 9, bytes 16-19 of k: second 8 rows (256), second 16 bytes (128), second row (16).
  CHECK(mma::core_matrix_word(9, 4) * 4 == 256 + 128 + 16);
  CHECK(mma::core_matrix_word(0, 3) * 4 == 12);
  constexpr int kRows = 64;
  std::set<int> seen;
  for (int row = 0; row < kRows; ++row) {
    for (int word = 0; word < mma::kWgmmaWords; ++word) {
      seen.insert(mma::core_matrix_word(row, word));
    }
  }
  CHECK(seen.size() == kRows * mma::kWgmmaWords);
  CHECK(*seen.rbegin() == kRows * mma::kWgmmaWords - 1);

  const uint64_t descriptor = mma::matrix_descriptor(0x2a450);
  CHECK((descriptor & 0x3fff) == 0x2a45);
  CHECK((descriptor >> 16 & 0x3fff) == 128 / 16);
  CHECK((descriptor >> 32 & 0x3fff) == 256 / 16);
  CHECK((descriptor >> 46) == 0);  // base offset 0, no swizzling
  CHECK((descriptor >> 14 & 3) == 0);
  CHECK((descriptor >> 30 & 3) == 0);
}

TEST_CASE("mma model: every code decodes as its format does") {
  for (const Type type : {Type::kFp16, Type::kBf16, Type::kTf32, Type::kE4m3, Type::kE5m2}) {
    const Format& format = find_format(mma::format_name(type));
    const BlockEncoding encoding = mma::encoding_of(type);
    const bool is_tf32 = type == Type::kTf32;
    const uint32_t codes = uint32_t{1} << format.storage_bits();
    CAPTURE(format.name);
    int64_t wrong = 0;
    for (uint32_t code = 0; code < codes; ++code) {
      constexpr uint32_t kIgnored = 0x1abc;  // any low bits
      const BlockFactor f = decode_bits(is_tf32 ? code << 13 | kIgnored : code, encoding);
      const double value = decode(code, format);
      const bool same =
          std::isnan(value) ? f.what == BlockFactor::Class::kNan
          : std::isinf(value)
              ? f.what == BlockFactor::Class::kInfinite && f.negative == std::signbit(value)
              : f.what == BlockFactor::Class::kFinite && f.negative == std::signbit(value) &&
                    std::ldexp(f.significand, f.exponent - format.precision + 1) ==
                        std::fabs(value) &&
                    f.exponent >= format.emin;
      wrong += same ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("mma model: the device's source equals the host's definition on every pattern") {
  int64_t cases = 0;
  for (const int capability : kCapabilities) {
    for (const Instruction& instruction : mma::instructions()) {
      if (!instruction.runs_on(capability)) continue;
      const Shape& shape = instruction.shape;
      auto models = alternative_models(capability, instruction);
      models.insert(models.begin(), nvidia_model(capability, instruction));
      for (const Pattern pattern : kPatterns) {
        const mma::CaseStream stream{.seed = 7, .only_one = true, .pattern = pattern};
        const mma::TileBatch tiles = make_tiles(stream, models[0].rule, shape, 0, 1);
        int64_t wrong = 0;
        for (const NvidiaModel& model : models) {
          // One row and one column: all of both operands' patterns.
          for (int place = 0; place < shape.m + shape.n; ++place) {
            const int row = place < shape.m ? place : 0;
            const int column = place < shape.m ? place % shape.n : place - shape.m;
            const uint32_t start = mma::tile_addend(shape, tiles.tile(0), row, column);
            const uint32_t device =
                mma::tile_dot(model.rule, shape, tiles.tile(0), row, column, start);
            const uint32_t host = host_result(model, tiles, 0, row, column, start);
            wrong += device == host ? 0 : 1;
            ++cases;
          }
        }
        CAPTURE(instruction.name());
        CAPTURE(capability);
        CAPTURE(static_cast<int>(pattern));
        CHECK(wrong == 0);
      }
    }
  }
  CHECK(cases > 50'000);
}

TEST_CASE("mma model: instructions that compilers build from others have the rows that say how") {
  int wmma = 0, fp8 = 0;
  for (const int capability : kCapabilities) {
    for (const Instruction& instruction : mma::instructions()) {
      if (!instruction.runs_on(capability)) continue;
      CAPTURE(capability);
      CAPTURE(instruction.name());
      const NvidiaModel model = nvidia_model(capability, instruction);
      if (instruction.family == Family::kWmma && instruction.shape.a == Type::kTf32) {
        ++wmma;
        CHECK(model.rule.block.length == 4);
        CHECK(model.name.ends_with("_wmma") == (capability >= 90));
      } else if (instruction.family == Family::kMmaSync && instruction.shape.a == Type::kE4m3) {
        ++fp8;
        CHECK((model.name.find("_fp8_mma") != std::string::npos) ==
              (capability == 90 || capability == 100));
      } else {
        CHECK(!model.name.ends_with("_wmma"));
      }
    }
  }
  CHECK(wmma == 5);
  CHECK(fp8 > 0);
}

TEST_CASE("mma cases: a probe's tiles separate every answer from the default") {
  constexpr int64_t kTiles = 12;
  for (const int capability : {80, 89, 90, 120}) {
    for (const NvidiaProbe& probe : nvidia_probes()) {
      std::map<std::string, int64_t> differ;  // by the answer, over all instructions
      for (const Instruction& instruction : mma::instructions()) {
        if (!instruction.runs_on(capability)) continue;
        const Shape& shape = instruction.shape;
        const NvidiaModel model = nvidia_model(capability, instruction);
        const mma::CaseStream stream{.seed = 3, .only_one = true, .pattern = probe.pattern};
        const mma::TileBatch tiles = make_tiles(stream, model.rule, shape, 0, kTiles);
        for (const NvidiaModel& other :
             alternative_models(capability, instruction, probe.question)) {
          int64_t differ_here = 0;
          for (int64_t place = 0; place < kTiles * shape.outputs(); ++place) {
            const mma::Tile tile = tiles.tile(place / shape.outputs());
            const int row = static_cast<int>(place % shape.outputs()) / shape.n;
            const int column = static_cast<int>(place % shape.outputs()) % shape.n;
            const uint32_t start = mma::tile_addend(shape, tile, row, column);
            differ_here += mma::tile_dot(model.rule, shape, tile, row, column, start) !=
                           mma::tile_dot(other.rule, shape, tile, row, column, start);
          }
          differ[other.choice] += differ_here;
          // Zeros of every format test it, if the sum has room below them and the addend is part of
          // the block.
          const bool asks = !shape.halves && model.rule.block.promotion_interval == 0;
          CAPTURE(instruction.name());
          CAPTURE(other.choice);
          if (probe.question == "U2" && asks) CHECK(differ_here > 0);
        }
      }
      CAPTURE(capability);
      for (const auto& [choice, count] : differ) {
        CAPTURE(choice);
        CHECK(count > 0);
      }
      CHECK((!differ.empty() || probe.question == "U4"));
    }
  }
}

TEST_CASE("mma check: software that follows the models passes everything") {
  for (const int capability : {80, 90}) {
    SoftwareMma device = faithful(capability);
    const VerifyOptions options{.seed = 5, .gpu_cases = kFewCases};
    CAPTURE(capability);
    const UnitResult layouts = check_layouts(device, options);
    CHECK_MESSAGE(layouts.mismatches == 0, layouts.first_mismatch);
    CHECK(layouts.edge_cases > 0);
    for (const NvidiaUnit& unit : nvidia_units()) {
      if (!unit.instructions.front().runs_on(capability)) continue;
      const UnitResult result = check_unit(device, unit, options);
      CHECK_MESSAGE(result.mismatches == 0, unit.unit, " ", unit.instruction, ": ",
                    result.first_mismatch);
      CHECK(result.random_cases >= kFewCases);
    }
  }
}

TEST_CASE("mma check: silicon that follows another rule is detected and the rule is named") {
  const VerifyOptions options{.seed = 5, .gpu_cases = kFewCases};
  for (const NvidiaProbe& probe : nvidia_probes()) {
    SoftwareMma device = stubborn(90, std::string(probe.question));
    const UnitResult result = check_probe(device, probe, options);
    CAPTURE(probe.question);
    CHECK(result.mismatches > 0);
    CHECK(result.first_mismatch != "");
    const std::string other = probe.question == kTf32Question ? "nearest_away"
                              : probe.question == "U1"        ? "negative_zero"
                              : probe.question == "U2"        ? "count_zero_products"
                              : probe.question == "U3"        ? "mmasim_floor"
                                                              : "one_block";
    CHECK_MESSAGE(result.note.find(other + ": 0 of") != std::string::npos, result.note);
  }
  // A whole unit names the rule with the fewest different results.
  SoftwareMma device = stubborn(90, "U2");
  const UnitResult result = check_unit(device, nvidia_units().front(), options);
  CHECK(result.mismatches > 0);
  CHECK_MESSAGE(result.note.starts_with("fewest under count_zero_products: 0"), result.note);
}

TEST_CASE("mma check: operands in the wrong place fail the layout check") {
  SoftwareMma device = faithful(90);
  device.misplaces_a = true;
  const UnitResult result = check_layouts(device, {});
  CHECK(result.mismatches > 0);
  CHECK(result.first_mismatch.starts_with("wgmma"));
}

TEST_CASE("mma check: vectors of the file are multiplied and checked") {
  const auto path = std::filesystem::path(testing::kSourceFolder) / ".." / "shared" / "reference" /
                    "mma_vectors.csv";
  if (!std::filesystem::exists(path)) {
    MESSAGE("SKIPPED: 1 vector file: no mma_vectors.csv next to the repository");
    return;
  }
  SoftwareMma device = faithful(90);
  const VerifyOptions options{.gpu_cases = 512, .vectors = path.string()};
  uint64_t vectors = 0;
  for (const NvidiaUnit& unit : nvidia_units()) {
    const UnitResult result = check_unit(device, unit, options);
    CHECK_MESSAGE(result.mismatches == 0, result.first_mismatch);
    vectors += result.edge_cases;
  }
  CHECK(vectors > 300);
  for (const NvidiaProbe& probe : nvidia_probes()) {
    const UnitResult result = check_probe(device, probe, options);
    CAPTURE(probe.question);
    CHECK(result.mismatches == 0);
    if (!probe.tag.empty()) CHECK_MESSAGE(result.edge_cases > 0, result.note);
  }
}

TEST_CASE("nvidia units: every instruction is in one row, and rows without a GPU say why") {
  size_t instructions = 0;
  for (const NvidiaUnit& unit : nvidia_units()) instructions += unit.instructions.size();
  CHECK(instructions == mma::instructions().size());
  std::string why_not;
  const mma::Device* device = mma::cuda_device(&why_not);
  CHECK((device != nullptr) == why_not.empty());
  size_t rows = 0;
  for (const HardwareUnit& row : hardware_units()) {
    if (row.group != kNvidiaGroup) continue;
    ++rows;
    std::string reason;
    if (!row.available(&reason)) CHECK(!reason.empty());
  }
  CHECK(rows == 1 + nvidia_units().size() + nvidia_probes().size());
}

}  // namespace lockstep
