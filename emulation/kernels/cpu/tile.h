// Runs AMX tile instructions.
// Three tiles, by their own instructions: sum (rows x columns floats), A (rows x pairs of 16-bit
// factors) and B (pairs x columns of pairs); sum += A * B. Requires: cpu_has(kAmxBf16 or kAmxFp16).
// gemm_amx_tile.h takes HardwareTiles as a parameter: tests pass software tiles instead.
// Source: Intel SDM vol. 1, chapter 18 (palette 1), vol. 2, LDTILECFG, TILELOADD, TDPBF16PS.
#pragma once

#include <cstdint>

namespace lockstep {

inline constexpr int kTileRows = 16, kTileColumns = 16,
                     kTilePairs = 16;  // the largest of palette 1
inline constexpr int kBytesPerPair = 4;
inline constexpr int kTileSum = 0, kTileA = 1, kTileB = 2;

struct TileShape {
  int rows, columns, pairs;
};

// Sets the shapes of the three tiles; the destructor releases the tiles.
class TileSession {
 public:
  explicit TileSession(const TileShape& shape) {
    alignas(64) Configuration c = {};
    c.palette = 1;
    set(c, kTileSum, shape.rows, shape.columns * static_cast<int>(sizeof(float)));
    set(c, kTileA, shape.rows, shape.pairs * kBytesPerPair);
    set(c, kTileB, shape.pairs, shape.columns * kBytesPerPair);
    __asm__ volatile("ldtilecfg %0" ::"m"(c));
  }
  ~TileSession() { __asm__ volatile("tilerelease" ::); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  struct Configuration {  // 64 bytes, as LDTILECFG reads them
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  static_assert(sizeof(Configuration) == 64);
  static void set(Configuration& c, int tile, int rows, int row_bytes) {
    c.rows[tile] = static_cast<uint8_t>(rows);
    c.row_bytes[tile] = static_cast<uint16_t>(row_bytes);
  }
};

struct HardwareTiles {
  using Session = TileSession;
  template <int kTile>
  static void load(const void* rows, int64_t row_step_bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(rows), "r"(row_step_bytes), "i"(kTile)
                     : "memory");
  }
  template <int kTile>
  static void store(void* rows, int64_t row_step_bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(rows), "r"(row_step_bytes), "i"(kTile)
                     : "memory");
  }
  static void dot_bf16() { __asm__ volatile("tdpbf16ps %%tmm2, %%tmm1, %%tmm0" ::: "memory"); }
  static void dot_fp16() { __asm__ volatile("tdpfp16ps %%tmm2, %%tmm1, %%tmm0" ::: "memory"); }
};

}  // namespace lockstep
