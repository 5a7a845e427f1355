// See state_codes.h.
#include "emulation/format/state_codes.h"

#include <algorithm>
#include <cmath>

#include "emulation/format/rounding.h"
#include "src/core/find_row.h"

namespace lockstep {
namespace {

// `count` numbers from `first` to `last`, from the nearer end, in FP32 with one rounding each:
// torch.linspace on a CPU with FMA.
std::vector<float> evenly_spaced(float first, float last, int count) {
  std::vector<float> found(static_cast<size_t>(count));
  const float step = (last - first) / static_cast<float>(count - 1);
  for (int i = 0; i < count; ++i) {
    const bool is_near = i < count / 2;
    const auto steps = static_cast<float>(is_near ? i : i - (count - 1));
    found[static_cast<size_t>(i)] = std::fma(step, steps, is_near ? first : last);
  }
  return found;
}

// Decades of numbers between 0.1 and 1 times a power of ten: the higher the decade, the more of
// them. Source: Dettmers 2015, arXiv 1511.04561; torchao optim/quant_utils.py.
std::vector<float> dynamic_levels(bool is_signed, int bits) {
  constexpr int kTen = 10;
  const int decades = bits - 1;
  std::vector<float> levels = {0, 1};
  for (int i = 0; i < decades; ++i) {
    const int means = is_signed ? 1 << i : 1 << (i + 1);
    const std::vector<float> ends = evenly_spaced(0.1F, 1, means + 1);
    double power = 1;
    for (int k = 0; k < decades - 1 - i; ++k) power *= kTen;
    const auto unit = static_cast<float>(1 / power);
    for (int k = 0; k < means; ++k) {
      const float mean = (ends[static_cast<size_t>(k)] + ends[static_cast<size_t>(k) + 1]) / 2;
      levels.push_back(unit * mean);
      if (is_signed) levels.push_back(-unit * mean);
    }
  }
  std::ranges::sort(levels);
  return levels;
}

// The levels at the places of a grid. See StateCodes::grid.
std::vector<float> levels_of_grid(const std::vector<float>& levels, int grid) {
  std::vector<float> found;
  for (int i = 0; i <= grid; ++i) {
    const float at = 2 * static_cast<float>(i) / static_cast<float>(grid) - 1;
    const auto above = std::ranges::lower_bound(levels, at);
    const bool is_below =
        above == levels.end() ||
        (above != levels.begin() && double(at) - *(above - 1) <= double(*above) - at);
    found.push_back(is_below ? *(above - 1) : *above);
  }
  return found;
}

std::vector<StateCodes> make_table() {
  constexpr int kBits8 = 8, kBits4 = 4, kBlock8 = 256, kBlock4 = 128;
  constexpr int64_t kLeastElements = 4096;
  constexpr int kGrid = 65535;
  std::vector<float> sixteenths = evenly_spaced(0, 1, (1 << kBits4) + 1);
  sixteenths.erase(sixteenths.begin());  // no zero
  return {
      {.name = "dynamic8",
       .help = "8-bit dynamic maps, a scale for 256 elements",
       .source = "Dettmers et al. 2021, arXiv 2110.02861; torchao optim/subclass_8bit.py",
       .block_size = kBlock8,
       .least_elements = kLeastElements,
       .bits = kBits8,
       .signed_levels = dynamic_levels(true, kBits8),
       .unsigned_levels = dynamic_levels(false, kBits8)},
      {.name = "dynamic4",
       .help = "a 4-bit dynamic map, for averages of squares 1/16 to 1, a scale for 128 elements",
       .source = "Li et al. 2023, arXiv 2309.01507; torchao optim/subclass_4bit.py",
       .block_size = kBlock4,
       .least_elements = kLeastElements,
       .bits = kBits4,
       .signed_levels = dynamic_levels(true, kBits4),
       .unsigned_levels = std::move(sixteenths)},
      {.name = "fp8_e4m3",
       .help = "E4M3, a scale for 256 elements",
       .source = "torchao optim/subclass_fp8.py",
       .block_size = kBlock8,
       .least_elements = kLeastElements,
       .bits = kBits8,
       .element = &find_format("fp8_e4m3")},
      {.name = "dynamic8_bitsandbytes_cpu",
       .help = "8-bit dynamic maps through a table of 65536 places, a scale for 256 elements",
       .source = "bitsandbytes 0.50.2 on the CPU, by its results: quantize_blockwise",
       .block_size = kBlock8,
       .least_elements = kLeastElements,
       .bits = kBits8,
       .grid = kGrid,
       .takes_rest = true,
       .signed_places = levels_of_grid(dynamic_levels(true, kBits8), kGrid),
       .unsigned_places = levels_of_grid(dynamic_levels(false, kBits8), kGrid)},
  };
}

// The nearest of the levels, a tie to the upper one, as torchao's search finds it.
float nearest_level(float x, const std::vector<float>& levels) {
  if (std::isnan(x)) return levels.front();
  const auto above = std::ranges::upper_bound(levels, x);
  if (above == levels.begin()) return levels.front();
  const float down = *(above - 1);
  if (above == levels.end()) return down;
  return x - down >= (*above - down) * 0.5F ? *above : down;
}

void round_by_grid(std::span<float> block, const StateCodes& codes, bool is_signed) {
  const std::vector<float>& places = is_signed ? codes.signed_places : codes.unsigned_places;
  float amax = 0;
  for (const float x : block) amax = std::fmax(amax, std::fabs(x));
  if (amax == 0) {
    std::ranges::fill(block, places.front() * 0.0F);
    return;
  }
  const float inverse = 1 / amax, half = static_cast<float>(codes.grid) / 2;
  for (float& x : block) {
    const float v = std::clamp(x * inverse, -1.0F, 1.0F);
    const float level = std::isnan(v)
                            ? places.front()
                            : places[static_cast<size_t>(std::floor((v + 1) * half + 0.5F))];
    x = level * amax;
  }
}

}  // namespace

std::span<const StateCodes> state_codes() {
  static const std::vector<StateCodes> table = make_table();
  return table;
}

const StateCodes& find_state_codes(std::string_view name) {
  return find_row("state codes", name, state_codes());
}

void round_to_codes(std::span<float> block, const StateCodes& codes, bool is_signed) {
  if (codes.grid > 0) return round_by_grid(block, codes, is_signed);
  float amax = 0;
  for (const float x : block) {
    const float size = std::fabs(x);
    if (!(size <= amax)) amax = size;
    if (std::isnan(amax)) break;
  }
  float scale = amax < kLeastStateScale ? kLeastStateScale : amax;
  if (codes.element != nullptr) {
    scale /= static_cast<float>(codes.element->max_finite);
    for (float& x : block) {
      x = static_cast<float>(round_to_format(x / scale, *codes.element, Rounding::kNearestEven)) *
          scale;
    }
    return;
  }
  const std::vector<float>& levels = is_signed ? codes.signed_levels : codes.unsigned_levels;
  for (float& x : block) x = nearest_level(x / scale, levels) * scale;
}

}  // namespace lockstep
