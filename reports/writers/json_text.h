// JSON as programs read it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep {

nlohmann::ordered_json json_number(double value);  // null: not finite
// An object as it is printed: text of unknown origin cannot make it invalid.
std::string json_page(const nlohmann::ordered_json& object);

}  // namespace lockstep
