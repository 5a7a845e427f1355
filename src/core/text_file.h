// Reads a whole text file, and writes one so that no reader sees half of it.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The whole file. Throws: InputError naming the path and the reason.
std::string read_text_file(const std::string& path);
// Writes a file next to `path` and renames it, so that a reader sees the old or the new file.
// Throws: InputError naming the path and the reason.
void write_text_file_atomically(const std::string& path, std::string_view text);

}  // namespace lockstep
