// Loss scalers on given sequences of overflows, so that another program (torch's GradScaler) can be
// compared with them. Knows no network.
//
//   lockstep_scaler_tool < SEQUENCES
//     reads a line per sequence: keys of [loss_scale] separated by commas, ';', and a character per
//     step, 1 for an overflow: kind='apex',growth_interval=4;0100
//     prints a line per sequence: SCALE:GROWTH_TRACKER after every step, scales as %a
#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <string>

#include "src/core/error.h"
#include "src/policy/find_policy.h"
#include "src/policy/policy.h"

namespace lockstep {
namespace {

std::string answer(const std::string& line) {
  const size_t end = line.find(';');
  if (end == std::string::npos) throw InputError("'" + line + "': no ';' before the overflows");
  std::string toml = "[loss_scale]\n" + line.substr(0, end) + "\n";
  std::replace(toml.begin(), toml.end(), ',', '\n');
  const LossScaleSpec spec = parse_policy(toml, "sequence.toml").loss_scale;
  const LossScaler& scaler = find_loss_scaler(spec.kind);
  LossScaleState state = scaler.initial(spec);
  std::string text;
  for (const char overflow : line.substr(end + 1)) {
    state = scaler.update(spec, state, overflow == '1');
    text += fmt::format("{}{:a}:{}", text.empty() ? "" : " ", state.scale, state.growth_tracker);
  }
  return text;
}

}  // namespace
}  // namespace lockstep

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << lockstep::answer(line) << '\n';
    }
  } catch (const lockstep::InputError& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
  return 0;
}
