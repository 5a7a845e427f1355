// Tiles, their results as numbers and as text.
#include "emulation/verify/nvidia/nvidia_tiles.h"

#include <bit>
#include <cstdio>

namespace lockstep::mma {

std::vector<Variant> variants_of(const std::vector<Instruction>& instructions, int capability) {
  std::vector<Variant> variants;
  for (const Instruction& instruction : instructions) {
    if (!instruction.runs_on(capability)) continue;
    variants.push_back({instruction, false});
    if (instruction.can_start_from_zero()) variants.push_back({instruction, true});
  }
  return variants;
}

std::vector<Variant> all_variants(int capability) {
  const auto all = mma::instructions();
  return variants_of({all.begin(), all.end()}, capability);
}

uint64_t tiles_for(uint64_t outputs, const Shape& shape) {
  const auto per_tile = static_cast<uint64_t>(shape.outputs());
  return (outputs + per_tile - 1) / per_tile;
}

uint32_t start_of(const TileBatch& tiles, int64_t tile, int row, int column, bool from_zero) {
  return from_zero ? 0 : mma::tile_addend(tiles.shape, tiles.tile(tile), row, column);
}

uint32_t result_of(const std::vector<uint32_t>& d, const Shape& shape, int64_t tile, int row,
                   int column) {
  return mma::packed_number(d.data() + tile * shape.c_words() + row * shape.c_row_words(), column,
                            shape.accumulator().storage_bits);
}

std::string mismatch_text(const Variant& variant, const NvidiaModel& model, const TileBatch& tiles,
                          const std::vector<uint32_t>& d, int64_t tile, int row, int column) {
  const uint32_t expected = host_result(model, tiles, tile, row, column,
                                        start_of(tiles, tile, row, column, variant.from_zero));
  char results[80];
  std::snprintf(results, sizeof results, "; row %d, column %d: unit %x, model %x (", row, column,
                result_of(d, tiles.shape, tile, row, column), expected);
  return variant.name() + ": " + operands_text(tiles, tile, row, column, variant.from_zero) +
         results + model.name + ")";
}

TileBatch tiles_of_vectors(const std::vector<const DotVector*>& vectors, const Shape& shape) {
  TileBatch tiles(shape, static_cast<int64_t>(vectors.size()));
  const Format& sum = find_format(shape.halves ? "fp16" : "fp32");
  const auto fill = [](uint32_t* words, int bits, int numbers, const auto& code) {
    const int per_word = mma::kWordBits / bits;
    for (int i = 0; i < numbers; ++i) words[i / per_word] |= code(i) << (i % per_word * bits);
  };
  const auto code_of = [](float value, Type type) {
    if (type == Type::kTf32) return std::bit_cast<uint32_t>(value);
    return static_cast<uint32_t>(encode(value, find_format(mma::format_name(type))));
  };
  for (size_t v = 0; v < vectors.size(); ++v) {
    std::vector<uint32_t> a, b;
    for (const float value : vectors[v]->a) a.push_back(code_of(value, shape.a));
    for (const float value : vectors[v]->b) b.push_back(code_of(value, shape.b));
    const auto addend = static_cast<uint32_t>(encode(vectors[v]->c, sum));
    fill(tiles.a.data() + v * shape.a_words(), mma::bits_of(shape.a), shape.m * shape.k,
         [&](int i) { return a[static_cast<size_t>(i % shape.k)]; });
    fill(tiles.b.data() + v * shape.b_words(), mma::bits_of(shape.b), shape.n * shape.k,
         [&](int i) { return b[static_cast<size_t>(i % shape.k)]; });
    fill(tiles.c.data() + v * shape.c_words(), shape.accumulator().storage_bits, shape.outputs(),
         [&](int) { return addend; });
  }
  return tiles;
}

bool fits(const DotVector& vector, const Instruction& instruction, const NvidiaModel& model) {
  const Shape& shape = instruction.shape;
  const BlockSpec &theirs = vector.accumulator->block, &ours = model.accumulator.block;
  return vector.a_format->name == mma::format_name(shape.a) &&
         vector.b_format->name == mma::format_name(shape.b) &&
         static_cast<int>(vector.a.size()) == shape.k &&
         vector.accumulator->register_format == model.accumulator.register_format &&
         vector.accumulator->kind == AccumulatorKind::kAlignedBlocks &&
         theirs.length == ours.length && theirs.fraction_bits == ours.fraction_bits &&
         theirs.output == ours.output && theirs.order == ours.order &&
         theirs.promotion_interval == ours.promotion_interval;
}

int wrong_place(const NvidiaModel& model, const VectorRun& run, int64_t v) {
  const Shape& shape = run.tiles.shape;
  const uint32_t expected =
      host_result(model, run.tiles, v, 0, 0, start_of(run.tiles, v, 0, 0, /*from_zero=*/false));
  for (int place = 0; place < shape.outputs(); ++place) {
    const uint32_t bits = result_of(run.d, shape, v, place / shape.n, place % shape.n);
    if (expected != bits) return place;
  }
  return -1;
}

std::string vector_text(const Variant& variant, const NvidiaModel& model, const VectorRun& run,
                        int64_t v, int place) {
  const DotVector& vector = *run.vectors[static_cast<size_t>(v)];
  const int n = variant.instruction.shape.n;
  return "vector " + vector.id + " (" + vector.tag +
         "): " + mismatch_text(variant, model, run.tiles, run.d, v, place / n, place % n);
}

}  // namespace lockstep::mma
