// See terminal.h.
#include "src/cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace lockstep {

int terminal_width(int descriptor) {
  winsize size = {};
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kTextWidth;
  return size.ws_col;
}

TextStyle output_style() {
  if (isatty(STDOUT_FILENO) != 1) return {};
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string_view(value == nullptr ? "" : value);
  };
  return {.width = terminal_width(STDOUT_FILENO),
          .colour = variable("NO_COLOR").empty() && variable("TERM") != "dumb"};
}

}  // namespace lockstep
