// Curves as HTML: lines in an SVG that stretches with the page, labels in HTML that do not.
// The only place that draws; a chart library would take over here, from the same CurveBlock.
#pragma once

#include <string>

#include "reports/block.h"

namespace lockstep {

// A longer course is drawn as the means of so many equal parts; the caption says so.
inline constexpr size_t kMostPoints = 600;

// The inside of a <figure>, without the table.
std::string html_curves(const CurveBlock& block);

}  // namespace lockstep
