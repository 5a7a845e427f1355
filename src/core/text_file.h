// How is a whole text file read, and how written so that no reader sees half of it?
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// The whole file. Throws: InputError naming the path and the reason.
std::string read_text_file(const std::string& path);
// Writes beside `path` and renames into place, so that a reader sees the old or the new file.
// Throws: InputError naming the path and the reason.
void write_text_file_atomically(const std::string& path, std::string_view text);

}  // namespace lockstep
