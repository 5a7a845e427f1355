// Numbers as text in reports: short and aligned; the column states the unit.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "src/core/counted.h"

namespace lockstep {

// Rates 0..1 as percent: "42.1%", "0.03%", "2e-05%"; "." for exactly 0.
std::string percent(double rate);
// The first names, and how many more there are: "conv1, conv2, fc1, fc2 and 3 more".
std::string few_names(std::span<const std::string> names);
// Four significant digits; "-" for NaN, "inf".
std::string short_number(double value);
std::string loss_text(double loss);        // "0.0412", "nan"
std::string seconds_text(double seconds);  // "0.4 s", "83 s", "2 min 05 s"
// A power of two as "2^16", any other number as short_number does.
std::string scale_text(double scale);
// One block character per value, from the smallest to the largest; 'x' for a non-finite one. At
// most `width` columns: each shows the mean of its share of the values.
std::string sparkline(std::span<const double> values, int width);

}  // namespace lockstep
