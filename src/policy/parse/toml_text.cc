// See toml_text.h.
#include "src/policy/parse/toml_text.h"

#include <sstream>

namespace lockstep {

std::string toml_text(const toml::table& table) {
  constexpr auto kFlags =
      toml::toml_formatter::default_flags & ~toml::format_flags::allow_literal_strings;
  std::ostringstream out;
  out << toml::toml_formatter(table, kFlags) << '\n';
  return out.str();
}

}  // namespace lockstep
