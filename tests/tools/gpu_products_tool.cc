// Measures how far cuBLAS's products are from the models of its tensor cores.
// Random matrices go through the engine `cuda` on the GPU and through the software kernels under
// the accumulator that a lane @cuda declares. A product that cuBLAS forms in one chain, k
// ascending, is equal bit for bit. For the others the table shows which algorithm was chosen, how
// far apart the results are, and which division of the sum into chains of the model gives them, if
// one does. Ends with exit code 3 if there is no GPU.
//   lockstep_gpu_products_tool [--host | --saved] [--no-split-k] [FOLDER]
// --no-split-k: cuBLAS may not split sums ([cuda] split_k = false). --host: the device that stands
// in for a GPU, a test of this program. FOLDER: results that differ are written there, (M,N) of
// FP32, if they are not large. --saved: reads such results of an H100 instead of using a GPU.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda/gemm.h"
#include "emulation/kernels/cuda/model_gemm.h"
#include "src/core/error.h"
#include "src/core/random.h"

namespace lockstep {
namespace {

struct Size {
  int64_t m, n, k;
};
constexpr Size kSizes[] = {
    {16, 8, 16},        {33, 17, 65},     {64, 64, 64},     {32, 120, 400},
    {128, 128, 256},    {256, 256, 1000}, {512, 512, 512},  {256, 768, 3072},
    {1024, 1024, 1024}, {64, 64, 16384},  {16, 576, 32768}, {2048, 2048, 1024},
};
struct Kind {
  const char *accumulator, *a, *b;
};
constexpr Kind kKinds[] = {
    {"fp16", "fp16", "fp16"},
    {"fp16_acc16", "fp16", "fp16"},
    {"bf16", "bf16", "bf16"},
    {"tf32", "tf32", "tf32"},
    {"fp8", "fp8_e4m3", "fp8_e4m3"},
    {"fp8", "fp8_e5m2", "fp8_e4m3"},
    {"fp8_promoted", "fp8_e4m3", "fp8_e4m3"},
};

std::vector<float> normal_values(const RandomStream& stream, int64_t count, const Format& format) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    double sum = 0;  // of four uniform numbers: near enough to normal
    for (uint64_t j = 0; j < 4; ++j) sum += stream.uniform(4 * static_cast<uint64_t>(i) + j) - 0.5;
    values[static_cast<size_t>(i)] =
        static_cast<float>(round_to_format(sum * std::sqrt(3.0), format, Rounding::kNearestEven));
  }
  return values;
}

double milliseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

bool same_bits(const float* x, const float* y, int64_t count) {
  return std::memcmp(x, y, static_cast<size_t>(count) * sizeof(float)) == 0;
}

// How a library may divide a sum over k: into parts of `length`, each a chain of its own; the parts
// are added in the sums' format, ascending. What a part has beyond multiples of `tile` comes first.
struct Division {
  int64_t length, tile;
};

// The first `rows` rows of the product, in (rows, N).
std::vector<float> divided(GemmArgs<float> args, const Division& division, int64_t rows) {
  const auto count = static_cast<size_t>(rows * args.n);
  std::vector<float> sum(count), part(count);
  args.m = rows;
  args.c = part.data();
  const int64_t k = args.k;
  const float *a = args.a, *b = args.b;
  const auto add_chain = [&](int64_t begin, int64_t end, bool goes_on) {
    args.a = a + begin, args.b = b + begin, args.k = end - begin;
    args.start_from_c = goes_on;
    active_kernels().f32.gemm(args);
  };
  for (int64_t begin = 0; begin < k; begin += division.length) {
    const int64_t end = std::min(k, begin + division.length);
    const int64_t rest = (end - begin) % division.tile;
    if (rest != 0) add_chain(begin, begin + rest, false);
    if (begin + rest < end) add_chain(begin + rest, end, rest != 0);
    for (size_t i = 0; i < count; ++i) {
      const double both = static_cast<double>(sum[i]) + part[i];
      sum[i] = begin == 0 ? part[i]
                          : static_cast<float>(round_to_format(
                                both, *args.accumulator->register_format, Rounding::kNearestEven));
    }
  }
  return sum;
}

