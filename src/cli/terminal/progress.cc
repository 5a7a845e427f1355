// Draws the progress line from step records.
#include "src/cli/terminal/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "reports/writers/number_text.h"
#include "reports/writers/text_writer.h"
#include "src/cli/terminal/terminal.h"
#include "src/core/bytes_text.h"
#include "src/core/text.h"

namespace lockstep {
namespace {

constexpr int kBarWidth = 20;
constexpr int kPlainLines = 10;  // over the whole run
constexpr auto kRedrawEvery = std::chrono::milliseconds(100);

std::string bar(double share) {
  const int full = static_cast<int>(share * kBarWidth);
  std::string out;
  for (int i = 0; i < kBarWidth; ++i) out += i < full ? "█" : "░";
  return out;
}

std::string cut(const std::string& text, int width) {
  if (display_width(text) <= width) return text;
  std::string out;
  for (const char c : text) {
    const bool starts = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (starts && display_width(out) >= width) break;
    out += c;
  }
  return out;
}

// Nobody may be watching any more, which must not end a run: errors are ignored.
void show(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

// " apex-o1 2^15, 2^16": nothing if every scale is 1.
std::string scales_text(const LaneStep& lane, const std::string& name, size_t count) {
  std::string text;
  bool is_scaled = false;
  for (size_t i = 0; i < std::min(count, lane.scalers.size()); ++i) {
    is_scaled = is_scaled || lane.scalers[i].scale != 1;
    text += (i == 0 ? " " : ", ") + scale_text(lane.scalers[i].scale);
  }
  return is_scaled ? " " + name + text : "";
}

std::string tensors_text(const ProcessMemory& memory) {
  return fmt::format("{} of activations, {} of weights, gradients and optimizer states",
                     bytes_text(memory.value_bytes),
                     bytes_text(memory.state_bytes + memory.gradient_bytes));
}

}  // namespace

Progress::Progress(int64_t first_step, int64_t step_count, std::string seed_text)
    : first_step_(first_step),
      step_count_(step_count),
      seed_text_(std::move(seed_text)),
      terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::on_start(const RunDescription& run) {
  for (const LaneDescription& lane : run.lanes) {
    lane_names_.push_back(printable(lane.name));
    scaler_counts_.push_back(std::max<size_t>(1, lane.scaler_losses.size()));
  }
  start_ = std::chrono::steady_clock::now();
  last_drawn_ = start_ - kRedrawEvery;
  next_line_ = first_step_ + 1;
  show(fmt::format("{}{}, {} lane{}, steps {}..{}, {}\n",
                   seed_text_.empty() ? "" : seed_text_ + ": ", printable(run.data),
                   lane_names_.size(), lane_names_.size() == 1 ? "" : "s", first_step_,
                   step_count_ - 1, tensors_text(run.memory)));
  if (!run.memory_warning.empty()) show("warning: " + printable(run.memory_warning) + "\n");
}

void Progress::on_step(const StepRecord& step) {
  const int64_t done = step.step + 1;
  const std::string seed = seed_text_.empty() ? "" : seed_text_ + " ";
  const auto now = std::chrono::steady_clock::now();
  if (terminal_) {
    if (now - last_drawn_ < kRedrawEvery && done < step_count_) return;
    last_drawn_ = now;
    const std::string line = fmt::format(
        "{} {}{}/{}  {}", bar(static_cast<double>(done) / static_cast<double>(step_count_)), seed,
        done, step_count_, status(step));
    show("\r\x1b[K" + cut(line, terminal_width(STDERR_FILENO) - 1));
    line_open_ = true;
  } else if (done >= next_line_ || done == step_count_) {
    show(fmt::format("{}step {}/{}  {}\n", seed, done, step_count_, status(step)));
    while (next_line_ <= done) next_line_ += std::max<int64_t>(1, step_count_ / kPlainLines);
  }
}

void Progress::on_finish() {
  if (line_open_) show("\n");
  line_open_ = false;
}

std::string Progress::time_left(int64_t steps_done) const {
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
  const auto taken = static_cast<double>(steps_done - first_step_);
  return seconds_text(elapsed.count() / taken * static_cast<double>(step_count_ - steps_done));
}

// "12 s left  loss: fp32 0.123  pure-fp16 dead  scale: torch-autocast-fp16 2^15"
std::string Progress::status(const StepRecord& step) const {
  const int64_t done = step.step + 1;
  std::string text = done < step_count_ ? time_left(done) + " left" : "done";
  text += "  loss:";
  std::string scales;
  for (size_t i = 0; i < step.lanes.size() && i < lane_names_.size(); ++i) {
    const LaneStep& lane = step.lanes[i];
    text += fmt::format(" {} {}", lane_names_[i], lane.alive ? loss_text(lane.loss) : "stopped");
    if (lane.alive) scales += scales_text(lane, lane_names_[i], scaler_counts_[i]);
  }
  return scales.empty() ? text : text + "  scale:" + scales;
}

}  // namespace lockstep
