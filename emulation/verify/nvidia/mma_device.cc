// Tiles on the host, and the device in builds without CUDA.
#include "emulation/verify/nvidia/mma_device.h"

#include "src/core/parallel.h"

namespace lockstep::mma {

TileBatch::TileBatch(const Shape& shape_of, int64_t tile_count)
    : shape(shape_of),
      count(tile_count),
      a(static_cast<size_t>(tile_count * shape.a_words())),
      b(static_cast<size_t>(tile_count * shape.b_words())),
      c(static_cast<size_t>(tile_count * shape.c_words())) {}

Tile TileBatch::tile(int64_t i) const {
  return {a.data() + i * shape.a_words(), b.data() + i * shape.b_words(),
          c.data() + i * shape.c_words()};
}

TileBatch make_tiles(const CaseStream& stream, const Rule& rule, const Shape& shape, uint64_t first,
                     int64_t count) {
  TileBatch batch(shape, count);
  parallel_for(count, [&](int64_t i) {
    const uint64_t number = first + static_cast<uint64_t>(i);
    const TileDesign design = design_tile(stream, shape, number);
    uint32_t* a = batch.a.data() + i * shape.a_words();
    uint32_t* b = batch.b.data() + i * shape.b_words();
    uint32_t* c = batch.c.data() + i * shape.c_words();
    for (int w = 0; w < shape.a_words(); ++w) {
      a[w] = case_word(stream, design, shape, number, Matrix::kA, w);
    }
    for (int w = 0; w < shape.b_words(); ++w) {
      b[w] = case_word(stream, design, shape, number, Matrix::kB, w);
    }
    for (int w = 0; w < shape.c_words(); ++w) {
      c[w] = design.pattern == Pattern::kCancelAddend
                 ? cancelling_word(stream, rule, shape, {a, b, c}, number, w)
                 : case_word(stream, design, shape, number, Matrix::kC, w);
    }
  });
  return batch;
}

#ifndef LOCKSTEP_CUDA
Device* cuda_device(std::string* why_not) {
  if (why_not != nullptr) *why_not = "built without CUDA (-DLOCKSTEP_CUDA=ON)";
  return nullptr;
}
#endif

}  // namespace lockstep::mma