// The division that gives these results, in words, or "".
std::string explained(const GemmArgs<float>& args, const std::vector<float>& results) {
  constexpr int64_t kMostParts = 64, kFewRows = 4;
  const int64_t rows = std::min(args.m, kFewRows);
  std::set<int64_t, std::greater<>> lengths;
  for (int64_t parts = 1; parts <= kMostParts; ++parts) {
    for (const int64_t tile : {4, 8, 16, 32, 64, 128}) {
      const int64_t even = (args.k + parts - 1) / parts;
      lengths.insert(std::min(args.k, (even + tile - 1) / tile * tile));
    }
  }
  for (const int64_t length : lengths) {
    for (const int64_t tile : {1, 8, 16, 32, 64, 128}) {
      const Division division{length, tile};
      if (!same_bits(divided(args, division, rows).data(), results.data(), rows * args.n)) continue;
      if (!same_bits(divided(args, division, args.m).data(), results.data(), args.m * args.n)) {
        continue;
      }
      const int64_t parts = (args.k + length - 1) / length;
      std::string text = parts == 1 ? "one chain" : fmt::format("{} parts of {}", parts, length);
      const bool begins_with_rest = length % tile != 0 || args.k % length % tile != 0;
      if (tile > 1 && begins_with_rest) text += fmt::format(", k modulo {} first", tile);
      return text;
    }
  }
  return "";
}

// What a device made of a product.
struct Made {
  std::vector<float> results;
  std::string algorithm;
  double engine_ms = 0, product_ms = 0;
};

Made on_device(cuda::Device& device, GemmArgs<float> args) {
  Made made;
  made.results.resize(static_cast<size_t>(args.m * args.n));
  args.c = made.results.data();
  const int64_t products = cuda::traffic(device).products;
  cuda::cuda_gemm(args, active_kernels().f32.gemm, device);  // loads the library's kernels
  const double before = cuda::traffic(device).seconds;
  const auto begin = std::chrono::steady_clock::now();
  cuda::cuda_gemm(args, active_kernels().f32.gemm, device);
  made.engine_ms = milliseconds_since(begin);
  const cuda::Traffic after = cuda::traffic(device);
  made.product_ms = 1e3 * (after.seconds - before);
  const auto found =
      after.algorithms.find(cuda::product_text(args, *args.a_format, *args.b_format));
  const bool ran = after.products != products && found != after.algorithms.end();
  made.algorithm = ran ? found->second.text : "software";
  return made;
}

// Milliseconds of the kernels that compute the model on a device (--software-device), in words.
std::string model_ms(cuda::Device& device, GemmArgs<float> args, const std::vector<float>& wanted) {
  std::vector<float> results(wanted.size());
  args.c = results.data();
  cuda::model_gemm(args, active_kernels().f32.gemm, device, 0);  // allocates
  const auto begin = std::chrono::steady_clock::now();
  cuda::model_gemm(args, active_kernels().f32.gemm, device, 0);
  const double ms = milliseconds_since(begin);
  const bool is_equal = same_bits(results.data(), wanted.data(), std::ssize(wanted));
  return fmt::format("{:.2f}{}", ms, is_equal ? "" : ", OTHER BITS");
}

