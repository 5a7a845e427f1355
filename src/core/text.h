// Small text helpers: glob patterns, JSON-safe and table-friendly numbers. No domain knowledge.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// '*' matches any run of characters (dots included), '?' one character; case-sensitive.
bool glob_match(std::string_view pattern, std::string_view text);
std::vector<std::string> split(std::string_view text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// 1234567 -> "1 234 567"
std::string with_thousands(unsigned long long value);
// The whole file. Throws: InputError naming the path and the reason.
std::string read_text_file(const std::string& path);
// Writes beside `path` and renames into place, so that a reader sees the old or the new file.
// Throws: InputError naming the path and the reason.
void write_text_file_atomically(const std::string& path, std::string_view text);

}  // namespace lockstep
