// Maps chips to hardware names, instructions to accumulators, and words to floats.
#include "emulation/verify/nvidia/nvidia_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <stdexcept>

#include "emulation/accumulator/dot.h"
#include "emulation/accumulator/dot_vectors.h"
#include "src/core/error.h"

namespace lockstep {
namespace {

using mma::Family;
using mma::Instruction;
using mma::Type;

bool is_fp8(Type type) {
  return type == Type::kE4m3 || type == Type::kE5m2;
}

std::string row_name(int capability, const Instruction& instruction) {
  const Hardware* hardware = hardware_of_capability(capability);
  if (hardware == nullptr) throw std::logic_error("row_name: no model of this chip");
  std::string name(hardware->name);
  std::replace(name.begin(), name.end(), '-', '_');
  const Type type = instruction.shape.a;
  name += is_fp8(type) ? "_fp8" : "_" + std::string(mma::format_name(type));
  if (is_fp8(type) && instruction.family == Family::kMmaSync && hardware->emulates_fp8_mma) {
    name += "_mma";
  }
  if (type == Type::kTf32 && instruction.family == Family::kWmma && hardware->splits_tf32_wmma) {
    name += "_wmma";
  }
  return instruction.shape.halves ? name + "_acc16" : name;
}

NvidiaModel model_of_row(const Accumulator& row) {
  return {.accumulator = row, .rule = {.block = row.block}, .name = row.name, .choice = ""};
}

// The value of every code of a format with 16 bits or fewer.
template <Type kType>
const std::vector<float>& code_values() {
  static const std::vector<float> values = [] {
    std::vector<float> table(size_t{1} << mma::bits_of(kType));
    const Format& format = find_format(mma::format_name(kType));
    for (size_t code = 0; code < table.size(); ++code) {
      table[code] = static_cast<float>(decode(code, format));
    }
    return table;
  }();
  return values;
}

float code_value(uint32_t bits, Type type) {
  switch (type) {
    case Type::kTf32:
      return std::bit_cast<float>(bits);
    case Type::kFp16:
      return code_values<Type::kFp16>()[bits];
    case Type::kBf16:
      return code_values<Type::kBf16>()[bits];
    case Type::kE4m3:
      return code_values<Type::kE4m3>()[bits];
    default:
      return code_values<Type::kE5m2>()[bits];
  }
}

const Format& format_of(Type type) {
  static const std::array<const Format*, 5> formats = [] {
    std::array<const Format*, 5> table{};
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = &find_format(mma::format_name(static_cast<Type>(i)));
    }
    return table;
  }();
  return *formats[static_cast<size_t>(type)];
}

std::string hex(uint32_t bits, int storage_bits) {
  constexpr int kBitsPerDigit = 4;
  char text[16];
  std::snprintf(text, sizeof text, "%0*x", storage_bits / kBitsPerDigit, bits);
  return text;
}

}  // namespace

NvidiaModel nvidia_model(int capability, const Instruction& instruction) {
  return model_of_row(find_accumulator(row_name(capability, instruction)));
}

std::vector<NvidiaModel> alternative_models(int capability, const Instruction& instruction,
                                            std::string_view question) {
  std::vector<NvidiaModel> models;
  const std::string name = row_name(capability, instruction);
  for (const AccumulatorSwitch& choice : accumulator_switches()) {
    if (choice.is_default || choice.question != question) continue;
    try {
      models.push_back(model_of_row(find_accumulator(name + "+" + std::string(choice.name))));
      models.back().choice = choice.name;
    } catch (const InputError&) {
      // The question does not apply to the row.
    }
  }
  return models;
}

std::vector<NvidiaModel> alternative_models(int capability, const Instruction& instruction) {
  std::vector<NvidiaModel> models;
  for (const std::string_view question : kUnsettledQuestions) {
    for (NvidiaModel& model : alternative_models(capability, instruction, question)) {
      models.push_back(std::move(model));
    }
  }
  return models;
}

std::vector<NvidiaModel> combined_models(int capability, const Instruction& instruction) {
  const NvidiaModel plain = nvidia_model(capability, instruction);
  std::vector<NvidiaModel> models = {plain};
  for (const std::string_view question : kUnsettledQuestions) {
    const auto choices = alternative_models(capability, instruction, question);
    const size_t before = models.size();
    for (const NvidiaModel& choice : choices) {
      for (size_t i = 0; i < before; ++i) {
        NvidiaModel both =
            model_of_row(find_accumulator(models[i].accumulator.name + "+" + choice.choice));
        both.choice = models[i].choice + (models[i].choice.empty() ? "" : "+") + choice.choice;
        models.push_back(std::move(both));
      }
    }
  }
  return models;
}

uint32_t host_result(const NvidiaModel& model, const mma::TileBatch& tiles, int64_t tile, int row,
                     int column, uint32_t start) {
  const mma::Shape& shape = tiles.shape;
  const mma::Tile words = tiles.tile(tile);
  std::vector<float> a(static_cast<size_t>(shape.k)), b(a.size());
  for (int k = 0; k < shape.k; ++k) {
    const auto value = [&](const uint32_t* matrix, int line, Type type) {
      return code_value(
          mma::packed_number(matrix + line * shape.row_words(), k, mma::bits_of(type)), type);
    };
    a[k] = value(words.a, row, shape.a);
    b[k] = value(words.b, column, shape.b);
  }
  const Format& sum = *model.accumulator.register_format;
  const DotOperands<float> operands{a.data(), b.data(), shape.k, &format_of(shape.a),
                                    &format_of(shape.b)};
  const double result = accumulate_dot(model.accumulator, operands, decode(start, sum));
  return static_cast<uint32_t>(result_word(result, model.accumulator));
}

std::string operands_text(const mma::TileBatch& tiles, int64_t tile, int row, int column,
                          bool from_zero) {
  const mma::Shape& shape = tiles.shape;
  const mma::Tile words = tiles.tile(tile);
  std::string text;
  const auto add_line = [&](const char* name, const uint32_t* line, Type type) {
    text += name;
    for (int k = 0; k < shape.k; ++k) {
      text += " " + hex(mma::packed_number(line, k, mma::bits_of(type)), mma::bits_of(type));
    }
  };
  add_line("a", words.a + row * shape.row_words(), shape.a);
  add_line(", b", words.b + column * shape.row_words(), shape.b);
  const uint32_t addend = mma::tile_addend(shape, words, row, column);
  text += from_zero ? ", from zero" : ", c " + hex(addend, shape.accumulator().storage_bits);
  return text;
}

}  // namespace lockstep
