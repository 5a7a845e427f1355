// Globs, splitting, numbers, and files that are written completely or not at all.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "tests/support/temporary_folder.h"

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

TEST_CASE("text of unknown origin") {
  for (const char* plain : {"", "a b\\c", "z\xc3\xbcrich", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    CHECK(printable(plain) == plain);
  }
  CHECK(printable("a\x1b[31m\n\x7f") == "a\\u001b[31m\\u000a\\u007f");
  CHECK(printable(std::string_view("\0", 1)) == "\\u0000");
  CHECK(printable("\xc2\x9b") == "\\u009b");                       // C1: also begins a command
  CHECK(printable("\xe2\x80\xae") == "\\u202e");                   // reverses the writing direction
  CHECK(printable("\xff") == "\\xff");                             // never occurs in UTF-8
  CHECK(printable("\xc3") == "\\xc3");                             // cut off
  CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");                    // not the shortest form
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // a surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  CHECK(printable(std::string(100, 'x'), 10) == std::string(10, 'x') + "...");
  CHECK(printable(printable("\xff\x01")) == printable("\xff\x01"));
}

TEST_CASE("thousands") {
  CHECK(with_thousands(0) == "0");
  CHECK(with_thousands(999) == "999");
  CHECK(with_thousands(1000) == "1 000");
  CHECK(with_thousands(1234567) == "1 234 567");
}

TEST_CASE("files are replaced completely") {
  const lockstep::testing::TemporaryFolder temporary;
  const fs::path folder = temporary.path();
  const std::string path = temporary.file("a.txt");
  write_text_file_atomically(path, "first");
  write_text_file_atomically(path, std::string("second\0x", 8));
  CHECK(read_text_file(path) == std::string("second\0x", 8));
  write_text_file_atomically(path, "");
  CHECK(read_text_file(path) == "");
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);
  // No file is left over after a failure.
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
}
