#include "src/record/hdf5/link_name.h"

namespace lockstep::hdf5 {

std::string escape_link(std::string_view name) {
  if (name == ".") return "%2E";
  std::string out;
  for (const char c : name) {
    if (c == '%') {
      out += "%25";
    } else if (c == '/') {
      out += "%2F";
    } else {
      out += c;
    }
  }
  return out;
}

std::string unescape_link(std::string_view link) {
  std::string out;
  for (size_t i = 0; i < link.size(); ++i) {
    const std::string_view code = link.substr(i, 3);
    if (code == "%25") out += '%';
    if (code == "%2F") out += '/';
    if (code == "%2E") out += '.';
    if (link[i] == '%') {
      i += 2;
    } else {
      out += link[i];
    }
  }
  return out;
}

}  // namespace lockstep::hdf5
