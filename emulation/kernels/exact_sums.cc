// Exact sums of sampled outputs, and the positions of an output's factors.
#include "emulation/kernels/exact_sums.h"

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

// A running sum in two doubles, high + low: low collects what the additions to high lose.
struct DoubledSum {
  double high = 0, low = 0;
  void add(double x) {
    const double sum = high + x;
    const double part = sum - high;
    low += (high - (sum - part)) + (x - part);
    high = sum;
  }
  double value() const { return high + low; }
};

// The output position that reads image position `at` through kernel element `tap`, or -1.
int64_t output_at(int64_t at, int64_t tap, int64_t pad, int64_t dilation, int64_t stride,
                  int64_t outputs) {
  const int64_t scaled = at + pad - tap * dilation;
  if (scaled < 0 || scaled % stride != 0 || scaled / stride >= outputs) return -1;
  return scaled / stride;
}

}  // namespace

// Products of two FP32 values (24 bits each) are exact in double.
void add_sample(const SumTerms& terms, double computed, const Format& format,
                AccumulatorHealth& health) {
  health.samples += 1;
  DoubledSum sum;
  double magnitude = 0;
  uint64_t addends = 0, swamped = 0;
  for (size_t k = 0; k < terms.a.size(); ++k) {
    const double product = terms.a[k] * terms.b[k];
    if (product == 0) continue;
    const double before = sum.value();
    addends += 1;
    swamped += before != 0 && std::abs(product) < ulp(before, format) / 2;
    sum.add(product);
    magnitude += std::abs(product);
  }
  const double exact = sum.value();
  if (!std::isfinite(exact) || !std::isfinite(computed)) return;
  health.compared += 1;
  health.addends += addends;
  health.swamped += swamped;
  const double err = computed - exact;
  health.err_sq += err * err;
  health.exact_sq += exact * exact;
  if (magnitude > 0) {
    health.err_max_share = std::max(health.err_max_share, std::abs(err) / magnitude);
  }
}

template <typename T>
double sum_terms(const GemmArgs<T>& args, int64_t index, SumTerms& terms) {
  const int64_t row = index / args.n, column = index % args.n;
  terms.clear();
  for (int64_t k = 0; k < args.k; ++k) {
    terms.add(args.transpose_a ? args.a[k * args.lda + row] : args.a[row * args.lda + k],
              args.transpose_b ? args.b[column * args.ldb + k] : args.b[k * args.ldb + column]);
  }
  return args.c[row * args.ldc + column];
}

// x (N,C,H,W), w (O,C/groups,R,S), dy (N,O,P,Q); k in the order of ConvArgs.
template <typename T>
double sum_terms(const ConvArgs<T>& args, ConvPass pass, int64_t groups, int64_t index,
                 SumTerms& terms) {
  const ConvShape& s = args.shape;
  const int64_t in_group = s.in_channels / groups, out_group = s.out_channels / groups;
  const auto x_at = [&](int64_t n, int64_t c, int64_t h, int64_t w) {
    return ((n * s.in_channels + c) * s.in_height + h) * s.in_width + w;
  };
  const auto w_at = [&](int64_t o, int64_t c, int64_t r, int64_t t) {
    return ((o * in_group + c) * s.kernel_height + r) * s.kernel_width + t;
  };
  const auto y_at = [&](int64_t n, int64_t o, int64_t p, int64_t q) {
    return ((n * s.out_channels + o) * s.out_height + p) * s.out_width + q;
  };
  const auto image_row = [&](int64_t p, int64_t r) {
    return p * s.stride_h - s.pad_h + r * s.dilation_h;
  };
  const auto image_column = [&](int64_t q, int64_t t) {
    return q * s.stride_w - s.pad_w + t * s.dilation_w;
  };
  const auto inside = [&](int64_t h, int64_t w) {
    return h >= 0 && h < s.in_height && w >= 0 && w < s.in_width;
  };
  terms.clear();
  int64_t rest = index;
  const auto take = [&](int64_t extent) {
    const int64_t digit = rest % extent;
    rest /= extent;
    return digit;
  };
  switch (pass) {
    case ConvPass::kForward: {
      const int64_t q = take(s.out_width), p = take(s.out_height), o = take(s.out_channels);
      const int64_t first = o / out_group * in_group;
      for (int64_t c = 0; c < in_group; ++c) {
        for (int64_t r = 0; r < s.kernel_height; ++r) {
          for (int64_t t = 0; t < s.kernel_width; ++t) {
            const int64_t h = image_row(p, r), w = image_column(q, t);
            if (inside(h, w))
              terms.add(args.x[x_at(rest, first + c, h, w)], args.w[w_at(o, c, r, t)]);
          }
        }
      }
      break;
    }
    case ConvPass::kBackwardInput: {
      const int64_t w = take(s.in_width), h = take(s.in_height), c = take(s.in_channels);
      const int64_t first = c / in_group * out_group;
      for (int64_t o = first; o < first + out_group; ++o) {
        for (int64_t r = 0; r < s.kernel_height; ++r) {
          for (int64_t t = 0; t < s.kernel_width; ++t) {
            const int64_t p = output_at(h, r, s.pad_h, s.dilation_h, s.stride_h, s.out_height);
            const int64_t q = output_at(w, t, s.pad_w, s.dilation_w, s.stride_w, s.out_width);
            if (p < 0 || q < 0) continue;
            terms.add(args.dy[y_at(rest, o, p, q)], args.w[w_at(o, c % in_group, r, t)]);
          }
        }
      }
      break;
    }
    case ConvPass::kBackwardWeight: {
      const int64_t t = take(s.kernel_width), r = take(s.kernel_height), c = take(in_group);
      const int64_t channel = rest / out_group * in_group + c;
      for (int64_t n = 0; n < s.batch; ++n) {
        for (int64_t p = 0; p < s.out_height; ++p) {
          for (int64_t q = 0; q < s.out_width; ++q) {
            const int64_t h = image_row(p, r), w = image_column(q, t);
            if (!inside(h, w)) continue;
            terms.add(args.x[x_at(n, channel, h, w)], args.dy[y_at(n, rest, p, q)]);
          }
        }
      }
      break;
    }
  }
  return args.out[index];
}

template double sum_terms(const GemmArgs<float>&, int64_t, SumTerms&);
template double sum_terms(const GemmArgs<double>&, int64_t, SumTerms&);
template double sum_terms(const ConvArgs<float>&, ConvPass, int64_t, int64_t, SumTerms&);
template double sum_terms(const ConvArgs<double>&, ConvPass, int64_t, int64_t, SumTerms&);

}  // namespace lockstep
