// Folders of parts: lists of ranks that belong together, and those that do not.
#include "src/record/capture/parts_index.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>

#include "src/core/text_file.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::testing {
namespace {

std::string rank_list(int rank, const std::string& parts, const std::string& model = "gpt.GPT") {
  return fmt::format(
      R"({{"format": "lockstep-parts", "format_version": 1, "rank": {}, "world_size": 2,
           "model_class": "{}", "complete": {}, "parts": [{}]}})",
      rank, model, rank == 0 ? "true" : "false", parts);
}

std::string captured(const std::string& module, int step = 0) {
  return fmt::format(R"({{"module": "{}", "step": {}, "file": "{}.h5", "status": "captured"}})",
                     module, step, module);
}

struct Folder {
  TemporaryFolder folder;
  explicit Folder() {
    for (const char* rank : {"rank0", "rank1"}) {
      std::filesystem::create_directory(folder.file(rank));
      for (const char* module : {"head", "block"}) {
        write_text_file_atomically(folder.file(fmt::format("{}/{}.h5", rank, module)), "x");
      }
    }
  }
  void write(int rank, const std::string& text) {
    write_text_file_atomically(folder.file(fmt::format("rank{}/parts.json", rank)), text);
  }
  std::string path() { return folder.file(""); }
  std::string error() {
    return error_of([&] { read_parts_index(path()); });
  }
};

TEST_CASE("parts: the ranks of a part stand together, in the order of their calls") {
  Folder folder;
  CHECK_FALSE(is_parts_folder(folder.path()));
  CHECK(folder.error().find("has no parts.json, nor a folder rank0") != std::string::npos);
  folder.write(
      0, rank_list(0, captured("head") + "," + captured("block") + "," + captured("head", 3)));
  folder.write(
      1, rank_list(1, captured("block") + "," +
                          R"({"module": "head", "step": 0, "status": "refused", "why": "no"})"));
  CHECK(is_parts_folder(folder.path()));
  const PartsIndex index = read_parts_index(folder.path());
  CHECK(index.world_size == 2);
  CHECK(index.ranks == std::vector<int64_t>{0, 1});
  CHECK(index.incomplete == std::vector<int64_t>{1});
  std::string order;
  for (const PartEntry& entry : index.entries) {
    order += fmt::format("{}{}@{}{} ", entry.module, entry.step, entry.rank,
                         entry.file.empty() ? entry.why : "");
  }
  CHECK(order == "head0@0 head0@1no block0@0 block0@1 head3@0 ");
  CHECK(read_parts_index(folder.folder.file("rank1")).entries.size() == 2);
}

TEST_CASE("parts: lists that lie, or are of different runs, are refused") {
  Folder folder;
  folder.write(0, rank_list(0, captured("head")));
  folder.write(1, rank_list(1, captured("head"), "other.Net"));
  CHECK(folder.error().find("keep the folders of one run together") != std::string::npos);
  folder.write(1, rank_list(0, captured("head")));
  CHECK(folder.error().find("is of rank 0, which another list has") != std::string::npos);
  for (const char* file : {"../rank0/head.h5", "/head.h5", ""}) {
    folder.write(1, rank_list(1, fmt::format(R"({{"module": "head", "step": 0, "file": "{}",
                                               "status": "captured"}})",
                                             file)));
    CHECK(folder.error().find("must lie below the list") != std::string::npos);
  }
  folder.write(1, rank_list(1, captured("lost")));
  CHECK(folder.error().find("is not there") != std::string::npos);
  folder.write(1, "{");
  CHECK(folder.error().find("is damaged") != std::string::npos);
  folder.write(1, rank_list(1, R"({"module": 3})"));
  CHECK(folder.error().find("is damaged") != std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