// `device`: null reads results from `folder`.
void compare(cuda::Device* device, const Hardware& hardware, const Kind& kind, const Size& size,
             const LibraryRules& rules, const std::string& folder) {
  std::string name(hardware.name);
  std::ranges::replace(name, '-', '_');
  const std::string row = name + "_" + kind.accumulator;
  const auto all = accumulators();
  const auto known = std::ranges::find(all, row, &Accumulator::name);
  if (known == all.end()) {
    fmt::print("| {} | not run: {} has no such unit |\n", row, hardware.name);
    return;
  }
  const Accumulator& accumulator = with_library_rules(*known, rules);
  const Format &fa = find_format(kind.a), &fb = find_format(kind.b);
  const std::string path = fmt::format("{}/{}_{}_{}_{}x{}x{}.f32", folder, accumulator.name,
                                       fa.name, fb.name, size.m, size.n, size.k);
  if (device == nullptr && !std::ifstream(path)) return;
  const std::vector<float> a =
      normal_values(RandomStream(1, RandomPurpose::kTest, 1), size.m * size.k, fa);
  const std::vector<float> b =
      normal_values(RandomStream(1, RandomPurpose::kTest, 2), size.n * size.k, fb);
  std::vector<float> ours(static_cast<size_t>(size.m * size.n));
  const GemmArgs<float> args{.transpose_b = true,
                             .m = size.m,
                             .n = size.n,
                             .k = size.k,
                             .a = a.data(),
                             .lda = size.k,
                             .b = b.data(),
                             .ldb = size.k,
                             .c = ours.data(),
                             .ldc = size.n,
                             .accumulator = &accumulator,
                             .a_format = &fa,
                             .b_format = &fb};
  const auto begin = std::chrono::steady_clock::now();
  active_kernels().f32.gemm(args);
  const double software_ms = milliseconds_since(begin);
  Made made{.results = std::vector<float>(ours.size()), .algorithm = "saved"};
  if (device != nullptr) {
    try {
      made = on_device(*device, args);
    } catch (const InputError& error) {
      fmt::print("| {} | {} x {} | {}x{}x{} | not run: {} |\n", accumulator.name, fa.name, fb.name,
                 size.m, size.n, size.k, error.what());
      return;
    }
  } else {
    const auto bytes = static_cast<std::streamsize>(made.results.size() * sizeof(float));
    std::ifstream file(path, std::ios::binary);
    file.read(reinterpret_cast<char*>(made.results.data()), bytes);
    if (file.gcount() != bytes) throw InputError(path + ": has fewer results than the product");
  }

  int64_t different = 0;
  double largest = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (same_bits(&ours[i], &made.results[i], 1)) continue;
    ++different;
    const double root = std::sqrt(static_cast<double>(size.k));  // the results' typical size
    largest = std::max(largest, std::abs(static_cast<double>(ours[i]) - made.results[i]) / root);
  }
  fmt::print(
      "| {} | {} x {} | {}x{}x{} | {} | {} of {} | {} | {} | {:.2f} | {} | {:.2f} | {:.3f} |\n",
      accumulator.name, fa.name, fb.name, size.m, size.n, size.k, made.algorithm, different,
      ours.size(), different == 0 ? std::string("0") : fmt::format("{:.1e}", largest),
      different == 0 ? "" : explained(args, made.results), software_ms,
      device != nullptr ? model_ms(*device, args, ours) : "", made.engine_ms, made.product_ms);
  std::fflush(stdout);
  constexpr size_t kMostSaved = 1 << 18;
  if (device == nullptr || folder.empty() || different == 0 || ours.size() > kMostSaved) return;
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(made.results.data()),
             static_cast<std::streamsize>(made.results.size() * sizeof(float)));
}

enum class Source { kGpu, kHost, kSaved };

int run(Source source, const LibraryRules& rules, const std::string& folder) {
  std::string why_not;
  cuda::Device* device = source == Source::kGpu ? cuda::gpu_device(&why_not) : &cuda::host_device();
  if (device == nullptr) {
    fmt::print("not run: {}\n", why_not);
    return 3;
  }
  const Hardware& hardware = device->hardware();
  if (source == Source::kSaved) device = nullptr;
  fmt::print("Device: {}\n\n", device != nullptr ? device->name() : "results in " + folder);
  fmt::print(
      "| model | factors | m x n x k | algorithm | different from the model | largest difference / "
      "sqrt(k) | equal to the model in | model on the CPU, ms | model on the device, ms | second "
      "call of the engine, "
      "ms | of it the product, ms |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Kind& kind : kKinds) {
    for (const Size& size : kSizes) compare(device, hardware, kind, size, rules, folder);
  }
  fmt::print("\n{}", cuda::traffic_text());
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Source source = lockstep::Source::kGpu;
  lockstep::LibraryRules rules;
  std::string folder;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--host") {
      source = lockstep::Source::kHost;
    } else if (argument == "--saved") {
      source = lockstep::Source::kSaved;
    } else if (argument == "--no-split-k") {
      rules.splits_k = false;
    } else if (argument.starts_with("-")) {
      fmt::print(stderr, "unknown option {}: must be --host, --saved or --no-split-k\n", argument);
      return 2;
    } else {
      folder = argument;
    }
  }
  if (source == lockstep::Source::kSaved && folder.empty()) {
    fmt::print(stderr, "--saved needs a folder\n");
    return 2;
  }
  try {
    return lockstep::run(source, rules, folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
