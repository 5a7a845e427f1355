// A chain of sites as an HTML list; each link's exponent histogram is drawn small, against the
// window of its format.
#pragma once

#include <string>

#include "reports/writers/block.h"

namespace lockstep {

// `explained`: as of html_prose.
std::string html_chain(const ChainBlock& chain, std::vector<bool>& explained);

}  // namespace lockstep
