// Globs, splitting, numbers, and files that are written whole or not at all.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "src/core/error.h"
#include "src/core/text.h"

using namespace lockstep;
namespace fs = std::filesystem;

TEST_CASE("globs") {
  CHECK(glob_match("*", ""));
  CHECK(glob_match("layer*.conv?", "layer3.0.conv2"));
  CHECK(!glob_match("layer*.conv?", "layer3.0.conv"));
  CHECK(glob_match("*a*b*", "xxaxxaxbx"));
  CHECK(!glob_match("a*b", "axbx"));
  CHECK(!glob_match("Conv", "conv"));
  CHECK(glob_match("**?", "x"));
  CHECK(!glob_match("?", ""));
}

TEST_CASE("split and join") {
  CHECK(split("a,,b", ',') == std::vector<std::string>{"a", "", "b"});
  CHECK(split("", ',') == std::vector<std::string>{""});
  CHECK(join(split("a,b,c", ','), ", ") == "a, b, c");
  CHECK(join({}, ",") == "");
}

TEST_CASE("thousands") {
  CHECK(with_thousands(0) == "0");
  CHECK(with_thousands(999) == "999");
  CHECK(with_thousands(1000) == "1 000");
  CHECK(with_thousands(1234567) == "1 234 567");
}

TEST_CASE("files are replaced whole") {
  const fs::path folder = fs::temp_directory_path() / ("lockstep_text_" + std::to_string(getpid()));
  fs::create_directories(folder);
  const std::string path = (folder / "a.txt").string();
  write_text_file_atomically(path, "first");
  write_text_file_atomically(path, std::string("second\0x", 8));
  CHECK(read_text_file(path) == std::string("second\0x", 8));
  write_text_file_atomically(path, "");
  CHECK(read_text_file(path) == "");
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);
  // Neither leaves anything behind when it fails.
  const std::string nowhere = (folder / "missing" / "a.txt").string();
  CHECK_THROWS_WITH_AS(
      write_text_file_atomically(nowhere, "x"),
      ("file '" + nowhere + "': cannot be created: No such file or directory").c_str(), InputError);
  CHECK_THROWS_WITH_AS(
      read_text_file(nowhere),
      ("file '" + nowhere + "': cannot be read: No such file or directory").c_str(), InputError);
  CHECK_THROWS_AS(read_text_file(folder.string()), InputError);
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);
  fs::create_directory(folder / "b");
  CHECK_THROWS_AS(write_text_file_atomically((folder / "b").string(), "x"), InputError);
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 2);
  fs::remove_all(folder);
}
