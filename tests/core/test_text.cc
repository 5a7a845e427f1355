// Globs, splitting, numbers, and files that are written completely or not at all.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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
  CHECK_THROWS_WITH_AS(write_text_file_atomically(nowhere, "x"),
                       ("file '" + nowhere +
                        "': cannot be created: No such file or directory; make the folder first")
                           .c_str(),
                       InputError);
  CHECK_THROWS_WITH_AS(
      read_text_file(nowhere),
      ("file '" + nowhere + "': cannot be read: No such file or directory").c_str(), InputError);
  CHECK_THROWS_AS(read_text_file(folder.string()), InputError);
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);
  fs::create_directory(folder / "b");
  CHECK_THROWS_AS(write_text_file_atomically((folder / "b").string(), "x"), InputError);
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 2);
}

TEST_CASE("lines of unknown origin stay lines") {
  CHECK(printable_lines("") == "");
  CHECK(printable_lines("a\nb\x1b\n") == "a\nb\\u001b\n");
  CHECK(printable_lines("a\r\n\tb") == "a\\u000d\n\\u0009b");
}

TEST_CASE("arguments for a shell are read back unchanged, and control no terminal") {
  CHECK(shell_quoted("a/b-c.h5") == "a/b-c.h5");
  CHECK(shell_quoted("") == "''");
  CHECK(shell_quoted("a b;$(touch x)`y`") == "'a b;$(touch x)`y`'");
  CHECK(shell_quoted("it's") == "'it'\\''s'");
  CHECK(shell_quoted("a\nb\x1b[31m'\\") == "$'a\\012b\\033[31m\\'\\\\'");
  CHECK(shell_quoted("\xff") == "$'\\377'");
  CHECK(shell_quoted("z\xc3\xbcrich") == "'z\xc3\xbcrich'");
  CHECK(shell_path("-o.h5") == "./-o.h5");
  CHECK(shell_path("a.h5") == "a.h5");
  // What bash makes of them.
  for (const std::string word : {"a\nb", "\x1b]0;x\x07", "\xff\xfe", "q'\\\t",
                                 "\x01"
                                 "7",
                                 "-n"}) {
    CAPTURE(printable(word));
    const std::string command = "bash -c " + shell_quoted("printf %s " + shell_quoted(word));
    FILE* const shell = popen(command.c_str(), "r");
    REQUIRE(shell != nullptr);
    char read[64] = {};
    const size_t count = fread(read, 1, sizeof read, shell);
    CHECK(pclose(shell) == 0);
    CHECK(std::string(read, count) == word);
  }
}

TEST_CASE("only regular files are read, and at once") {
  const lockstep::testing::TemporaryFolder temporary;
  const std::string pipe = temporary.file("pipe"), link = temporary.file("link"),
                    file = temporary.file("file");
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  REQUIRE(symlink("/dev/zero", link.c_str()) == 0);
  const auto error_of = [](const std::string& path, size_t most) {
    try {
      read_text_file(path, most);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  constexpr size_t kMost = 1000;
  CHECK(error_of(pipe, kMost) ==
        "file '" + pipe + "': is a pipe, not a file; write its content to a file first");
  CHECK(error_of(link, kMost) == "file '" + link + "': is a device, not a file");
  CHECK(error_of("/", kMost) == "file '/': is a directory, not a file");
  CHECK(error_of(std::string("a\0b", 3), kMost).find("a\\u0000b") != std::string::npos);
  write_text_file_atomically(file, std::string(kMost, 'x'));
  CHECK(read_text_file(file, kMost).size() == kMost);
  CHECK(error_of(file, kMost - 1).find("has more than 999 bytes") != std::string::npos);
  // Its size is 0 before it is read.
  CHECK(!read_text_file("/proc/self/status").empty());
  CHECK(error_of("/proc/self/status", 10).find("has more than 10 bytes") != std::string::npos);
}

TEST_CASE("a file that is written follows no link and waits for no pipe") {
  const lockstep::testing::TemporaryFolder temporary;
  const std::string path = temporary.file("a.txt"), other = temporary.file("other.txt");
  write_text_file_atomically(other, "other");
  fs::create_symlink(other, path + ".partial");
  write_text_file_atomically(path, "new");
  CHECK(read_text_file(path) == "new");
  CHECK(read_text_file(other) == "other");
}

TEST_CASE("what to do about a failed write depends on its reason") {
  CHECK(write_error_hint(ENOSPC).find("disk space") != std::string::npos);
  CHECK(write_error_hint(EACCES).find("may write to") != std::string::npos);
  CHECK(write_error_hint(EFBIG).find("ulimit -f") != std::string::npos);
  CHECK(write_error_hint(EIO) == "");
}
