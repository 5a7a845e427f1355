#include "src/record/capture/capture_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <stdexcept>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/record/capture/capture_block.h"
#include "src/record/capture/capture_contents.h"
#include "src/record/capture/capture_dump.h"
#include "src/record/capture/sandbox.h"

namespace lockstep {
namespace {

constexpr int64_t kCaptureVersion = 1;

// Limits for compressed batches, which grow when they are read; real captures grow less.
constexpr uint64_t kLeastContent = uint64_t{1} << 30, kContentPerByte = 8;
constexpr double kLeastSeconds = 20, kBytesPerSecond = 20e6;
constexpr double kClockPerProcessor = 3;

// Whether this group or dataset is read. /final is never read; only V7 compares a step's gradients.
bool is_read(std::string_view path, CaptureUse use) {
  if (path == "/final") return false;
  if (use == CaptureUse::kVerify) return true;
  return path != "/verify" && !(path.starts_with("/steps/") && path.ends_with("/grads"));
}

CaptureNode read_tree(const std::string& path, const CaptureBlock& block, CaptureUse use) {
  SandboxLimits limits;
  const uint64_t most = kLeastContent + kContentPerByte * block.length;
  limits.seconds = kLeastSeconds + static_cast<double>(block.length) / kBytesPerSecond;
  limits.clock_seconds = kClockPerProcessor * limits.seconds;
  limits.memory_bytes = 2 * most;
  limits.output_bytes = 2 * most;
  const std::string who = "capture '" + path + "': ";
  try {
    CaptureNode tree;
    run_sandboxed(
        limits,
        [&](const SandboxWrite& write) {
          const auto is_wanted = [use](std::string_view object) { return is_read(object, use); };
          dump_capture(path, block.size, most, is_wanted, write);
        },
        [&](const SandboxRead& read) { tree = parse_capture_frames(read, limits.output_bytes); });
    return tree;
  } catch (const InputError& error) {
    constexpr size_t kMostBytes = 2000;
    throw InputError(who + printable(error.what(), kMostBytes),
                     "its checksum is right: it was written like this");
  } catch (const std::runtime_error& error) {
    throw InputError(
        fmt::format("{}reading its HDF5 data in a separate process failed: {}", who, error.what()),
        "its checksum is right: it was written like this. Do not trust its source");
  }
}

// Checks what everything else depends on.
void check_root(const CaptureFields& root) {
  if (const std::string format = root.text("format"); format != "lockstep-capture") {
    root.problem("format is '" + format + "', must be 'lockstep-capture'");
  }
  const int64_t version = root.integer("format_version", kCaptureVersion);
  if (version != kCaptureVersion) {
    root.problem(fmt::format("format_version is {}, must be {}", version, kCaptureVersion),
                 version > kCaptureVersion ? "a newer lockstep_capture wrote it" : "");
  }
  if (!root.flag("complete", true)) {
    root.problem("complete is 0: the training run ended before its capture",
                 "capture again; the file is renamed into place when it is complete");
  }
  root.problems().throw_if_any();
}

}  // namespace

int64_t number_of(const std::string& name) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  return error == std::errc() && end == name.data() + name.size() && value >= 0 ? value : -1;
}

Capture read_capture(const std::string& path, CaptureUse use) {
  const CaptureBlock block = check_capture_block(path);
  CaptureNode tree = read_tree(path, block, use);
  ProblemList problems("capture '" + path + "'");
  const CaptureFields root(&tree, path + ":", problems);
  check_root(root);
  Capture capture;
  capture.path = path;
  capture.sha256 = block.sha256;
  capture.model_class = root.text("model_class");
  capture.torch_version = root.text("torch_version");
  capture.device = root.text("device");
  capture.frontend = root.text("frontend");
  capture.created_utc = root.text("created_utc", /*required=*/false);
  if (root.has_attribute("notes")) capture.notes = root.texts("notes");
  capture.v0 = root.text("v0", /*required=*/false);
  capture.world_size = root.integer("world_size", 1, /*required=*/false);
  read_amp(root, capture);
  read_graphs(root, capture);
  problems.throw_if_any();  // nothing below can be checked without graphs
  read_values(root, capture, capture.start.values);
  read_optimizer(root, capture);
  read_steps(root, capture);
  read_verify(root, capture);
  problems.throw_if_any();
  return capture;
}

}  // namespace lockstep
