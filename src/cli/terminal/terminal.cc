// See terminal.h.
#include "src/cli/terminal/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "src/core/text.h"

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

void print_text(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t colour = find_colour(text);
    out += printable_lines(text.substr(0, colour));
    if (colour == std::string_view::npos) break;
    const size_t end = text.find('m', colour) + 1;
    out += text.substr(colour, end - colour);
    text.remove_prefix(end);
  }
  fmt::print("{}", out);
}

void print_line(std::string_view line) {
  fmt::print("{}\n", printable(line));
}

void print_note(std::string_view line) {
  // Not by fmt::print, which throws if standard error is closed.
  std::fputs(("lockstep: " + printable(line) + "\n").c_str(), stderr);
}

}  // namespace lockstep
