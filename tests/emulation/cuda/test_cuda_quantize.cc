// Rounding and statistics on a device, run by the host and by a GPU if there is one: every bit and
// every number must be the scalar kernel's.
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "emulation/kernels/cuda/quantize.h"
#include "emulation/kernels/reduction.h"
#include "emulation/kernels/scalar/rounding/quantize.h"
#include "tests/emulation/kernels/quantize_cases.h"

namespace lockstep {
namespace {

using cuda::NumbersOnDevice;

// The host, and the GPU where there is one.
std::vector<cuda::Device*> rounding_devices() {
  std::vector<cuda::Device*> all{&cuda::host_device()};
  if (cuda::gpu_device() != nullptr) all.push_back(cuda::gpu_device());
  return all;
}

// Words in the memory of a device.
class WordsThere {
 public:
  WordsThere(cuda::Device& device, const void* words, int64_t count, int bytes)
      : device_(device), words_{nullptr, count, bytes} {
    if (count == 0) return;
    const auto size = static_cast<size_t>(count * bytes);
    words_.data = device.allocate(size);
    device.upload(words_.data, words, size);
  }
  ~WordsThere() {
    if (words_.data != nullptr) device_.release(words_.data);
  }
  WordsThere(const WordsThere&) = delete;
  WordsThere& operator=(const WordsThere&) = delete;
  NumbersOnDevice dense() const { return {words_, words_.count, 1, 1, 1, 1}; }

 private:
  cuda::Device& device_;
  cuda::Words words_;
};

QuantizeSpec keyed(const Format& format, Rounding rounding) {
  return {&format, rounding, {.seed = 7, .stream = 1, .site = 3, .step = 9}};
}

// "" or how the device differs from the scalar kernel on these numbers.
std::string difference_from_scalar(cuda::Device& device, cuda::DeviceQuantizer& quantizer,
                                   const std::vector<float>& data, const QuantizeSpec& spec,
                                   const NumbersOnDevice* numbers = nullptr) {
  const auto count = static_cast<int64_t>(data.size());
  std::vector<float> want(data.size()), got(data.size()), unmeasured(data.size());
  TensorStats want_stats, got_stats;
  got_stats.count = 7;  // must be overwritten
  scalar_quantize(data.data(), want.data(), count, spec, &want_stats);
  const WordsThere there(device, data.data(), count, 4);
  const NumbersOnDevice before = numbers != nullptr ? *numbers : there.dense();
  quantizer.run(before, spec, unmeasured.data(), nullptr);
  const std::string alone = difference(want, unmeasured);
  if (!alone.empty()) return "without statistics: " + alone;
  quantizer.run(before, spec, got.data(), &got_stats);
  return difference(want, got) + difference(want_stats, got_stats);
}

// The host's device with a fault in its launches. `change` returns false to leave a launch out.
class FaultyDevice final : public cuda::Device {
 public:
  explicit FaultyDevice(std::function<bool(cuda::Kernel&)> change) : change_(std::move(change)) {}
  std::string name() const override { return "faulty"; }
  const Hardware& hardware() const override { return host().hardware(); }
  void* allocate(size_t bytes) override { return host().allocate(bytes); }
  void release(void* memory) override { host().release(memory); }
  void upload(void* to, const void* from, size_t n) override { host().upload(to, from, n); }
  void download(void* to, const void* from, size_t n) override { host().download(to, from, n); }
  cuda::Algorithm multiply(const cuda::Product& p) override { return host().multiply(p); }
  void launch(const cuda::Kernel& kernel) override {
    cuda::Kernel changed = kernel;
    if (change_(changed)) host().launch(changed);
  }

 private:
  static cuda::Device& host() { return cuda::host_device(); }
  std::function<bool(cuda::Kernel&)> change_;
};

}  // namespace

TEST_CASE("cuda engine: rounding and statistics on a device are the scalar kernel's") {
  int64_t cases = 0;
  for (cuda::Device* device : rounding_devices()) {
    CAPTURE(device->name());
    cuda::DeviceQuantizer quantizer(*device);
    for (const Format* format : tested_formats()) {
      for (const RoundingInfo& mode : roundings()) {
        for (const int64_t size : {0, 1, 33, 4095, 4096, 8209}) {
          const bool large = size >= 4095;
          if (large && mode.rounding != Rounding::kNearestEven &&
              mode.rounding != Rounding::kStochastic) {
            continue;
          }
          for (const Content content :
               {Content::kTame, Content::kWild, Content::kLarge, Content::kBits}) {
            const auto data = make_data(size, *format, content, static_cast<uint32_t>(cases));
            const std::string wrong =
                difference_from_scalar(*device, quantizer, data, keyed(*format, mode.rounding));
            ++cases;
            if (wrong.empty()) continue;
            INFO(format->name << " " << mode.name << " size " << size);
            CHECK(wrong == "");
          }
        }
      }
    }
  }
  CHECK(cases > 2000);
}

TEST_CASE("cuda engine: rounding on a device: many blocks share the records of counts") {
  for (cuda::Device* device : rounding_devices()) {
    cuda::DeviceQuantizer quantizer(*device);
    for (const char* name : {"fp16", "fp8_e4m3", "tf32", "fp32"}) {
      CAPTURE(name);
      const Format& format = find_format(name);
      for (const Content content : {Content::kTame, Content::kWild}) {
        const auto data = make_data(37 * kReductionBlock + 5, format, content, 17);
        for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
          CHECK(difference_from_scalar(*device, quantizer, data, keyed(format, rounding)) == "");
        }
      }
    }
    CHECK(quantizer.allocations() <= 6);  // buffers only grow
  }
}

