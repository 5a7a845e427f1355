#include "src/record/capture/capture_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "src/core/bytes_text.h"
#include "src/core/error.h"
#include "src/core/free_memory.h"
#include "src/core/text.h"
#include "src/record/capture/capture_contents.h"
#include "src/record/hdf5/file_block.h"
#include "src/record/hdf5/sandboxed_file.h"

namespace lockstep {
namespace {

constexpr int64_t kCaptureVersion = 2;  // 1: without ref64/rests

// Limits for compressed batches, which grow when they are read; real captures grow less.
constexpr uint64_t kLeastContent = uint64_t{1} << 30, kContentPerByte = 8;

// /final is never read; only V7 compares a step's gradients.
Wanted wanted_of(std::string_view path, CaptureUse use) {
  if (path == "/final") return Wanted::kNothing;
  if (use == CaptureUse::kVerify) return Wanted::kContents;
  const bool is_left_out = path == "/verify" ||
                           (path.starts_with("/steps/") && path.ends_with("/grads")) ||
                           path.starts_with("/part/");
  return is_left_out ? Wanted::kNothing : Wanted::kContents;
}

// extents: of datasets, without what is in them.
StoredNode read_tree(const std::string& path, const FileBlock& block, CaptureUse use,
                     bool extents) {
  const std::string who = "capture '" + path + "': ";
  try {
    DumpRequest request;
    request.block = block.size;
    request.most_bytes = kLeastContent + kContentPerByte * block.length;
    request.wanted = [use, extents](std::string_view object) {
      const Wanted wanted = wanted_of(object, use);
      return extents && wanted == Wanted::kContents ? Wanted::kExtent : wanted;
    };
    SandboxedFile file(path, request, limits_of_file(block.length, kLeastContent, kContentPerByte));
    return std::move(file.tree());
  } catch (const hdf5::Error& error) {
    constexpr size_t kMostBytes = 2000;
    throw InputError(who + printable(error.what(), kMostBytes),
                     "its checksum is right: it was written like this");
  } catch (const SandboxError& error) {
    const std::string failed =
        fmt::format("{}reading its HDF5 data in a separate process failed: {}", who, error.what());
    if (error.is_of_machine()) throw InputError(failed, "try again");
    throw InputError(failed,
                     "its checksum is right: it was written like this. Do not trust its source");
  } catch (const std::runtime_error& error) {
    throw InputError(
        fmt::format("{}reading its HDF5 data in a separate process failed: {}", who, error.what()),
        "its checksum is right: it was written like this. Do not trust its source");
  }
}

// without: leaves out groups of this name.
double stored_bytes(const StoredNode& node, std::string_view without = "") {
  double bytes = 0;
  if (node.data) {
    bytes +=
        static_cast<double>(node.data->size()) * static_cast<double>(bytes_of(node.data->kind));
  }
  for (const auto& [name, child] : node.children) {
    if (name != without) bytes += stored_bytes(child, without);
  }
  return bytes;
}

// Before anything of size is read. Verifying takes the weights and gradients of a step in FP64,
// too; what PyTorch's optimizer made of them has left memory by then.
void require_memory_to_read(const std::string& path, const FileBlock& block, CaptureUse use) {
  const auto free = free_memory();
  constexpr int64_t kRoomy = 8;  // times the file: enough for anything
  if (!free || block.length < static_cast<uint64_t>(*free / kRoomy)) return;
  StoredNode extents = read_tree(path, block, use, /*extents=*/true);
  const StoredNode* params = extents.find("params");
  const double weights = params == nullptr ? 0 : stored_bytes(*params);  // in FP32
  constexpr double kFp64PerFp32 = 2;
  double tensors = stored_bytes(extents), step = 0;
  if (use == CaptureUse::kVerify) {
    const double kept = stored_bytes(extents, "post");
    step = 2 * kFp64PerFp32 * weights;
    if (kept + step < tensors) {
      step = 0;
    } else {
      tensors = kept;
    }
  }
  if (tensors + step <= static_cast<double>(*free)) return;
  const auto text = [](double bytes) { return bytes_text(static_cast<int64_t>(bytes)); };
  throw InputError(
      fmt::format("capture '{}': memory: at least {} needed ({} of its tensors{}), {} is free",
                  path, text(tensors + step), text(tensors),
                  step == 0 ? "" : ", " + text(step) + " of a step in FP64", text(*free)),
      "free some, or use a machine with more");
}

// Checks what everything else depends on.
void check_root(const StoredFields& root) {
  if (const std::string format = root.text("format"); format != "lockstep-capture") {
    root.problem("format is '" + format + "', must be 'lockstep-capture'");
  }
  const int64_t version = root.integer("format_version", kCaptureVersion);
  if (version < 1 || version > kCaptureVersion) {
    root.problem(fmt::format("format_version is {}, must be 1 to {}", version, kCaptureVersion),
                 version > kCaptureVersion ? "a newer lockstep_capture wrote it" : "");
  }
  if (!root.flag("complete", true)) {
    root.problem("complete is 0: the training run ended before its capture",
                 "capture again; the file is renamed into place when it is complete");
  }
  root.problems().throw_if_any();
}

void read_lines(const StoredFields& root, Capture& capture) {
  const StoredFields lines = root.optional("lines");
  if (!lines.there()) return;
  try {
    capture.lines = script_lines_from_json(lines.take_text());
  } catch (const InputError& error) {
    for (const std::string& problem : error.problems()) lines.problem(problem);
  }
}

}  // namespace

int64_t number_of(const std::string& name) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), value);
  return error == std::errc() && end == name.data() + name.size() && value >= 0 ? value : -1;
}

Capture read_capture(const std::string& path, CaptureUse use) {
  const FileBlock block = check_file_block(path, kCaptureBlock);
  require_memory_to_read(path, block, use);
  StoredNode tree = read_tree(path, block, use, /*extents=*/false);
  ProblemList problems("capture '" + path + "'");
  const StoredFields root(&tree, path + ":", problems);
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
  if (root.has_attribute("watch")) capture.watch = root.texts("watch");
  read_lines(root, capture);
  capture.v0 = root.text("v0", /*required=*/false);
  capture.world_size = root.integer("world_size", 1, /*required=*/false);
  read_amp(root, capture);
  read_graphs(root, capture);
  problems.throw_if_any();  // nothing below can be checked without graphs
  read_values(root, capture, capture.start.values);
  read_optimizer(root, capture);
  read_steps(root, capture);
  read_verify(root, capture);
  read_part(root, use == CaptureUse::kVerify, capture);
  problems.throw_if_any();
  return capture;
}

}  // namespace lockstep
