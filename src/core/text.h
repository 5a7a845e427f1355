// Small text helpers: glob patterns, table-friendly numbers, text of unknown origin.
// No domain knowledge.
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
// Makes text of unknown origin safe for a terminal and for JSON. Bytes that are not UTF-8 become
// \xFF; characters that control a terminal or the writing direction become \u001b. Text longer than
// `most` bytes is cut and ends in "...". printable(printable(x)) == printable(x).
std::string printable(std::string_view text, size_t most = std::string_view::npos);
// printable() of every line: line feeds stay.
std::string printable_lines(std::string_view text);
// `argument` as a shell reads it back: in 'quotes' where POSIX requires them, in $'quotes' (POSIX
// 2024; bash, zsh, ksh) where printable() would change it, so that it controls no terminal.
std::string shell_quoted(const std::string& argument);
// A file's name as an argument: one that begins with '-' would be read as an option.
std::string shell_path(const std::string& path);

}  // namespace lockstep
