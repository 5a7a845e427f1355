// Any name as one component of an HDF5 path, and back: '%' is %25, '/' is %2F, "." is %2E.
#pragma once

#include <string>
#include <string_view>

namespace lockstep::hdf5 {

std::string escape_link(std::string_view name);
std::string unescape_link(std::string_view link);

}  // namespace lockstep::hdf5
