// See judge.h.
#include "tests/fuzz/judge.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>
#include <nlohmann/json.hpp>
#include <typeinfo>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "src/record/run/run_writer.h"

#if defined(__SANITIZE_ADDRESS__)
// libhdf5 allocates as much as a damaged file says, and copes with a failed allocation. Freed
// memory that is kept for later reports counts as used (kMostBytes). Workers end without exit
// handlers, so leaks are not looked for.
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1:max_allocation_size_mb=4096:quarantine_size_mb=32:"
         "detect_leaks=0";
}
// Its copies within one buffer are not checked.
extern "C" const char* __asan_default_suppressions() {
  return "interceptor_via_lib:libhdf5";
}
extern "C" const char* __ubsan_default_options() {
  return "halt_on_error=1:print_stacktrace=1";
}
#endif

namespace lockstep::fuzz {

int run_main(int argc, char** argv);  // program.cc

namespace {

// Parts of messages of libraries and of C++ itself.
constexpr std::string_view kForeign[] = {"[json.exception", "HDF5-DIAG", "std::",
                                         "basic_string",    "stoi",      "stod",
                                         "stoull",          "toml::",    "what():",
                                         "nlohmann::",      "vector::",  "bad optional",
                                         "map::at",         "H5E",       "terminate called",
                                         "regex_error",     "CLI::",     "filesystem error"};

// Sends standard output and error to files while it lives.
class Caught {
 public:
  explicit Caught(const Place& place) : out_(place.file("stdout")), err_(place.file("stderr")) {
    std::fflush(nullptr);
    for (int k = 0; k < 2; ++k) {
      kept_[k] = dup(k + 1);
      const int file =
          open((k == 0 ? out_ : err_).c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
      dup2(file, k + 1);
      close(file);
    }
  }
  Caught(const Caught&) = delete;
  ~Caught() { restore(); }
  void restore() {
    std::fflush(nullptr);
    for (int k = 0; k < 2; ++k) {
      if (kept_[k] < 0) continue;
      dup2(kept_[k], k + 1);
      close(kept_[k]);
      kept_[k] = -1;
    }
  }
  std::string out() const { return read_text_file(out_); }
  std::string err() const { return read_text_file(err_); }

 private:
  std::string out_, err_;
  int kept_[2] = {-1, -1};
};

}  // namespace

void check_text(std::string_view text, std::string_view what) {
  for (const std::string_view part : kForeign) {
    const size_t at = text.find(part);
    if (at == std::string_view::npos) continue;
    const size_t from = at < 200 ? 0 : at - 200;
    throw Finding(
        fmt::format("{}: text of a library: {}", what, printable(text.substr(from, 400))));
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    const std::string inert = printable(line);
    if (inert != line) {
      size_t at = 0;
      while (at < line.size() && at < inert.size() && line[at] == inert[at]) ++at;
      const size_t from = at < 100 ? 0 : at - 100;
      throw Finding(fmt::format("{}: not inert: {} ... {}", what, printable(line, 60),
                                printable(line.substr(from, 300))));
    }
    begin = end + 1;
  }
}

std::string run_program(const std::vector<std::string>& arguments, const Place& place) {
  std::vector<std::string> words = {"lockstep"};
  for (const std::string& word : arguments) {
    words.push_back(word.substr(0, word.find('\0')));  // as a shell would pass it
  }
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  Caught caught(place);
  const int code = run_main(static_cast<int>(words.size()), argv.data());
  caught.restore();
  const std::string out = caught.out(), err = caught.err();
  if (err.find("internal error") != std::string::npos ||
      err.find("out of memory") != std::string::npos) {
    throw Finding(printable(err, 1000));
  }
  check_text(err, "standard error");
  check_text(out, "standard output");
  if (code == 2) throw InputError(err);
  if (code != 0 && code != 1 && code != 3) throw Finding(fmt::format("exit code {}", code));
  return out;
}

Verdict judge(const Target& target, std::string_view input, const Place& place) {
  std::string refusal;
  try {
    try {
      target.run(input, place);
      return {End::kAccepted, ""};
    } catch (const InputError& error) {
      refusal = error.what();
    } catch (const WriteError& error) {
      refusal = error.what();
    }
    check_text(refusal, "message");
    return {End::kRefused, refusal};
  } catch (const Finding& finding) {
    return {End::kFinding, finding.what()};
  } catch (const std::bad_alloc&) {
    return {End::kFinding, "more memory than allowed (bad_alloc)"};
  } catch (const std::exception& error) {
    return {End::kFinding, fmt::format("another exception ({}): {}", typeid(error).name(),
                                       printable(error.what(), 1000))};
  }
}

}  // namespace lockstep::fuzz
