// Formatting of single numbers and of sparklines.
#include "reports/writers/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "src/core/text.h"

namespace lockstep {

std::string percent(double rate) {
  if (std::isnan(rate)) return "-";
  if (rate == 0) return ".";
  const double value = 100 * rate;
  if (value >= 99.95) return "100%";
  if (value >= 10) return fmt::format("{:.1f}%", value);
  if (value >= 0.01) return fmt::format("{:.2f}%", value);
  return fmt::format("{:.0e}%", value);
}

std::string few_names(std::span<const std::string> names) {
  constexpr size_t kNamed = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text += (i == 0 ? "" : ", ") + (names[i].empty() ? "(no layer)" : names[i]);
  }
  if (names.size() > kNamed) text += fmt::format(" and {} more", names.size() - kNamed);
  return text;
}

std::string short_number(double value) {
  if (std::isnan(value)) return "-";
  return fmt::format("{:.4g}", value);
}

std::string loss_text(double loss) {
  if (std::isnan(loss)) return "nan";
  if (std::fabs(loss) >= 1e4) return fmt::format("{:.3e}", loss);
  return fmt::format("{:.4f}", loss);
}

std::string seconds_text(double seconds) {
  if (std::isnan(seconds)) return "-";
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  const auto whole = static_cast<long long>(std::llround(seconds));
  return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
}

std::string scale_text(double scale) {
  int exponent = 0;
  if (std::isfinite(scale) && scale > 0 && std::frexp(scale, &exponent) == 0.5) {
    return fmt::format("2^{}", exponent - 1);
  }
  return short_number(scale);
}

std::string sparkline(std::span<const double> values, int width) {
  static constexpr std::array<std::string_view, 8> kBlocks = {"▁", "▂", "▃", "▄",
                                                              "▅", "▆", "▇", "█"};
  const size_t columns = std::min(values.size(), static_cast<size_t>(std::max(width, 0)));
  std::vector<double> means;
  for (size_t c = 0; c < columns; ++c) {
    const size_t begin = c * values.size() / columns, end = (c + 1) * values.size() / columns;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  double lo = std::numeric_limits<double>::infinity(), hi = -lo;
  for (const double m : means) {
    if (!std::isfinite(m)) continue;
    lo = std::min(lo, m);
    hi = std::max(hi, m);
  }
  std::string out;
  for (const double m : means) {
    if (!std::isfinite(m)) {
      out += 'x';
      continue;
    }
    const double place = hi > lo ? (m - lo) / (hi - lo) : 0;
    out += kBlocks[static_cast<size_t>(std::lround(place * (kBlocks.size() - 1)))];
  }
  return out;
}

}  // namespace lockstep
