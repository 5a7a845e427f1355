// lockstep_fuzz: inputs for every reader, in processes with limits. `lockstep_fuzz --help`
// explains.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <filesystem>
#include <numeric>

#include "src/core/error.h"
#include "src/core/text.h"
#include "src/core/text_file.h"
#include "tests/fuzz/campaign.h"
#include "tests/fuzz/escaped.h"
#include "tests/fuzz/mutate.h"
#include "tests/fuzz/seed_files.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::fuzz {
namespace {

namespace fs = std::filesystem;

struct Args {
  std::vector<std::string> names;
  double seconds = 0;
  uint64_t inputs = 0, seed = 1;
  int jobs = 1;
  std::string corpus, file, out = "fuzz-findings", markdown;
  std::optional<uint64_t> input;
  bool list = false, show = false, reduce = false, seed_of_day = false, test = false;
};

// In another process, which may use threads: this one forks workers.
void make_seeds_apart(const std::string& folder) {
  std::fflush(nullptr);
  const pid_t process = fork();
  if (process == 0) {
    try {
      make_seed_files(folder);
    } catch (const std::exception& error) {
      fmt::print(stderr, "lockstep_fuzz: seed files: {}\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  waitpid(process, &status, 0);
  if (status != 0) throw std::runtime_error("the seed files could not be made");
}

std::vector<const Target*> chosen(const std::vector<std::string>& names) {
  std::vector<const Target*> found;
  for (const std::string& name : names) found.push_back(&find_target(name));
  for (const Target& target : targets()) {
    if (names.empty()) found.push_back(&target);
  }
  return found;
}

void print_row(const std::string& name, const Tally& t) {
  fmt::print("{:<15} {:>9} {:>9} {:>9} {:>8} {:>9.0f}\n", name, t.inputs, t.accepted, t.refused,
             t.findings, static_cast<double>(t.inputs) / std::max(t.seconds, 1e-3));
  std::fflush(stdout);
}

// Inputs are shared by weight; of time, the slow readers of HDF5 files get more.
double seconds_share(const Target& target) {
  constexpr double kSlow = 4;
  return target.grammar == Grammar::kEdits ? kSlow : 1;
}

int campaign(const Args& args, CampaignOptions options) {
  const std::vector<const Target*> all = chosen(args.names);
  const auto total = [&](auto share) {
    return std::accumulate(all.begin(), all.end(), 0.0,
                           [&](double sum, const Target* t) { return sum + share(*t); });
  };
  fmt::print("{:<15} {:>9} {:>9} {:>9} {:>8} {:>9}\n", "target", "inputs", "accepted", "refused",
             "findings", "inputs/s");
  Tally sum;
  std::string table;
  for (const Target* target : all) {
    options.seconds = args.seconds * seconds_share(*target) / total(seconds_share);
    if (args.inputs > 0) {
      const double share = target->weight / total([](const Target& t) { return t.weight; });
      options.inputs = static_cast<uint64_t>(share * static_cast<double>(args.inputs) + 0.5);
      options.seconds = 0;
    }
    const Tally t = run_campaign(*target, options);
    print_row(std::string(target->name), t);
    table += fmt::format("| {} | {} | {} | {} | {} | {} |\n", target->name, target->reads, t.inputs,
                         t.accepted, t.refused, t.findings);
    sum.inputs += t.inputs;
    sum.accepted += t.accepted;
    sum.refused += t.refused;
    sum.findings += t.findings;
    sum.seconds += t.seconds;
  }
  print_row("all", sum);
  table += fmt::format("| all | | {} | {} | {} | {} |\n", sum.inputs, sum.accepted, sum.refused,
                       sum.findings);
  if (!args.markdown.empty()) {
    write_text_file_atomically(
        args.markdown,
        "| target | reads | inputs | accepted | refused | findings |\n|---|---|---|---|---|---|\n" +
            table);
  }
  if (sum.findings > 0) fmt::print("findings are in {}\n", options.findings);
  return sum.findings > 0 ? 1 : 0;
}

// Leaves out ever shorter pieces as long as something is found.
std::string reduced(const Target& target, std::string input, const CampaignOptions& options) {
  const auto is_kept = [&](const std::string& shorter) {
    return !run_one(target, shorter, options).empty();
  };
  if (!is_kept(input)) return input;
  for (size_t length = input.size() / 2; length > 0; length /= 2) {
    for (size_t at = 0; at < input.size();) {
      std::string shorter = input;
      shorter.erase(at, length);
      if (is_kept(shorter)) {
        input = std::move(shorter);
      } else {
        at += length;
      }
    }
  }
  return input;
}

int one(const Target& target, const std::string& name, const std::string& input,
        const CampaignOptions& options) {
  const std::string found = run_one(target, input, options);
  if (found.empty()) return 0;
  fmt::print("{} {}: {}\n", target.name, name, found);
  return 1;
}

// An input from a file: the file itself, or what it describes (escaped.h).
std::string input_from(const std::string& path) {
  const std::string text = read_text_file(path);
  return path.ends_with(".pieces") ? joined_pieces(text) : text;
}

// CORPUS/TARGET/FILE, every file.
int corpus(const Args& args, const CampaignOptions& options) {
  int count = 0, findings = 0;
  for (const Target* target : chosen(args.names)) {
    const std::string folder = args.corpus + "/" + std::string(target->name);
    if (!fs::exists(folder)) continue;
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path().string());
    std::ranges::sort(files);
    for (const std::string& file : files) {
      ++count;
      findings += one(*target, fs::path(file).filename().string(), input_from(file), options);
    }
  }
  fmt::print("{} files of the corpus, {} findings\n", count, findings);
  return findings > 0 || count == 0 ? 1 : 0;
}

int run(const Args& args) {
  if (args.list) {
    for (const Target& target : targets()) fmt::print("{:<15} {}\n", target.name, target.reads);
    return 0;
  }
  const testing::TemporaryFolder work;
  CampaignOptions options;
  options.seed = args.seed;
  if (args.seed_of_day) {
    constexpr uint64_t kSecondsPerDay = 86'400;
    options.seed = static_cast<uint64_t>(std::time(nullptr)) / kSecondsPerDay;
    fmt::print("--seed {}\n", options.seed);
  }
  options.jobs = args.jobs;
  options.findings = args.out;
  options.work = work.path();
  seed_folder() = work.file("seeds");
  fs::create_directories(seed_folder());
  make_seeds_apart(seed_folder());
  if (args.test) {
    options.findings = work.file("planted");
    return test_campaign(options);
  }
  if (!args.corpus.empty()) return corpus(args, options);
  if (args.input || !args.file.empty()) {
    if (args.names.size() != 1) throw InputError("--input, --file: of one target");
    const Target& target = find_target(args.names[0]);
    const std::string text = args.input ? input_of(target, target.seeds(), args.seed, *args.input)
                                        : input_from(args.file);
    if (args.reduce) {
      fmt::print("{}\n", escaped(reduced(target, text, options)));
      return 0;
    }
    if (args.show) fmt::print("{}\n", text);
    const int code = one(target, "this input", text, options);
    if (code == 0) fmt::print("nothing found\n");
    return code;
  }
  if (args.seconds <= 0 && args.inputs == 0) throw InputError("--seconds or --inputs required");
  return campaign(args, options);
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) {
  lockstep::fuzz::Args args;
  CLI::App app("Feeds mutated inputs to every reader of files and texts.", "lockstep_fuzz");
  app.add_option("TARGET", args.names, "by default all; --list names them");
  app.add_option("--seconds", args.seconds, "of the campaign; readers of HDF5 files get most");
  app.add_option("--inputs", args.inputs, "of the campaign, shared by weight");
  app.add_option("--seed", args.seed, "of the mutations")->capture_default_str();
  app.add_flag("--seed-of-day", args.seed_of_day, "another seed each day; it is printed");
  app.add_option("--input", args.input, "this input of the campaign alone");
  app.add_option("--file", args.file, "this file as input");
  app.add_option("--corpus", args.corpus, "every file of FOLDER/TARGET/");
  app.add_option("--jobs", args.jobs, "workers at the same time")->capture_default_str();
  app.add_option("--out", args.out, "the folder for findings")->capture_default_str();
  app.add_option("--markdown", args.markdown, "write the table here, too");
  app.add_flag("--test", args.test, "check that planted faults are found");
  app.add_flag("--show", args.show, "print the input");
  app.add_flag("--reduce", args.reduce, "print a shorter input in which something is found");
  app.add_flag("--list", args.list, "print the targets");
  CLI11_PARSE(app, argc, argv);
  try {
    return lockstep::fuzz::run(args);
  } catch (const std::exception& error) {
    fmt::print(stderr, "lockstep_fuzz: {}\n", error.what());
    return 2;
  }
}
