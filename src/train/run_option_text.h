// An option's value as a text of the command line, both ways, with its limits.
// Knows the types of values, no option by its name.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "src/train/run_option.h"

namespace lockstep {

// The value in `options`, as it is given on a command line; "" where nothing was given.
std::string option_text(const RunOption& row, const RunOptions& options);
// Throws: InputError: a text that is no value of the row, or beyond its limits.
void set_option(const RunOption& row, std::string_view text, RunOptions& options);
// Adds a problem if the value in `options` is beyond the row's limits: the lower ones, because the
// upper ones of whole numbers are those of a hand that types.
void check_option(const RunOption& row, const RunOptions& options, ProblemList& problems);

// Words of a command line as values. Throws: InputError, whose problem begins with `option`.
// A whole number in decimal digits, low <= N <= high.
uint64_t whole_number(std::string_view option, std::string_view text, uint64_t low, uint64_t high);
// A decimal or hexadecimal number.
double any_number(std::string_view option, std::string_view text);
// The index of the word.
size_t known_word(std::string_view option, std::string_view text,
                  const std::vector<std::string>& words);
// "layers=2,width=64", and back.
std::map<std::string, double> named_numbers(std::string_view option, std::string_view text);
std::string named_numbers_text(const std::map<std::string, double>& values);

}  // namespace lockstep
