// A number of bytes in words.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

std::string bytes_text(int64_t bytes);  // "512 B", "1.2 MiB": three digits

}  // namespace lockstep
