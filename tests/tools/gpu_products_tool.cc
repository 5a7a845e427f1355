// How far are cuBLAS's products from the models of its tensor cores?
// Random matrices go through the engine `cuda` on the GPU and through the software kernels under
// the accumulator that a lane @cuda declares. A product that cuBLAS forms in one chain, k
// ascending, is equal bit for bit; the table shows for the others which algorithm was chosen and
// how far apart the results are. Ends with exit code 3 if there is no GPU.
//   lockstep_gpu_products_tool [--host]      --host: the device that the host plays, a test of this
//   program
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "emulation/format/rounding.h"
#include "emulation/kernels/active_kernels.h"
#include "emulation/kernels/cuda/gemm.h"
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

void compare(cuda::Device& device, const Kind& kind, const Size& size, const std::string& folder) {
  std::string name(device.hardware().name);
  std::ranges::replace(name, '-', '_');
  const Accumulator& accumulator = find_accumulator(name + "_" + kind.accumulator);
  const Format &fa = find_format(kind.a), &fb = find_format(kind.b);
  const std::vector<float> a =
      normal_values(RandomStream(1, RandomPurpose::kTest, 1), size.m * size.k, fa);
  const std::vector<float> b =
      normal_values(RandomStream(1, RandomPurpose::kTest, 2), size.n * size.k, fb);
  std::vector<float> ours(static_cast<size_t>(size.m * size.n)), theirs(ours.size());
  GemmArgs<float> args{.transpose_b = true,
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
  auto begin = std::chrono::steady_clock::now();
  active_kernels().f32.gemm(args);
  const double software_ms = milliseconds_since(begin);

  args.c = theirs.data();
  const auto products = cuda::traffic(device).products;
  cuda::cuda_gemm(args, active_kernels().f32.gemm, device);  // loads the library's kernels
  const double before = cuda::traffic(device).seconds;
  begin = std::chrono::steady_clock::now();
  cuda::cuda_gemm(args, active_kernels().f32.gemm, device);
  const double engine_ms = milliseconds_since(begin);
  std::string algorithm = "software";
  const cuda::Traffic after = cuda::traffic(device);
  if (after.products != products) {
    const auto is_this = [&](const auto& row) {
      return row.first == fmt::format("{} x {} to {} {}x{}x{}", fa.name, fb.name,
                                      accumulator.register_format->name, size.m, size.n, size.k);
    };
    const auto found = std::ranges::find_if(after.algorithms, is_this);
    if (found != after.algorithms.end()) algorithm = found->second;
  }

  int64_t different = 0;
  double largest = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::memcmp(&ours[i], &theirs[i], sizeof(float)) == 0) continue;
    ++different;
    const double root = std::sqrt(static_cast<double>(size.k));  // the results' typical size
    largest = std::max(largest, std::abs(static_cast<double>(ours[i]) - theirs[i]) / root);
  }
  fmt::print("| {} | {} x {} | {}x{}x{} | {} | {} of {} | {} | {:.2f} | {:.2f} | {:.3f} |\n",
             accumulator.name, fa.name, fb.name, size.m, size.n, size.k, algorithm, different,
             ours.size(), different == 0 ? std::string("0") : fmt::format("{:.1e}", largest),
             software_ms, engine_ms, 1e3 * (after.seconds - before));
  std::fflush(stdout);
  constexpr size_t kMostSaved = 1 << 18;
  if (folder.empty() || different == 0 || theirs.size() > kMostSaved) return;
  std::ofstream(fmt::format("{}/{}_{}_{}_{}x{}x{}.f32", folder, accumulator.name, fa.name, fb.name,
                            size.m, size.n, size.k),
                std::ios::binary)
      .write(reinterpret_cast<const char*>(theirs.data()),
             static_cast<std::streamsize>(theirs.size() * sizeof(float)));
}

int run(bool host, const std::string& folder) {
  std::string why_not;
  cuda::Device* device = host ? &cuda::host_device() : cuda::gpu_device(&why_not);
  if (device == nullptr) {
    fmt::print("not run: {}\n", why_not);
    return 3;
  }
  fmt::print("Device: {}\n\n", device->name());
  fmt::print(
      "| model | factors | m x n x k | algorithm | different from the model | largest difference / "
      "sqrt(k) | software, ms | engine, ms | of it the product, ms "
      "|\n|---|---|---|---|---|---|---|---|---|\n");
  for (const Kind& kind : kKinds) {
    for (const Size& size : kSizes) compare(*device, kind, size, folder);
  }
  const cuda::Traffic all = cuda::traffic(*device);
  fmt::print("\n{} products, {} bytes to the device, {} back, {} allocations\n", all.products,
             all.bytes_up, all.bytes_down, all.allocations);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  bool host = false;
  std::string folder;
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--host") {
      host = true;
    } else {
      folder = argv[i];
    }
  }
  return lockstep::run(host, folder);
}
