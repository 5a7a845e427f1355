// See json_text.h.
#include "reports/writers/json_text.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/core/text.h"

namespace lockstep {

using nlohmann::ordered_json;

ordered_json json_number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

std::string json_page(const ordered_json& object) {
  constexpr int kIndent = 1;
  // What printable() spells out stands in strings, where \\u001b is the same character to a
  // program.
  return printable_lines(object.dump(kIndent, ' ', false, ordered_json::error_handler_t::replace)) +
         "\n";
}

}  // namespace lockstep