TEST_CASE("cuda engine: rounding on a device reads every FP16 number") {
  std::vector<uint16_t> codes(1 << 16);
  std::vector<float> values(codes.size());
  for (size_t code = 0; code < codes.size(); ++code) {
    codes[code] = static_cast<uint16_t>(code);
    values[code] = static_cast<float>(decode(code, find_format("fp16")));
  }
  for (cuda::Device* device : rounding_devices()) {
    cuda::DeviceQuantizer quantizer(*device);
    const WordsThere there(*device, codes.data(), std::ssize(codes), 2);
    const NumbersOnDevice halves = there.dense();
    for (const char* name : {"fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2", "fp16+flush_out"}) {
      CAPTURE(name);
      for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
        const QuantizeSpec spec = keyed(find_format(name), rounding);
        CHECK(difference_from_scalar(*device, quantizer, values, spec, &halves) == "");
      }
    }
  }
}

TEST_CASE("cuda engine: rounding on a device skips what lies between rows and matrices") {
  constexpr int64_t kMatrices = 3, kRows = 37, kColumns = 53, kRowStep = 64, kMatrixRows = 48;
  const Format& format = find_format("fp16");
  const auto padded = make_data(kMatrices * kMatrixRows * kRowStep, format, Content::kWild, 5);
  std::vector<float> data;
  for (int64_t row = 0; row < kMatrices * kRows; ++row) {
    const float* from = padded.data() + (row / kRows * kMatrixRows + row % kRows) * kRowStep;
    data.insert(data.end(), from, from + kColumns);
  }
  for (cuda::Device* device : rounding_devices()) {
    cuda::DeviceQuantizer quantizer(*device);
    const WordsThere there(*device, padded.data(), std::ssize(padded), 4);
    NumbersOnDevice rows = there.dense();
    rows.count = std::ssize(data);
    rows.rows = kRows, rows.columns = kColumns;
    rows.row_step = kRowStep, rows.matrix_step = kMatrixRows * kRowStep;
    for (const Rounding rounding : {Rounding::kNearestEven, Rounding::kStochastic}) {
      CHECK(difference_from_scalar(*device, quantizer, data, keyed(format, rounding), &rows) == "");
    }
  }
}

TEST_CASE("cuda engine: measuring alone on a device") {
  const Format& format = find_format("fp16");
  const auto data = make_data(5000, format, Content::kWild, 77);
  const QuantizeSpec spec{.format = &format, .measure_only = true};
  TensorStats want, got;
  scalar_quantize<float>(data.data(), nullptr, std::ssize(data), spec, &want);
  for (cuda::Device* device : rounding_devices()) {
    cuda::DeviceQuantizer quantizer(*device);
    const WordsThere there(*device, data.data(), std::ssize(data), 4);
    const cuda::CopiedBytes copied = quantizer.run(there.dense(), spec, nullptr, &got);
    CHECK(difference(want, got) == "");
    CHECK(copied.up == 2 * sizeof(TensorStats));  // two blocks
    CHECK(copied.down == 2 * sizeof(TensorStats) + 2 * 16 * sizeof(cuda::MeasuredSums));
    CHECK(quantizer.run(there.dense(), spec, nullptr, nullptr).down == 0);
  }
  CHECK(!cuda::DeviceQuantizer::rounds({.format = &find_format("fp64")}));
}

TEST_CASE("cuda engine: faults of a device that rounds are noticed") {
  const Format& format = find_format("fp16");
  const auto wrong = [&](cuda::Device& device) {
    cuda::DeviceQuantizer quantizer(device);
    std::string all;
    for (const Content content : {Content::kTame, Content::kWild}) {
      const auto data = make_data(3 * kReductionBlock + 100, format, content, 3);
      all += difference_from_scalar(device, quantizer, data, keyed(format, Rounding::kNearestEven));
    }
    return all;
  };
  const auto on_measure = [](auto change) {
    return [change](cuda::Kernel& kernel) {
      if (auto* measure = std::get_if<cuda::MeasureLanes>(&kernel)) change(*measure);
      return true;
    };
  };
  const std::function<bool(cuda::Kernel&)> faults[] = {
      [](cuda::Kernel& k) { return !std::holds_alternative<cuda::RoundElements>(k); },
      on_measure([](cuda::MeasureLanes& m) { cuda::host_device().launch(m); }),  // counts twice
      on_measure([](cuda::MeasureLanes& m) { m.ranges.data[16].largest = ~0u; }),
      on_measure([](cuda::MeasureLanes& m) { m.round.code.infinity -= 1; }),
      on_measure([](cuda::MeasureLanes& m) { m.limits.min_normal *= 2; }),
      on_measure([](cuda::MeasureLanes& m) { m.counts.data[0].abs_max = 1e39; }),
      on_measure([](cuda::MeasureLanes& m) { m.counts.data[0].abs_min_nonzero = 1e-60; }),
  };
  for (const auto& fault : faults) {
    CAPTURE(&fault - faults);
    FaultyDevice device(fault);
    CHECK(wrong(device) != "");
  }
  FaultyDevice sound([](cuda::Kernel&) { return true; });
  CHECK(wrong(sound) == "");
}

TEST_CASE("cuda engine: kernels that round check every access on the host") {
  float words[4] = {1, 2, 3, 4};
  cuda::FindRanges kernel{{{words, 3, 4}, 4, 1, 1, 1, 1}, {}};
  CHECK_THROWS_WITH_AS(kernel(3), "kernel: element 3 of 3", std::logic_error);
  kernel.before.words.count = 4;
  CHECK_THROWS_WITH_AS(kernel(3), "kernel: element 3 of 0", std::logic_error);
}

}  // namespace lockstep
