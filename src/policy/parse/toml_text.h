// Writes a table as TOML text. Comments are the caller's, as lines between tables.
#pragma once

#include <toml++/toml.h>
#include <string>

namespace lockstep {

// Keys come in alphabetic order, strings in double quotes; the text ends with a newline.
std::string toml_text(const toml::table& table);

}  // namespace lockstep
