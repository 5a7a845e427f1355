// See parts_index.h.
#include "src/record/capture/parts_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/core/text_hash.h"
#include "src/graph/json_text.h"
#include "src/record/hdf5/file_block.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::string_view kList = "parts.json", kListFormat = "lockstep-parts";
constexpr int64_t kListVersion = 1;

std::vector<fs::path> lists_in(const std::string& folder) {
  std::error_code error;
  if (fs::is_regular_file(fs::path(folder) / kList, error)) return {fs::path(folder) / kList};
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path list = entry.path() / kList;
    std::error_code inner;
    if (entry.path().filename().string().starts_with("rank") && fs::is_regular_file(list, inner)) {
      found.push_back(list);
    }
  }
  std::ranges::sort(found);
  return found;
}

// A file below the list's own folder.
bool is_inside(const fs::path& file) {
  return file.is_relative() && !file.empty() &&
         std::ranges::none_of(file, [](const fs::path& step) { return step == ".."; });
}

PartEntry entry_of(const Json& row, const fs::path& list, int64_t rank, ProblemList& problems) {
  PartEntry entry;
  entry.module = row.at("module").get<std::string>();
  entry.step = row.at("step").get<int64_t>();
  entry.rank = rank;
  if (printable(entry.module) != entry.module) {
    problems.add(fmt::format("'{}': the module '{}' has control characters", list.string(),
                             printable(entry.module)));
  }
  if (row.at("status") != "captured") {
    entry.why = printable(row.at("why").get<std::string>());
    return entry;
  }
  const fs::path file = row.at("file").get<std::string>();
  std::error_code error;
  if (!is_inside(file)) {
    problems.add(fmt::format("'{}': the file of '{}' is '{}', must lie below the list",
                             list.string(), entry.module, printable(file.string())));
  } else if (entry.file = (list.parent_path() / file).string();
             !fs::is_regular_file(entry.file, error)) {
    problems.add(fmt::format("'{}' is not there, '{}' lists it", entry.file, list.string()),
                 "copy the whole folder");
  }
  return entry;
}

void read_list(const fs::path& list, PartsIndex& index, ProblemList& problems) {
  const std::string where = "'" + list.string() + "'";
  try {
    const Json json = parse_json(read_text_file(list.string()));
    if (json.at("format") != kListFormat || json.at("format_version") != kListVersion) {
      problems.add(where + " is not a list of parts of version 1", "a newer version wrote it?");
      return;
    }
    const auto rank = json.at("rank").get<int64_t>();
    const auto size = json.at("world_size").get<int64_t>();
    const auto model = printable(json.at("model_class").get<std::string>());
    if (!index.ranks.empty() && (size != index.world_size || model != index.model_class)) {
      problems.add(fmt::format("{} is of {} on {} ranks, another list of {} on {}", where, model,
                               size, index.model_class, index.world_size),
                   "keep the folders of one run together");
    }
    if (std::ranges::find(index.ranks, rank) != index.ranks.end()) {
      problems.add(fmt::format("{} is of rank {}, which another list has", where, rank));
    }
    index.world_size = size;
    index.model_class = model;
    index.ranks.push_back(rank);
    if (!json.at("complete").get<bool>()) index.incomplete.push_back(rank);
    for (const Json& row : json.at("parts")) {
      index.entries.push_back(entry_of(row, list, rank, problems));
    }
  } catch (const Json::exception& error) {
    problems.add(where + " is damaged: " + printable(error.what()));
  } catch (const InputError& error) {
    problems.add(where + " is damaged: " + printable(error.what()));
  }
}

}  // namespace

bool is_parts_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) && !lists_in(path).empty();
}

PartsIndex read_parts_index(const std::string& folder) {
  ProblemList problems("parts '" + folder + "'");
  PartsIndex index;
  index.folder = folder;
  while (index.folder.size() > 1 && index.folder.ends_with('/')) index.folder.pop_back();
  const std::vector<fs::path> lists = lists_in(folder);
  if (lists.empty()) {
    problems.add("has no parts.json, nor a folder rank0 with one",
                 "give the folder that lockstep_capture.Parts was given");
  }
  for (const fs::path& list : lists) read_list(list, index, problems);
  problems.throw_if_any();
  std::map<std::pair<int64_t, std::string>, size_t> order;
  for (const PartEntry& entry : index.entries) {
    order.try_emplace({entry.step, entry.module}, order.size());
  }
  std::ranges::stable_sort(index.entries, {}, [&](const PartEntry& entry) {
    return std::tuple(entry.step, order.at({entry.step, entry.module}), entry.rank);
  });
  return index;
}

std::string parts_hash(const PartsIndex& index) {
  std::string all;
  for (const PartEntry& entry : index.entries) {
    if (!entry.file.empty()) all += check_file_block(entry.file, kCaptureBlock).sha256;
  }
  return fmt::format("{:016x}", fnv1a(all));
}

std::string hash_of_captured(const std::string& path) {
  if (is_parts_folder(path)) return parts_hash(read_parts_index(path));
  return check_file_block(path, kCaptureBlock).sha256;
}

}  // namespace lockstep
