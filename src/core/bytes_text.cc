#include "src/core/bytes_text.h"

#include <fmt/format.h>

namespace lockstep {

std::string bytes_text(int64_t bytes) {
  constexpr double kKibi = 1024;
  if (bytes < static_cast<int64_t>(kKibi)) return fmt::format("{} B", bytes);
  auto size = static_cast<double>(bytes) / kKibi;
  for (const char* unit : {"KiB", "MiB", "GiB"}) {
    if (size < kKibi) return fmt::format("{:.3g} {}", size, unit);
    size /= kKibi;
  }
  return fmt::format("{:.4g} TiB", size);
}

}  // namespace lockstep
