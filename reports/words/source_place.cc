// See source_place.h.
#include "reports/words/source_place.h"

#include <charconv>

namespace lockstep {

std::optional<SourcePlace> source_place(std::string_view source_line) {
  const size_t colon = source_line.rfind(':');
  if (colon == 0 || colon == std::string_view::npos) return std::nullopt;
  const std::string_view digits = source_line.substr(colon + 1);
  int line = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), line);
  if (error != std::errc() || end != digits.data() + digits.size() || line < 1) return std::nullopt;
  return SourcePlace{std::string(source_line.substr(0, colon)), line};
}

}  // namespace lockstep
